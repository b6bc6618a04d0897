//! Calls for a key: its node, the names of its keys, and the values that verbs have in common.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::lock::error::{StoreError, Verb};
use crate::lock::key::LockKey;
use crate::lock::prefixes::Prefixes;
use crate::lock::time::Ttl;
use crate::lock::token::FencingToken;
use crate::metrics::Metrics;
use crate::platform::clock::since_boot;
use crate::store::redis::clock::{BEYOND, FencingFloor};
use crate::store::redis::deadline::{Deadline, When};
use crate::store::redis::keys::Keys;
use crate::store::redis::node::{Node, ScriptCall};
use crate::store::redis::replies::{fencing_token, malformed};
use crate::store::redis::script::{Reply, Script};
use crate::store::redis::topology::Topology;

/// Longer than any lease lasts.
const FOR_EVER_MS: u64 = 1 << 52;

/// The nodes, and the settings of every call.
pub(super) struct Calls {
    pub(super) topology: Topology,
    /// The time limit of a call.
    pub(super) patience: Duration,
    pub(super) metrics: Arc<Metrics>,
    pub(super) key_prefix: String,
    pub(super) default_ttl: Ttl,
    /// The time for which an absent claim keeps its place, in milliseconds.
    pub(super) position_kept: String,
    pub(super) floor: FencingFloor,
    pub(super) prefixes: Prefixes,
    /// The name of this instance in the lines.
    pub(super) instance: String,
}

impl Calls {
    pub(super) fn keys(&self, key: &LockKey) -> Keys {
        Keys::of(&self.key_prefix, key)
    }

    /// Runs a script, and tells which node answered.
    pub(super) async fn run(
        &self,
        script: &'static Script,
        key: &LockKey,
        args: &[&str],
        when: When,
    ) -> Result<(Reply, Arc<Node>), StoreError> {
        let keys = self.keys(key);
        let call = ScriptCall { script, keys: &keys.all(), args, when };
        self.topology.call(&call, self.patience).await
    }

    /// Waits until what a node has written for a key has reached the replicas, if the settings require
    /// it. The error says why it has not.
    pub(super) async fn confirmed(
        &self,
        key: &LockKey,
        node: &Node,
        since: Instant,
    ) -> Result<(), String> {
        let Some(replicas) = node.replicas() else { return Ok(()) };
        let confirmed = replicas.confirm(self.keys(key).mark(), since).await;
        if confirmed.is_err() {
            self.metrics.redis_error("unreplicated");
        }
        confirmed
    }

    /// The deadline of so many calls, whose arguments are made after this.
    pub(super) fn in_time(&self, calls: u32) -> When {
        When::Until(Deadline::after(since_boot(), self.patience * calls))
    }

    /// The longest time that a lease of a key lasts, in milliseconds.
    pub(super) fn max_hold(&self, key: &LockKey) -> u64 {
        self.prefixes.max_hold(key).map_or(FOR_EVER_MS, Ttl::as_millis)
    }

    /// Reads a fencing token, and raises the floor above it. A number that only another program can
    /// have written is none.
    pub(super) fn fencing_token(
        &self,
        verb: Verb,
        reply: &mut Reply,
    ) -> Result<FencingToken, StoreError> {
        let token = fencing_token(reply).filter(|token| token.number() < BEYOND);
        let token = token.ok_or_else(|| malformed(verb))?;
        self.floor.raise(token);
        Ok(token)
    }
}
