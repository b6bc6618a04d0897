//! One node as Redlock sees it: a script's way there and back, within a deadline of its own.

use std::time::Duration;

use async_trait::async_trait;

use crate::lock::error::StoreError;
use crate::store::redis::node::Node;
use crate::store::redis::script::Reply;
use crate::store::redis::script::Script;

/// One of the nodes, or what a simulation puts in its place.
#[async_trait]
pub(super) trait Peer: Send + Sync {
    /// Its address, for people.
    fn name(&self) -> &str;

    /// What its clock shows about now, in milliseconds.
    fn now(&self) -> u64;

    /// Runs a script that may act at any time.
    async fn run(
        &self,
        script: &'static Script,
        keys: &[&str],
        args: &[&str],
        patience: Duration,
    ) -> Result<Reply, StoreError>;

    /// Runs a script that refuses to act once `patience` is over: its first argument is that
    /// moment on the node's clock.
    async fn run_in_time(
        &self,
        script: &'static Script,
        keys: &[&str],
        args: &[&str],
        patience: Duration,
    ) -> Result<Reply, StoreError>;

    /// A page of the names of locks, in order: see [`crate::store::redis::list`].
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

    async fn run(
        &self,
        script: &'static Script,
        keys: &[&str],
        args: &[&str],
        patience: Duration,
    ) -> Result<Reply, StoreError> {
        self.run(script, keys, args, patience).await
    }

    async fn run_in_time(
        &self,
        script: &'static Script,
        keys: &[&str],
        args: &[&str],
        patience: Duration,
    ) -> Result<Reply, StoreError> {
        self.run_in_time(script, keys, args, patience).await
    }

    fn node(&self) -> Option<&Node> {
        Some(self)
    }
}
