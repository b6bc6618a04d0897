//! The known leases, by key and by their ends, and the last ends, within their bounds.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use smallvec::SmallVec;
use tokio::time::Instant;

use crate::lock::key::LockKey;
use crate::lock::lease::Lease;
use crate::lock::leases::{End, ObserveHeld, Why};
use crate::lock::permit::Permit;
use crate::lock::prefixes::Prefixes;
use crate::lock::token::{FencingToken, LeaseToken};

/// The ends that are kept: as many as the dashboard shows.
pub(super) const KEPT_ENDS: usize = 200;

/// The most leases of which the TTL has passed that are kept until a look tells whether they ended.
/// The ends of further ones are in no line of the log.
pub(super) const MOST_OVERDUE: usize = 10_000;

/// The most known leases without a permit. Further ones are in no metric of leases, and their ends
/// lack the time that they were held.
pub(super) const MOST: usize = 100_000;

/// The most TTLs whose end one call notes: many may pass in one moment, and a call does not wait for
/// all of them. The rest counts until the next calls.
const MOST_AT_ONCE: usize = 256;

/// The time after the end of a TTL before a lease is suspected to have expired.
pub(super) const GRACE: Duration = Duration::from_millis(250);

pub(super) struct Known {
    pub(super) prefixes: Prefixes,
    observe: ObserveHeld,
    leases: HashMap<LockKey, SmallVec<[KnownLease; 1]>>,
    /// The leases whose TTL runs, the first to end first.
    pub(super) running: BTreeSet<Due>,
    /// For each prefix the leases that this instance granted and that have not ended, by their
    /// beginnings.
    pub(super) living: Vec<BTreeSet<Due>>,
    /// The leases whose TTL has passed.
    pub(super) overdue: BTreeSet<Due>,
    /// The earliest end first.
    pub(super) ended: VecDeque<End>,
    /// The number of the last end.
    pub(super) last: u64,
    /// A count of grants, renewals and ends.
    pub(super) changes: u64,
    /// The ends that have to be logged.
    pub(super) unlogged: SmallVec<[End; 1]>,
}

/// A moment of a lease, at which it began or its TTL has passed, with its name.
type Due = (Instant, LockKey, FencingToken);

/// A lease that this instance has granted or renewed, or found at its start.
pub(super) struct KnownLease {
    /// The lease as the store last told it.
    pub(super) lease: Lease,
    pub(super) ends_at: Instant,
    /// `None` if it was found at the start.
    pub(super) token: Option<LeaseToken>,
    /// The number of its prefix.
    pub(super) prefix: usize,
    /// The moment of the grant and the wait before it, if this instance granted it.
    pub(super) granted: Option<(Instant, Duration)>,
    /// True once the time that it was held was observed.
    pub(super) observed: bool,
    /// Its part of a quota.
    pub(super) permit: Option<Permit>,
}

impl Known {
    pub(super) fn new(prefixes: Prefixes, observe: ObserveHeld) -> Self {
        let leases = HashMap::new();
        let ended = VecDeque::new();
        let running = BTreeSet::new();
        let overdue = BTreeSet::new();
        let living = prefixes.names().map(|_| BTreeSet::new()).collect();
        Self {
            prefixes,
            observe,
            leases,
            running,
            living,
            overdue,
            ended,
            last: 0,
            changes: 0,
            unlogged: SmallVec::new(),
        }
    }

    pub(super) fn of_key(&self, key: &LockKey) -> impl Iterator<Item = &KnownLease> {
        self.leases.get(key).into_iter().flatten()
    }

    pub(super) fn lease(&self, key: &LockKey, number: FencingToken) -> Option<&KnownLease> {
        self.of_key(key).find(|known| known.number() == number)
    }

    /// Returns true if there is room for a lease without a permit.
    pub(super) fn has_room(&self) -> bool {
        self.running.len() < MOST
    }

    /// Makes a lease known, if there is room.
    pub(super) fn insert(&mut self, known: KnownLease) {
        if !self.has_room() && known.permit.is_none() {
            return;
        }
        let key = known.lease.key.clone();
        self.running.insert((known.ends_at, key.clone(), known.number()));
        if let Some(began) = known.began() {
            self.living[known.prefix].insert(began);
        }
        self.leases.entry(key).or_default().push(known);
    }

    /// Takes out a lease, without an end.
    pub(super) fn remove(&mut self, key: &LockKey, number: FencingToken) -> Option<KnownLease> {
        let of_key = self.leases.get_mut(key)?;
        let place = of_key.iter().position(|known| known.number() == number)?;
        let lease = of_key.remove(place);
        if of_key.is_empty() {
            self.leases.remove(key);
        }
        if let Some(began) = lease.began() {
            self.living[lease.prefix].remove(&began);
        }
        let due = (lease.ends_at, key.clone(), number);
        let _ = self.running.remove(&due) || self.overdue.remove(&due);
        Some(lease)
    }

    /// Changes a lease, if it is known. Its TTL runs again.
    pub(super) fn change(
        &mut self,
        key: &LockKey,
        number: FencingToken,
        change: impl FnOnce(&mut KnownLease),
    ) {
        if let Some(mut lease) = self.remove(key, number) {
            change(&mut lease);
            self.insert(lease);
        }
    }

    /// Notes which TTLs have passed, for this reason unless another is known: these leases count no
    /// more, though one of them may have been renewed elsewhere. The oldest are forgotten.
    pub(super) fn expire(&mut self, now: Instant, why: Why) {
        for _ in 0..MOST_AT_ONCE {
            let due = self.running.first().filter(|(ends_at, ..)| *ends_at <= now).cloned();
            let Some(due) = due else { return };
            self.running.remove(&due);
            let (_, key, number) = &due;
            let of_key = self.leases.get_mut(key).into_iter().flatten();
            for lease in of_key.filter(|known| known.number() == *number) {
                lease.permit = None;
                if let Some(began) = lease.began() {
                    self.living[lease.prefix].remove(&began);
                }
                lease.observe(&self.prefixes, &self.observe, now, why);
            }
            self.overdue.insert(due);
            if self.overdue.len() > MOST_OVERDUE
                && let Some((_, key, number)) = self.overdue.first().cloned()
            {
                self.remove(&key, number);
            }
        }
    }

    /// Records the ends of some leases of a key.
    pub(super) fn end_all(
        &mut self,
        key: &LockKey,
        at: Instant,
        why: Why,
        which: impl Fn(&KnownLease) -> bool,
    ) {
        let over: SmallVec<[_; 4]> =
            self.of_key(key).filter(|known| which(known)).map(KnownLease::number).collect();
        for number in over {
            self.end(key, number, at, why);
        }
    }

    /// Records the end of a lease, at the end of its TTL at the latest.
    pub(super) fn end(&mut self, key: &LockKey, number: FencingToken, at: Instant, why: Why) {
        let Some(mut known) = self.remove(key, number) else { return };
        known.observe(&self.prefixes, &self.observe, at, why);
        self.record(known.end(at, why));
    }

    /// Records an end under the next number.
    pub(super) fn record(&mut self, end: End) {
        self.last += 1;
        self.changes += 1;
        self.unlogged.push(end.clone());
        let place = self.ended.partition_point(|other| other.at <= end.at);
        self.ended.insert(place, End { number: self.last, ..end });
        if self.ended.len() > KEPT_ENDS {
            self.ended.pop_front();
        }
    }
}

impl KnownLease {
    /// A lease that this instance hears of now.
    pub(super) fn new(lease: Lease, now: Instant, prefixes: &Prefixes) -> Self {
        let ends_at = now + lease.ttl.as_duration();
        let prefix = prefixes.of(&lease.key);
        Self { lease, ends_at, token: None, prefix, granted: None, observed: false, permit: None }
    }

    pub(super) fn number(&self) -> FencingToken {
        self.lease.fencing_token
    }

    /// Its end, at the end of its TTL at the latest.
    pub(super) fn end(&self, at: Instant, why: Why) -> End {
        let at = at.min(self.ends_at);
        let why = if self.lease.capped && why == Why::Expired { Why::MaxHold } else { why };
        let seen = self.granted.filter(|_| why != Why::Elsewhere);
        End {
            number: 0,
            at,
            key: self.lease.key.clone(),
            owner: self.lease.owner.clone(),
            fencing_token: Some(self.number()),
            held: seen.map(|(since, _)| at.saturating_duration_since(since)),
            waited: self.granted.map(|(_, waited)| waited),
            why,
        }
    }

    /// Its beginning, if this instance granted it and it has not ended.
    fn began(&self) -> Option<Due> {
        let (since, _) = self.granted.filter(|_| !self.observed)?;
        Some((since, self.lease.key.clone(), self.number()))
    }

    pub(super) fn renew(&mut self, lease: &Lease, now: Instant) {
        (self.lease, self.ends_at) = (lease.clone(), now + lease.ttl.as_duration());
    }

    /// Observes once how long it was held, if this instance granted it and knows how it ended. One
    /// that could not be renewed any more is taken to have lasted to its end.
    fn observe(&mut self, prefixes: &Prefixes, observe: &ObserveHeld, at: Instant, why: Why) {
        let Some((since, _)) = self.granted.filter(|_| !self.observed) else { return };
        let why = match why {
            Why::Expired | Why::Elsewhere if self.lease.capped => Why::MaxHold,
            Why::Elsewhere => return,
            why => why,
        };
        self.observed = true;
        let prefix = prefixes.names().nth(self.prefix).unwrap_or_default();
        observe(prefix, why, at.min(self.ends_at).saturating_duration_since(since));
    }
}
