//! What happens in a run, how often and how long: all times ten times what a network takes, since
//! the virtual clock knows nothing shorter than a millisecond.

use std::time::Duration;

use crate::lock::time::Ttl;
use crate::store::redlock::Rules;
use crate::store::redlock::simulation::rule::Rule;

/// The longest lease.
pub(super) const LONGEST_TTL_MS: u64 = 4_000;

/// The leases that are asked for.
pub(super) const TTLS_MS: [u64; 3] = [1_000, 2_000, LONGEST_TTL_MS];

/// As the rules are in production, to one another.
pub(super) const RULES: Rules = Rules {
    node_timeout: Duration::from_millis(200),
    answer_within: Duration::from_millis(500),
    settle: Duration::from_millis(1_100),
    longest_ttl: Ttl::from_millis(LONGEST_TTL_MS),
};

/// One run. Faults come by chance, so many milliseconds apart on average; 0 is never.
#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) seed: u64,
    pub(super) without: Option<Rule>,
    pub(super) nodes: usize,
    pub(super) instances: usize,
    pub(super) keys: usize,
    pub(super) workers: usize,
    pub(super) length: u64,
    /// How far clocks are from the true time at most, either way.
    pub(super) node_skew_us: i64,
    pub(super) instance_skew_us: i64,
    /// Of a thousand messages.
    pub(super) loss: u32,
    /// Of a thousand messages.
    pub(super) slow: u32,
    /// How long a slow one takes at most, in milliseconds.
    pub(super) slow_most: u64,
    pub(super) forgets_every: u64,
    /// Of those that forget, in percent: `FLUSHALL`, an older snapshot; the others restart empty.
    pub(super) flushed: u32,
    pub(super) snapshot: u32,
    /// Shortly after one another, in percent.
    pub(super) twice: u32,
    /// All but one may forget, not only fewer than a quorum.
    pub(super) any_number_forgets: bool,
    pub(super) pauses_every: u64,
    pub(super) cuts_every: u64,
    pub(super) restarts_every: u64,
    pub(super) stalls_every: u64,
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
            any_number_forgets: false,
            pauses_every: 0,
            cuts_every: 0,
            restarts_every: 0,
            stalls_every: 0,
        }
    }

    /// A run with all faults; which of them are rare differs from run to run.
    pub(super) fn rough(nodes: usize, seed: u64) -> Self {
        let often = |faults: u64, every: u64| if seed.is_multiple_of(faults) { 0 } else { every };
        Self {
            loss: [0, 10, 30][(seed % 3) as usize],
            slow: [20, 5, 50, 0][(seed % 4) as usize],
            forgets_every: if nodes == 1 { 0 } else { 10_000 },
            any_number_forgets: seed.is_multiple_of(2),
            instance_skew_us: [5_000, 500_000, 1_500_000][(seed / 2 % 3) as usize],
            pauses_every: often(3, 12_000),
            cuts_every: often(5, 15_000),
            restarts_every: often(7, 25_000),
            stalls_every: often(4, 20_000),
            ..Self::calm(nodes, seed)
        }
    }

    /// Whether every node keeps what it knows.
    pub(super) fn nobody_forgets(&self) -> bool {
        self.forgets_every == 0
    }
}
