//! The claims that wait for a key at this instance, in the order of their arrival; only the first
//! contends.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::lock::key::LockKey;
use crate::lock::lease::{Claim, Waiter};
use crate::lock::line::Line;
use crate::lock::store::{Keep, Waiting};
use crate::lock::time::{Clock, Timestamp, Ttl};
use crate::lock::token::LeaseToken;

/// The longest sleep of a claim that is not the first.
const RECHECK: Duration = Duration::from_millis(500);

/// The lines of this instance.
pub(super) struct Queues {
    clock: Clock,
    kept: Ttl,
    lines: Mutex<HashMap<LockKey, Line>>,
}

impl Queues {
    /// Makes lines in which an absent claim keeps its place for `kept`.
    pub(super) fn new(kept: Ttl) -> Self {
        let clock = Clock::starting_at(Timestamp::from_micros(0));
        Self { clock, kept, lines: Mutex::default() }
    }

    /// Joins a claim to the line of its key.
    pub(super) fn join(&self, claim: &Claim) -> Waiting {
        let now = self.clock.now();
        let mut lines = self.lines();
        let line = lines.entry(claim.key.clone()).or_default();
        line.expire(now);
        let (place, new) = line.join(claim, now);
        let head = line.head().map(|(_, head)| head.clone());
        // A claim behind learns whose turn it is: that claim may have no waiting request any more.
        let handed = head.filter(|head| *head != claim.token);
        let (ahead, lasts) = (line.ahead(place), Duration::ZERO);
        Waiting { place, ahead, new, recheck_after: RECHECK, lasts, handed }
    }

    /// Returns true if another claim comes first.
    pub(super) fn is_behind_others(&self, key: &LockKey, token: &LeaseToken) -> bool {
        let mut lines = self.lines();
        let Some(line) = lines.get_mut(key) else { return false };
        line.expire(self.clock.now());
        line.head().is_some_and(|(_, head)| head != token)
    }

    pub(super) fn len(&self, key: &LockKey) -> u64 {
        self.lines().get(key).map_or(0, Line::len)
    }

    /// The first `most` claims in the line of a key.
    pub(super) fn first(&self, key: &LockKey, most: usize) -> Vec<Waiter> {
        let now = self.clock.now();
        self.lines().get(key).map_or_else(Vec::new, |line| line.first(most, now))
    }

    /// Takes a claim out of the line, keeping its place or not.
    pub(super) fn leave(&self, key: &LockKey, token: &LeaseToken, keep: Keep) {
        match keep {
            Keep::Nothing => _ = self.drop(key, token),
            Keep::Place => self.park(key, token),
        }
    }

    fn park(&self, key: &LockKey, token: &LeaseToken) {
        let now = self.clock.now();
        let mut lines = self.lines();
        // Expired places of all keys are removed here at the latest.
        lines.retain(|_, line| {
            line.expire(now);
            !line.is_empty()
        });
        if let Some(line) = lines.get_mut(key) {
            line.park(token, now.after(self.kept));
        }
    }

    /// Takes a claim out. Returns true if it had a place.
    pub(super) fn drop(&self, key: &LockKey, token: &LeaseToken) -> bool {
        let mut lines = self.lines();
        let Some(line) = lines.get_mut(key) else { return false };
        line.expire(self.clock.now());
        let had_place = line.drop(token).is_some();
        if line.is_empty() {
            lines.remove(key);
        }
        had_place
    }

    fn lines(&self) -> MutexGuard<'_, HashMap<LockKey, Line>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
