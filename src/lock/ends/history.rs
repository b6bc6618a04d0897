//! The known leases and the last ends, within their bounds.

use std::collections::{HashMap, VecDeque};
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;

use crate::lock::ends::{End, ObserveHeld, Why};
use crate::lock::key::LockKey;
use crate::lock::lease::{Lease, Owner, Renewals};
use crate::lock::prefixes::Prefixes;
use crate::lock::slots::Share;
use crate::lock::token::{FencingToken, LeaseToken};

/// The ends that are kept: as many as the dashboard shows.
pub(super) const KEPT_ENDS: usize = 200;

/// The most known leases. Further ones are in no metric of leases, and their ends lack the time that
/// they were held.
pub(super) const MOST: usize = 100_000;

/// The number of known leases from which on expired ones are looked for at a grant, at least.
const FIRST_SEARCH: usize = 20_000;

/// The pause between two searches for expired leases while there are [`MOST`].
const SEARCH_PAUSE: Duration = Duration::from_secs(1);

pub(super) struct History {
    pub(super) prefixes: Prefixes,
    pub(super) observe: ObserveHeld,
    pub(super) known: HashMap<LockKey, SmallVec<[KnownLease; 1]>>,
    /// The number of known leases.
    pub(super) count: usize,
    /// The earliest end first.
    pub(super) ended: VecDeque<End>,
    /// The number of the last end.
    pub(super) last: u64,
    /// A count of grants, renewals and ends.
    pub(super) changes: u64,
    /// The number of known leases at which expired ones are looked for.
    pub(super) search_at: usize,
    pub(super) searched: Option<Instant>,
}

/// A lease that this instance has granted or renewed.
pub(super) struct KnownLease {
    pub(super) token: LeaseToken,
    pub(super) fencing_token: FencingToken,
    pub(super) renewals: Renewals,
    pub(super) owner: Option<Owner>,
    /// The number of its prefix.
    pub(super) prefix: usize,
    /// The moment of the grant and the wait before it, if this instance granted it.
    pub(super) granted: Option<(Instant, Duration)>,
    pub(super) ends_at: Instant,
    /// True if it cannot be renewed beyond that.
    pub(super) capped: bool,
    /// True once the time that it was held was observed.
    pub(super) observed: bool,
    pub(super) share: Share,
}

impl History {
    pub(super) fn new(prefixes: Prefixes, observe: ObserveHeld) -> Self {
        Self {
            prefixes,
            observe,
            known: HashMap::new(),
            count: 0,
            ended: VecDeque::new(),
            last: 0,
            changes: 0,
            search_at: FIRST_SEARCH,
            searched: None,
        }
    }

    pub(super) fn lease(
        &mut self,
        key: &LockKey,
        fencing_token: FencingToken,
    ) -> Option<&mut KnownLease> {
        let known = self.known.get_mut(key)?;
        known.iter_mut().find(|known| known.fencing_token == fencing_token)
    }

    pub(super) fn of_key(&self, key: &LockKey) -> impl Iterator<Item = &KnownLease> {
        self.known.get(key).into_iter().flatten()
    }

    pub(super) fn retain(&mut self, mut which: impl FnMut(&KnownLease) -> bool) {
        self.known.retain(|_, known| {
            known.retain(|one| which(one));
            !known.is_empty()
        });
        self.count = self.known.values().map(SmallVec::len).sum();
    }

    /// Returns whether one more lease may be known, after a search for those that have expired.
    pub(super) fn has_room(&mut self, now: Instant) -> bool {
        let rested = self.searched.is_none_or(|last| now - last >= SEARCH_PAUSE);
        if self.count >= self.search_at && (self.search_at < MOST || rested) {
            self.searched = Some(now);
            self.observe_expired(now);
            self.retain(|known| known.ends_at > now);
            self.search_at = (2 * self.count).clamp(FIRST_SEARCH, MOST);
        }
        self.count < MOST
    }

    /// Observes how long those leases were held whose TTL has passed.
    pub(super) fn observe_expired(&mut self, now: Instant) {
        for known in self.known.values_mut().flatten().filter(|known| known.ends_at <= now) {
            known.observe(&self.prefixes, &self.observe, now, Why::Expired);
        }
    }

    /// Records the ends of some known leases of a key.
    pub(super) fn take_out_all(
        &mut self,
        key: &LockKey,
        at: Instant,
        why: Why,
        which: impl Fn(&KnownLease) -> bool,
    ) {
        let over: SmallVec<[_; 4]> =
            self.of_key(key).filter(|known| which(known)).map(|one| one.fencing_token).collect();
        for number in over {
            self.take_out(key, number, at, why);
        }
    }

    /// Records the end of a known lease, at the end of its TTL at the latest.
    pub(super) fn take_out(&mut self, key: &LockKey, number: FencingToken, at: Instant, why: Why) {
        let Some(of_key) = self.known.get_mut(key) else { return };
        let place = of_key.iter().position(|known| known.fencing_token == number);
        let Some(mut known) = place.map(|place| of_key.remove(place)) else { return };
        self.count -= 1;
        if of_key.is_empty() {
            self.known.remove(key);
        }
        known.observe(&self.prefixes, &self.observe, at, why);
        let at = at.min(known.ends_at);
        let why = if known.capped && why == Why::Expired { Why::MaxHold } else { why };
        self.push(End {
            number: 0,
            at,
            key: key.clone(),
            owner: known.owner,
            fencing_token: Some(known.fencing_token),
            held: known.granted.map(|(since, _)| at.saturating_duration_since(since)),
            waited: known.granted.map(|(_, waited)| waited),
            why,
        });
    }

    pub(super) fn push(&mut self, end: End) {
        self.last += 1;
        self.changes += 1;
        let place = self.ended.partition_point(|other| other.at <= end.at);
        self.ended.insert(place, End { number: self.last, ..end });
        if self.ended.len() > KEPT_ENDS {
            self.ended.pop_front();
        }
    }
}

impl KnownLease {
    pub(super) fn renew(&mut self, lease: &Lease, ends_at: Instant) {
        self.renewals = self.renewals.max(lease.renewals); // Two answers may cross.
        self.owner.clone_from(&lease.owner);
        (self.ends_at, self.capped, self.share) = (ends_at, lease.capped, lease.share);
    }

    /// Observes once how long it was held, if this instance granted it.
    pub(super) fn observe(
        &mut self,
        prefixes: &Prefixes,
        observe: &ObserveHeld,
        at: Instant,
        why: Why,
    ) {
        let Some((since, _)) = self.granted.filter(|_| !self.observed) else { return };
        self.observed = true;
        let why = match why {
            Why::Expired | Why::Lost if self.capped => Why::MaxHold,
            Why::Lost => Why::Expired,
            why => why,
        };
        let prefix = prefixes.names().nth(self.prefix).unwrap_or_default();
        observe(prefix, why, at.min(self.ends_at).saturating_duration_since(since));
    }
}
