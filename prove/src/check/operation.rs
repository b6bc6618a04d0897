//! What an operation says by itself.

use crate::check::context::MS;
use crate::history::{Kind, MOST_SLOTS, Nanos, Operation, Outcome};

impl Operation {
    /// Returns whether it claims its key.
    pub(super) fn is_claim(&self) -> bool {
        matches!(self.kind, Kind::Acquire | Kind::Hold)
    }

    /// Returns whether it is a claim that may wait in line.
    pub(super) fn may_wait(&self) -> bool {
        self.is_claim() && self.asked.wait_ms > 0
    }

    /// Returns when its connection to the service ended, if its client has gone.
    pub(super) fn left(&self) -> Option<Nanos> {
        self.late.or(self.gone)
    }

    /// Returns whether it may make the lease of its token last longer.
    pub(super) fn prolongs(&self) -> bool {
        self.is_claim() || self.kind == Kind::Refresh
    }

    pub(super) fn is_unknown(&self) -> bool {
        self.outcome == Outcome::Unknown
    }

    /// Returns whether it was told that the lease that it means is not there.
    pub(super) fn is_lost(&self) -> bool {
        self.outcome == Outcome::No && self.code == "lock_lost"
    }

    /// Returns the number of the lease in whose place it asks for another one.
    pub(super) fn replaces(&self) -> Option<u64> {
        self.asked.fencing_token.filter(|_| self.is_claim())
    }

    /// Returns whether it gave up what its token had.
    pub(super) fn is_release(&self) -> bool {
        self.kind == Kind::Release && self.outcome == Outcome::Yes
    }

    /// Returns whether the leases that it means are over with its answer.
    pub(super) fn ends(&self) -> bool {
        let ends = matches!(self.kind, Kind::Release | Kind::ForceRelease);
        let ends = ends || self.replaces().is_some();
        ends && self.outcome == Outcome::Yes || self.is_lost()
    }

    /// Returns the only lease that it means; none if it means all of its token, or of the key.
    pub(super) fn means(&self) -> Option<u64> {
        // A forced release tells the first one's number of several leases.
        let tells = self.kind == Kind::ForceRelease && self.said.holders.is_none();
        let told = self.said.fencing_token.filter(|_| tells);
        self.asked.fencing_token.or(told)
    }

    /// Returns whether it means another lease than that of this number.
    pub(super) fn means_another(&self, fence: u64) -> bool {
        self.means().is_some_and(|meant| meant != fence)
    }

    /// Returns whether it was told that its token has a lease, which it does not repeat.
    pub(super) fn is_mine(&self) -> bool {
        self.outcome == Outcome::No && self.code == "lock_held" && self.said.mine == Some(true)
    }

    /// Returns whether it says that the token does not hold the key, and that nothing under way grants it.
    pub(super) fn is_definite_no(&self) -> bool {
        let code = self.code.as_str();
        self.outcome == Outcome::No
            && self.is_claim()
            && self.status != 0
            && !self.is_mine()
            && (matches!(code, "lock_held" | "wait_cancelled" | "draining")
                || code.ends_with("/not_acquired"))
    }

    /// Returns the time in which the lease began of which it was told.
    pub(super) fn began(&self) -> (Nanos, Nanos) {
        let answered = self.answered.unwrap_or(self.sent);
        let waited = self.said.waited_ms.unwrap_or_default().saturating_mul(MS);
        (self.sent.saturating_add(waited).min(answered), answered)
    }

    /// Returns the TTL that was asked for.
    pub(super) fn asked_ttl(&self) -> Option<Nanos> {
        self.asked.ttl_ms.map(|ttl| ttl.saturating_mul(MS))
    }

    /// Returns what it was told is left of the lease.
    pub(super) fn told_ttl(&self) -> Option<Nanos> {
        self.said.ttl_ms.map(|ttl| ttl.saturating_mul(MS))
    }

    /// Returns the units that its lease would allow on the key.
    pub(super) fn asked_slots(&self) -> u16 {
        self.asked.slots.unwrap_or(1).min(MOST_SLOTS)
    }

    /// Returns the units that its lease would have.
    pub(super) fn asked_units(&self) -> u16 {
        self.asked.units.unwrap_or(1)
    }

    /// Returns how many units its lease has, as it was told.
    pub(super) fn told_units(&self) -> u16 {
        self.said.units.unwrap_or(1)
    }

    /// Returns how many units its lease allows on the key, as it was told.
    pub(super) fn told_slots(&self) -> u16 {
        self.said.slots.unwrap_or(1)
    }

    /// Returns whether it waited in line for what it was granted.
    pub(super) fn has_waited(&self) -> bool {
        self.asked.wait_ms > 0 && self.said.waited_ms.is_some_and(|ms| ms > 0)
    }
}
