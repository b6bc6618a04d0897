//! The use of each API key in this instance: leases, and requests that wait, stream or list.
//!
//! A lease is counted from its request until its release or the end of its TTL; releases through
//! other instances are not seen. If a client disconnects before its answer, its lease is unsure; it
//! is looked up only when the API key has no room left, and so is a lease that the claim may have
//! from another instance. Without API keys nothing is counted.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::api::error::ApiError;
use crate::auth::{Caller, CallerName};
use crate::lock::error::{Effect, LockError, StoreError};
use crate::lock::key::LockKey;
use crate::lock::lease::{Claim, Holder, Lease, Origin};
use crate::lock::slots::Share;
use crate::lock::token::{FencingToken, LeaseToken};

/// The most unsure leases that one request looks up before it is refused.
const ASKED_AT_ONCE: usize = 16;

/// The most that one API key may have at a time; nothing by default.
#[derive(Clone, Copy, Debug, Default)]
pub struct Quota {
    /// Leases, with those under way.
    pub leases: usize,
    /// Requests that wait in line.
    pub waiters: usize,
    /// Streams of `POST /hold/{key}`.
    pub streams: usize,
    /// Lists.
    pub lists: usize,
    /// Streams of the dashboard.
    pub dashboards: usize,
    /// The longest time of a call to the store: until then a claim of a disconnected client may
    /// still be granted.
    pub call: Duration,
}

/// The use of all API keys.
#[derive(Debug)]
pub struct Quotas {
    state: Mutex<Usage>,
}

#[derive(Debug, Default)]
struct Usage {
    quota: Quota,
    used: HashMap<CallerName, Used>,
    leases: BTreeMap<CountedAs, Tally>,
    ends: BTreeSet<(Instant, CountedAs)>,
    /// The number of the last count.
    counts: u64,
}

/// A counted lease: its key, and the number of the count.
type CountedAs = (LockKey, u64);

#[derive(Debug, Default)]
struct Used {
    leases: usize,
    asked: usize,
    requests: [usize; 4],
}

#[derive(Debug)]
struct Tally {
    caller: CallerName,
    ends: Instant,
    lease: Counted,
    /// For a lease that may not exist: the time from which the store's answer is final.
    unsure: Option<Instant>,
}

/// A lease as far as its quota knows it.
#[derive(Debug)]
struct Counted {
    /// `None` if it was found at the start.
    token: Option<LeaseToken>,
    /// `None` if it may not exist.
    number: Option<FencingToken>,
    /// True if no other lease can be held beside it.
    is_alone: bool,
}

/// A kind of request that is limited per API key.
#[derive(Clone, Copy, Debug)]
pub(super) enum RequestKind {
    Waiter,
    Stream,
    List,
    Dashboard,
}

/// A request's place in its API key's quota, until dropped.
#[derive(Debug)]
pub(super) struct Slot(Option<(Arc<Quotas>, CallerName, RequestKind)>);

/// A claim's place in its API key's quota, until its outcome is known.
#[derive(Debug)]
pub(super) struct OpenClaim(Option<Open>);

#[derive(Debug)]
struct Open {
    quotas: Arc<Quotas>,
    caller: CallerName,
    claim: Claim,
}

/// A counted lease, as known to the request that was granted it.
#[derive(Debug)]
pub(super) struct CountedLease(Option<(Arc<Quotas>, CountedAs)>);

impl Quotas {
    /// Starts with nothing used.
    pub fn new(quota: Quota) -> Self {
        Self { state: Mutex::new(Usage { quota, ..Usage::default() }) }
    }

    /// Replaces the quota. What is in use stays counted.
    pub fn replace(&self, quota: Quota) {
        self.with(|state| state.quota = quota);
    }

    /// Counts a lease from before this process started.
    pub fn found(&self, caller: CallerName, key: LockKey, holder: &Holder) {
        let Some(left) = holder.left else { return };
        let (number, is_alone) = (holder.fencing_token, holder.share == Share::ALONE);
        let lease = Counted { token: None, number, is_alone };
        let found = Tally { caller, ends: Instant::now() + left, lease, unsure: None };
        self.with(|state| state.count(key, found));
    }

    /// Takes a place for a request.
    pub(super) fn slot(
        self: &Arc<Self>,
        caller: &Caller,
        kind: RequestKind,
    ) -> Result<Slot, ApiError> {
        let Some(name) = caller.counted_as() else { return Ok(Slot(None)) };
        self.with(|state| {
            let (most, what) = match kind {
                RequestKind::Waiter => (state.quota.waiters, "waiting requests"),
                RequestKind::Stream => (state.quota.streams, "streams"),
                RequestKind::List => (state.quota.lists, "lists at a time"),
                RequestKind::Dashboard => (state.quota.dashboards, "dashboards"),
            };
            let used = state.used.entry(name.clone()).or_default();
            let requests = &mut used.requests[kind as usize];
            if *requests >= most {
                return Err(ApiError::quota(what, most));
            }
            *requests += 1;
            Ok(Slot(Some((self.clone(), name.clone(), kind))))
        })
    }

    /// Takes a place for a lease. `Err`: the quota is used up, but these leases may not exist.
    pub(super) fn ask(
        self: &Arc<Self>,
        caller: &Caller,
        claim: &Claim,
    ) -> Result<OpenClaim, Vec<(LockKey, LeaseToken)>> {
        let Some(name) = caller.counted_as() else { return Ok(OpenClaim(None)) };
        self.with(|state| {
            let now = Instant::now();
            state.expire(now);
            let again = state
                .of_key(&claim.key)
                .any(|(_, one)| one.caller == *name && one.lease.makes_way_for(claim));
            let used = state.used.entry(name.clone()).or_default();
            // A holder of the key may acquire it again.
            if used.leases + used.asked >= state.quota.leases && !again {
                return Err(state.unsure(name, now));
            }
            used.asked += 1;
            Ok(self.open(name, claim))
        })
    }

    /// Takes a place for a lease that the claim has by now, also if none is free.
    pub(super) fn ask_again(self: &Arc<Self>, caller: &Caller, claim: &Claim) -> OpenClaim {
        let Some(name) = caller.counted_as() else { return OpenClaim(None) };
        self.with(|state| state.used.entry(name.clone()).or_default().asked += 1);
        self.open(name, claim)
    }

    fn open(self: &Arc<Self>, name: &CallerName, claim: &Claim) -> OpenClaim {
        let (quotas, caller, claim) = (self.clone(), name.clone(), claim.clone());
        OpenClaim(Some(Open { quotas, caller, claim }))
    }

    /// The error of one lease too many.
    pub(super) fn no_lease(&self) -> ApiError {
        ApiError::quota("leases", self.with(|state| state.quota.leases))
    }

    /// Notes that a lease was renewed.
    pub(super) fn extended(&self, lease: &Lease, token: &LeaseToken) {
        let ends = Instant::now() + lease.ttl.as_duration();
        self.with(|state| {
            let is_it = |one: &Counted| match one.number {
                Some(number) => number == lease.fencing_token,
                None => one.token.as_ref() == Some(token),
            };
            let found = state.of_key(&lease.key).find(|(_, one)| is_it(&one.lease));
            if let Some(id) = found.map(|(id, _)| id.clone()) {
                state.extend(&id, ends);
            }
        });
    }

    /// Notes that the lease of `holder` has ended; `token` is its token, if it is known.
    pub(super) fn ended(&self, key: &LockKey, holder: &Holder, token: Option<&LeaseToken>) {
        // A later lease of the key may have been counted meanwhile.
        let is_over = |one: &Counted| match one.number {
            Some(number) => holder.ends(number),
            None => holder.share == Share::ALONE || one.token.as_ref() == token,
        };
        self.with(|state| state.forget_all(key, |one| is_over(&one.lease)));
    }

    /// Notes that an unsure lease does not exist.
    pub(super) fn is_not_there(&self, key: &LockKey, token: &LeaseToken) {
        let is_it = |one: &Tally| one.unsure.is_some() && one.lease.token.as_ref() == Some(token);
        self.with(|state| state.forget_all(key, is_it));
    }

    fn with<T>(&self, use_it: impl FnOnce(&mut Usage) -> T) -> T {
        use_it(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Usage {
    /// Counts a lease. It proves that those are over which could not be held beside it.
    fn count(&mut self, key: LockKey, tally: Tally) -> CountedAs {
        self.forget_all(&key, |one| !tally.lease.may_be_beside(&one.lease));
        self.add(key, tally)
    }

    fn add(&mut self, key: LockKey, tally: Tally) -> CountedAs {
        self.counts += 1;
        self.used.entry(tally.caller.clone()).or_default().leases += 1;
        let id = (key, self.counts);
        self.ends.insert((tally.ends, id.clone()));
        self.leases.insert(id.clone(), tally);
        id
    }

    fn of_key(&self, key: &LockKey) -> impl Iterator<Item = (&CountedAs, &Tally)> {
        self.leases.range((key.clone(), 0)..=(key.clone(), u64::MAX))
    }

    fn extend(&mut self, id: &CountedAs, ends: Instant) {
        if let Some(one) = self.leases.get_mut(id) {
            self.ends.remove(&(one.ends, id.clone()));
            (one.ends, one.unsure) = (ends, None);
            self.ends.insert((ends, id.clone()));
        }
    }

    fn forget(&mut self, id: &CountedAs) {
        let Some(one) = self.leases.remove(id) else { return };
        self.ends.remove(&(one.ends, id.clone()));
        if let Some(used) = self.used.get_mut(&one.caller) {
            used.leases -= 1;
        }
    }

    fn forget_all(&mut self, key: &LockKey, which: impl Fn(&Tally) -> bool) {
        let over = self.of_key(key).filter(|(_, one)| which(one));
        let over: Vec<_> = over.map(|(id, _)| id.clone()).collect();
        over.iter().for_each(|id| self.forget(id));
    }

    fn expire(&mut self, now: Instant) {
        while let Some((ends, id)) = self.ends.first().cloned()
            && ends <= now
        {
            self.forget(&id);
        }
    }

    fn answered(&mut self, caller: &CallerName) {
        if let Some(used) = self.used.get_mut(caller) {
            used.asked -= 1;
        }
    }

    fn unsure(&self, caller: &CallerName, now: Instant) -> Vec<(LockKey, LeaseToken)> {
        let own = self.leases.iter().filter(|(_, one)| one.caller == *caller);
        let unsure = own.filter_map(|((key, _), one)| {
            one.unsure.filter(|known_from| *known_from <= now)?;
            Some((key.clone(), one.lease.token.clone()?))
        });
        unsure.take(ASKED_AT_ONCE).collect()
    }
}

impl Counted {
    /// Returns whether both may be held at once: a token has one lease of a key.
    fn may_be_beside(&self, other: &Self) -> bool {
        let same_number = self.number.is_some() && self.number == other.number;
        let same_token = self.token.is_some() && self.token == other.token;
        !(self.is_alone || other.is_alone || same_number || same_token)
    }

    /// Returns whether this lease is over once the claim has one.
    fn makes_way_for(&self, claim: &Claim) -> bool {
        self.token.as_ref() == Some(&claim.token) || self.is_alone && claim.slots().is_alone()
    }
}

impl OpenClaim {
    /// Notes that the claim was granted this lease.
    pub(super) fn granted(mut self, lease: &Lease) -> CountedLease {
        let Some(Open { quotas, caller, claim }) = self.0.take() else { return CountedLease(None) };
        let ends = Instant::now() + lease.ttl.as_duration();
        let (number, is_alone) = (Some(lease.fencing_token), lease.share == Share::ALONE);
        let lease = Counted { token: Some(claim.token), number, is_alone };
        let id = quotas.with(|state| {
            state.answered(&caller);
            // Another request may have been told of a later lease first.
            let later = |one: &Counted| one.number > lease.number && !lease.may_be_beside(one);
            let late = state.of_key(&claim.key).any(|(_, one)| later(&one.lease));
            (!late).then(|| state.count(claim.key, Tally { caller, ends, lease, unsure: None }))
        });
        CountedLease(id.map(|id| (quotas, id)))
    }

    /// Notes that the claim holds nothing, if the error says so.
    pub(super) fn failed(self, error: &LockError) {
        if !matches!(error, LockError::Store(StoreError { effect: Effect::Unknown, .. })) {
            self.refused();
        }
    }

    /// Notes that the claim holds nothing.
    pub(super) fn refused(mut self) {
        if let Some(Open { quotas, caller, claim }) = self.0.take() {
            quotas.with(|state| state.answered(&caller));
            quotas.is_not_there(&claim.key, &claim.token);
        }
    }
}

impl Drop for OpenClaim {
    /// The outcome is unknown. A grant that reached nobody is taken back; a call without an answer may
    /// have left a lease to a token of the client.
    fn drop(&mut self) {
        let Some(Open { quotas, caller, claim }) = self.0.take() else { return };
        quotas.with(|state| {
            state.answered(&caller);
            let known_from = Instant::now() + state.quota.call;
            let ends = known_from + claim.ttl.as_duration();
            let counted = state.of_key(&claim.key).any(|(_, one)| one.lease.makes_way_for(&claim));
            if claim.origin == Origin::Client && !counted {
                let is_alone = claim.slots().is_alone();
                let lease = Counted { token: Some(claim.token), number: None, is_alone };
                state.add(claim.key, Tally { caller, ends, lease, unsure: Some(known_from) });
            }
        });
    }
}

impl CountedLease {
    /// Notes that the lease lasts for `left` more, unless it was granted again meanwhile.
    pub(super) fn extended(&self, left: Duration) {
        self.change(|state, id| state.extend(id, Instant::now() + left));
    }

    /// Ends the lease now or after `linger`, unless it was granted again meanwhile.
    pub(super) fn let_go(&self, linger: Option<Duration>) {
        match linger {
            Some(linger) => self.extended(linger),
            None => self.change(Usage::forget),
        }
    }

    fn change(&self, change: impl FnOnce(&mut Usage, &CountedAs)) {
        let Some((quotas, id)) = &self.0 else { return };
        quotas.with(|state| change(state, id));
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let Some((quotas, name, kind)) = self.0.take() else { return };
        quotas.with(|state| {
            if let Some(used) = state.used.get_mut(&name) {
                used.requests[kind as usize] -= 1;
            }
        });
    }
}
