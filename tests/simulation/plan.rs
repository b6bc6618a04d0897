//! The plan of a run: its faults and times, which are ten times those of a network, because the
//! virtual clock counts milliseconds.

use std::time::Duration;

use fastrand::Rng;

use crate::lock::time::Ttl;
use crate::store::redlock::Rules;
use crate::store::redlock::simulation::rule::Rule;

pub(super) const LONGEST_TTL_MS: u64 = 4_000;

pub(super) const TTLS_MS: [u64; 3] = [1_000, 2_000, LONGEST_TTL_MS];

/// The rules, in the proportions of production.
pub(super) const RULES: Rules = Rules {
    node_timeout: Duration::from_millis(200),
    longest_lease: Ttl::from_millis(LONGEST_TTL_MS),
};

/// A run. Faults come at random, at these intervals in milliseconds on average; 0 is never.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) without: Option<Rule>,
    pub(super) nodes: usize,
    pub(super) instances: usize,
    pub(super) keys: usize,
    pub(super) workers: usize,
    pub(super) length: u64,
    /// The greatest error of clocks, either way.
    pub(super) node_skew_us: i64,
    pub(super) instance_skew_us: i64,
    /// Of a thousand messages.
    pub(super) loss: u32,
    /// Of a thousand messages.
    pub(super) slow: u32,
    /// The longest delay of a slow message, in milliseconds.
    pub(super) slow_most: u64,
    pub(super) forgets_every: u64,
    /// Kinds of forgetting in percent: `FLUSHALL`, an older snapshot; the other nodes restart
    /// empty.
    pub(super) flushed: u32,
    pub(super) snapshot: u32,
    /// Two shortly after one another, in percent.
    pub(super) twice: u32,
    /// All at once, or all one after another, in percent.
    pub(super) all_forget: u32,
    pub(super) pauses_every: u64,
    pub(super) cuts_every: u64,
    pub(super) restarts_every: u64,
    pub(super) stalls_every: u64,
    /// One of so many wishes is a forced release.
    pub(super) forces: u32,
    /// The settings of every other instance, if they differ; and the interval at which all
    /// instances with one of the two settings are gone for a while.
    pub(super) others: Option<Others>,
    pub(super) changes_every: u64,
    /// The nodes restart without their data, each once all vote and have heard of a refresh,
    /// while every client refreshes a lease of its own key.
    pub(super) rolling: bool,
    /// The nodes vote from the beginning, as after a long time without leases.
    pub(super) served: bool,
    /// The longest time that a lease of the first key lasts, in milliseconds; 0 is without limit.
    pub(super) max_hold: u64,
    /// Wall clocks of nodes step, at most so far back or ahead, in milliseconds. Those of instances
    /// step within their error.
    pub(super) steps_every: u64,
    pub(super) steps_back: u64,
    pub(super) steps_ahead: u64,
    /// The clients that lock on the nodes, without the service.
    pub(super) directs: usize,
}

/// Settings that differ from those of the first instance.
#[derive(Clone, Copy, Debug)]
pub(super) struct Others {
    pub(super) nodes: usize,
    pub(super) longest_ms: u64,
}

impl Plan {
    /// A run in which nothing fails; clocks differ, and messages overtake one another.
    pub(super) fn calm(nodes: usize, seed: u64) -> Self {
        Self {
            seed,
            without: None,
            nodes,
            instances: 3,
            keys: 6,
            workers: 20,
            length: 120_000,
            node_skew_us: 500_000,
            instance_skew_us: 5_000,
            loss: 0,
            slow: 0,
            slow_most: 1_500,
            forgets_every: 0,
            flushed: 40,
            snapshot: 30,
            twice: 20,
            all_forget: 20,
            pauses_every: 0,
            cuts_every: 0,
            restarts_every: 0,
            stalls_every: 0,
            forces: 0,
            others: None,
            changes_every: 0,
            rolling: false,
            served: false,
            max_hold: 0,
            steps_every: 0,
            steps_back: 3_000,
            steps_ahead: 0,
            directs: 0,
        }
    }

    /// A run with all faults and two instances of four that know the first `others` nodes.
    pub(super) fn with_two_lists(nodes: usize, others: usize, seed: u64) -> Self {
        Self {
            instances: 4,
            others: Some(Others { nodes: others, longest_ms: LONGEST_TTL_MS }),
            changes_every: 12_000,
            ..Self::rough(nodes, seed)
        }
    }

    /// The same run, in which every instance sees every node.
    pub(super) fn that_is_seen_whole(self) -> Self {
        Self { loss: 0, slow: 0, cuts_every: 0, pauses_every: 0, forgets_every: 4_000, ..self }
    }

    /// A run in which all nodes restart one after another, and nothing else fails.
    pub(super) fn rolling(nodes: usize, seed: u64) -> Self {
        Self { rolling: true, workers: 12, keys: 12, ..Self::calm(nodes, seed) }
    }

    /// A run with all faults but those that no client without the service is safe from.
    pub(super) fn with_direct_clients(nodes: usize, seed: u64) -> Self {
        Self { directs: 8, forgets_every: 0, ..Self::rough(nodes, seed) }
    }

    /// A run in which clocks of nodes step ahead, so that leases end early there.
    pub(super) fn ahead(nodes: usize, seed: u64) -> Self {
        Self {
            steps_every: 4_000,
            steps_ahead: 10_000,
            forgets_every: 0,
            ..Self::rough(nodes, seed)
        }
    }

    /// The number of nodes that an instance knows, and its longest lease.
    pub(super) fn settings_of(&self, instance: usize) -> (usize, u64) {
        match self.others {
            Some(Others { nodes, longest_ms }) if instance % 2 == 1 => (nodes, longest_ms),
            _ => (self.nodes, LONGEST_TTL_MS),
        }
    }

    /// The number of nodes in all lists.
    pub(super) fn all_nodes(&self) -> usize {
        self.nodes.max(self.others.map_or(0, |others| others.nodes))
    }

    /// A run with all faults; different faults are rare from run to run.
    pub(super) fn rough(nodes: usize, seed: u64) -> Self {
        let often = |faults: u64, every: u64| if seed.is_multiple_of(faults) { 0 } else { every };
        Self {
            loss: [0, 10, 30][(seed % 3) as usize],
            slow: [20, 5, 50, 0][(seed % 4) as usize],
            forgets_every: 10_000,
            instance_skew_us: [5_000, 500_000, 1_500_000][(seed / 2 % 3) as usize],
            pauses_every: often(3, 12_000),
            cuts_every: often(5, 15_000),
            restarts_every: often(7, 25_000),
            stalls_every: often(4, 20_000),
            forces: [0, 40][(seed % 2) as usize],
            max_hold: [0, 5_000][(seed / 2 % 2) as usize],
            steps_every: often(2, 10_000),
            ..Self::calm(nodes, seed)
        }
    }

    /// A run of seconds, with a few clients of one or two keys, and faults as often as clients ask.
    pub(super) fn short(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed);
        let plan = Self::rough(rng.usize(1..=5), seed);
        let faster = |every: u64| every / 8;
        Self {
            instances: rng.usize(2..=3),
            keys: rng.usize(1..=2),
            workers: rng.usize(2..=4),
            length: rng.u64(500..3_000),
            served: true,
            forgets_every: faster(plan.forgets_every),
            pauses_every: faster(plan.pauses_every),
            cuts_every: faster(plan.cuts_every),
            restarts_every: faster(plan.restarts_every),
            stalls_every: faster(plan.stalls_every),
            steps_every: faster(plan.steps_every),
            ..plan
        }
    }

    /// After all faults, a node that forgot votes again when the longest lease is over on its clock.
    pub(super) fn back_after(&self) -> Duration {
        let steps = if self.steps_every > 0 { 4 * self.steps_back } else { 0 };
        Duration::from_millis(LONGEST_TTL_MS * 6 / 5 + steps)
    }

    /// Returns true if a lease of the key may not last as long. Steps of clocks are time for
    /// `max_hold`, too.
    pub(super) fn outlasts(&self, key: usize, lasts: u64) -> bool {
        key == 0 && self.max_hold > 0 && self.steps_every == 0 && lasts > self.max_hold
    }

    /// Returns true if no refreshed lease may end early.
    pub(super) fn leases_last(&self) -> bool {
        self.rolling || self.forgets_every == 0 && self.steps_ahead == 0
    }
}
