//! A node for Redlock: calls of scripts within their deadlines, and its keys.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;

use crate::lock::error::StoreError;
use crate::lock::key::LockKey;
use crate::lock::store::Page;
use crate::store::redis::list::scan;
use crate::store::redis::node::{Node, ScriptCall, Way};
use crate::store::redis::script::Reply;

/// One of the nodes.
#[async_trait]
pub(super) trait Peer: Send + Sync {
    /// Its address, for logs and errors.
    fn name(&self) -> &str;

    /// The reason why it gave no answer, without its name.
    fn why(&self, error: &StoreError) -> String {
        let reason = error.reason.to_string();
        reason.strip_prefix(self.name()).unwrap_or(&reason).trim_start_matches(": ").to_owned()
    }

    /// The estimate of its clock, in milliseconds.
    fn now(&self) -> u64;

    /// Makes a call, and gives it up after `patience`.
    async fn call(&self, call: &ScriptCall<'_>, patience: Duration) -> Result<Reply, StoreError>;

    /// The first `wanted` keys of a page among all under `key_prefix`.
    async fn scan(
        &self,
        key_prefix: &str,
        page: &Page,
        wanted: usize,
    ) -> Result<BTreeSet<LockKey>, StoreError>;
}

#[async_trait]
impl Peer for Node {
    fn name(&self) -> &str {
        self.name()
    }

    fn now(&self) -> u64 {
        self.clock().now()
    }

    async fn call(&self, call: &ScriptCall<'_>, patience: Duration) -> Result<Reply, StoreError> {
        let answer = self.call(call, Way::Straight, patience).await;
        answer.map_err(|error| error.of(call.script.verb()))
    }

    async fn scan(
        &self,
        key_prefix: &str,
        page: &Page,
        wanted: usize,
    ) -> Result<BTreeSet<LockKey>, StoreError> {
        scan(self, key_prefix, page, wanted).await
    }
}
