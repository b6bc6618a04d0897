//! The events of a run: a run with too few of them proves nothing.

use std::ops::AddAssign;

use crate::store::redlock::nodes::SETTLE;
use crate::store::redlock::simulation::redis::Command;

/// The number of events of each kind.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    /// New leases.
    pub(super) grants: u64,
    /// Repeats that were granted the lease of their token again.
    pub(super) again: u64,
    /// Questions that told nodes of a lease.
    pub(super) settled: u64,
    pub(super) refreshed: u64,
    /// Leases that have taken the place of another one.
    pub(super) replaced: u64,
    /// Refusals of a token by its own lease.
    pub(super) mine: u64,
    /// Refreshes by streams.
    pub(super) kept: u64,
    /// Requests that reached the service late, without a client, and that began a lease.
    pub(super) ghosts: u64,
    pub(super) lost: u64,
    pub(super) held: u64,
    /// Calls without an answer that had no effect.
    pub(super) refused: u64,
    pub(super) unknown: u64,
    pub(super) expired: u64,
    pub(super) undone: u64,
    /// Leases that lasted no longer because of `max_hold`.
    pub(super) capped: u64,
    pub(super) stepped: u64,
    /// Grants of clients that lock on the nodes, without the service.
    pub(super) direct: u64,
    pub(super) forgot: u64,
    /// Nodes that were blank and vote again.
    pub(super) returned: u64,
    /// Commands that arrived too late to act.
    pub(super) late: u64,
    /// Instances that ended during a call.
    pub(super) ended: u64,
    /// Leases whose number rose while they lasted.
    pub(super) renumbered: u64,
    /// Refusals of a token that may still hold the key.
    pub(super) against_itself: u64,
}

impl Counts {
    /// The kinds of events that were too few for these grants.
    pub(super) fn enough(&self, nodes: usize) -> Vec<&'static str> {
        let share = |least_of_a_thousand: u64| self.grants * least_of_a_thousand / 1_000;
        // A majority of two nodes is both: none misses a lease.
        let settlings = [0, 15, 50][nodes.min(3) - 1];
        let rows = [
            ("repeats", self.again, share(30)),
            ("settlings", self.settled, share(settlings)),
            ("refreshes", self.refreshed, share(50)),
            ("replacements", self.replaced, share(30)),
            ("refusals by one's own lease", self.mine, share(10)),
            ("refreshes by streams", self.kept, share(50)),
            ("late requests", self.ghosts, share(5)),
            ("unknowns", self.unknown, share(50)),
            ("expiries", self.expired, share(50)),
            ("forgettings", self.forgot, share(10)),
            ("returns", self.returned, share(5)),
            ("late commands", self.late, share(20)),
            ("ended instances", self.ended, share(1)),
        ];
        rows.into_iter().filter(|(_, was, least)| was < least).map(|(what, ..)| what).collect()
    }

    /// Counts a command that a node has executed.
    pub(super) fn executed(&mut self, command: &Command, word: &str) {
        if word == "late" {
            self.late += 1;
        } else if std::ptr::eq(command.script, &raw const SETTLE) {
            self.settled += 1;
        }
    }
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.grants += other.grants;
        self.again += other.again;
        self.settled += other.settled;
        self.refreshed += other.refreshed;
        self.replaced += other.replaced;
        self.mine += other.mine;
        self.kept += other.kept;
        self.ghosts += other.ghosts;
        self.lost += other.lost;
        self.held += other.held;
        self.refused += other.refused;
        self.unknown += other.unknown;
        self.expired += other.expired;
        self.undone += other.undone;
        self.capped += other.capped;
        self.stepped += other.stepped;
        self.direct += other.direct;
        self.forgot += other.forgot;
        self.returned += other.returned;
        self.late += other.late;
        self.ended += other.ended;
        self.renumbered += other.renumbered;
        self.against_itself += other.against_itself;
    }
}
