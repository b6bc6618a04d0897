//! One node as Redlock sees it: a script's way there and back, within a deadline of its own.

use std::time::Duration;

use async_trait::async_trait;

use crate::lock::error::StoreError;
use crate::store::redis::node::{Call, Node, Way};
use crate::store::redis::script::Reply;

/// One of the nodes, or what a simulation puts in its place.
#[async_trait]
pub(super) trait Peer: Send + Sync {
    /// Its address, for people.
    fn name(&self) -> &str;

    /// What its clock shows about now, in milliseconds.
    fn now(&self) -> u64;

    /// Makes a call, and gives it up once `patience` is over.
    async fn call(&self, call: &Call<'_>, patience: Duration) -> Result<Reply, StoreError>;

    /// The Redis that it is; none in a simulation.
    fn node(&self) -> Option<&Node>;
}

#[async_trait]
impl Peer for Node {
    fn name(&self) -> &str {
        self.name()
    }

    fn now(&self) -> u64 {
        self.clock().now()
    }

    async fn call(&self, call: &Call<'_>, patience: Duration) -> Result<Reply, StoreError> {
        self.call(call, Way::Straight, patience).await
    }

    fn node(&self) -> Option<&Node> {
        Some(self)
    }
}
