//! What the calls of one instance share: the nodes, clocks, limits, numbers and what is known of
//! them.

use std::sync::Arc;
use std::time::Duration;

use crate::lock::error::{Effect, StoreError, Verb};
use crate::lock::prefixes::Prefixes;
use crate::lock::time::Ttl;
use crate::metrics::Metrics;
use crate::store::redis::deadline::Deadline;
use crate::store::redlock::cleanup::Cleanup;
use crate::store::redlock::nodes::Nodes;
use crate::store::redlock::numbers::Numbers;
use crate::store::redlock::poll::Poll;
use crate::store::redlock::queue::Queues;
use crate::store::redlock::settings::{Rules, Time};
use crate::store::redlock::tally::Quorum;
use crate::store::redlock::watch::NodesView;

/// What the calls of one instance share.
pub(super) struct Context {
    pub(super) nodes: Arc<Nodes>,
    pub(super) time: Arc<dyn Time>,
    pub(super) rules: Rules,
    pub(super) default_ttl: Ttl,
    pub(super) prefixes: Prefixes,
    pub(super) numbers: Numbers,
    pub(super) metrics: Arc<Metrics>,
    pub(super) cleanup: Cleanup,
    pub(super) view: Arc<NodesView>,
    pub(super) queues: Queues,
}

impl Context {
    pub(super) fn quorum(&self) -> Quorum {
        self.nodes.quorum()
    }

    /// The time limit of one node for a lease of `ttl`.
    pub(super) fn patience(&self, ttl: Ttl) -> Duration {
        let patience = self.rules.node_timeout.min(ttl.as_duration() / 20);
        patience.max(Duration::from_millis(1))
    }

    /// Fails if the votes of the nodes may not be counted: two nodes may be one Redis, or may have a
    /// majority without those that serve other settings.
    pub(super) fn may_count(&self, verb: Verb, effect: Effect) -> Result<(), StoreError> {
        let Some(obstacle) = self.view.obstacle() else { return Ok(()) };
        Err(failure(verb, effect, obstacle.text(&self.nodes)))
    }

    /// The deadline of a question that is made after this.
    pub(super) fn deadline(&self, patience: Duration) -> Deadline {
        Deadline::after(self.time.monotonic(), patience)
    }

    /// R1: a number above all that were heard of.
    pub(super) fn propose(&self, heard: u64) -> u64 {
        let latest = self.nodes.latest_clock().saturating_mul(1_000);
        self.numbers.propose(self.time.wall_micros(), latest, heard)
    }

    /// Notes the numbers in the answers.
    pub(super) fn hear(&self, poll: &Poll) {
        self.numbers.hear(self.time.wall_micros(), poll.highest());
    }
}

/// A call without an answer of enough nodes.
pub(super) fn failure(verb: Verb, effect: Effect, reason: impl Into<String>) -> StoreError {
    let fault = "no majority of nodes";
    StoreError { verb, effect, fault, reason: reason.into().into() }
}
