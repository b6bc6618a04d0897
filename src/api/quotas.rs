//! The use of each API key in this instance: leases, and requests that wait, stream or list.
//!
//! A lease is counted from its request until its release or the end of its TTL; releases through
//! other instances are not seen. If a client disconnects before its answer, its lease is unsure; it
//! is looked up only when the API key has no room left. Without API keys nothing is counted.

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
    /// A number for each count of a lease, to tell counts apart.
    stamps: u64,
}

/// A counted lease: its key, and its fencing token if it is known.
type CountedAs = (LockKey, Option<FencingToken>);

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
    stamp: u64,
    /// The token of a lease that shares its key; `None` for an exclusive one.
    shared_by: Option<LeaseToken>,
    /// For a lease that may not exist: its token, and when the store's answer is final.
    unsure: Option<(LeaseToken, Instant)>,
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
pub(super) struct CountedLease(Option<(Arc<Quotas>, CountedAs, u64)>);

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
        let ends = Instant::now() + left;
        self.with(|state| state.count(caller, (key, holder.fencing_token), None, ends));
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
            let again = state.of_key(&claim.key).any(|(_, one)| {
                let shared_by = one.shared_by.as_ref();
                one.caller == *name && shared_by.is_none_or(|token| *token == claim.token)
            });
            let used = state.used.entry(name.clone()).or_default();
            // A holder of the key may acquire it again.
            if used.leases + used.asked >= state.quota.leases && !again {
                return Err(state.unsure(name, now));
            }
            used.asked += 1;
            let open = Open { quotas: self.clone(), caller: name.clone(), claim: claim.clone() };
            Ok(OpenClaim(Some(open)))
        })
    }

    /// The error of one lease too many.
    pub(super) fn no_lease(&self) -> ApiError {
        ApiError::quota("leases", self.with(|state| state.quota.leases))
    }

    /// Notes that a lease was renewed.
    pub(super) fn extended(&self, lease: &Lease) {
        let ends = Instant::now() + lease.ttl.as_duration();
        self.with(|state| {
            let number = Some(lease.fencing_token);
            let counted = [number, None].map(|number| (lease.key.clone(), number));
            if let Some(id) = counted.iter().find(|id| state.leases.contains_key(id)) {
                state.extend(id, ends);
            }
        });
    }

    /// Notes that the lease of `holder` has ended.
    pub(super) fn ended(&self, key: &LockKey, holder: &Holder) {
        // A later lease of the key may have been counted meanwhile.
        let is_over = |number: Option<FencingToken>| match number {
            Some(number) => holder.ends(number),
            None => holder.share == Share::ALONE,
        };
        self.with(|state| state.forget_all(key, |number, _| is_over(number)));
    }

    /// Notes that an unsure lease does not exist.
    pub(super) fn is_not_there(&self, key: &LockKey, token: &LeaseToken) {
        let is_it = |one: &Tally| one.unsure.as_ref().is_some_and(|(of, _)| of == token);
        self.with(|state| state.forget_all(key, |_, one| is_it(one)));
    }

    fn with<T>(&self, use_it: impl FnOnce(&mut Usage) -> T) -> T {
        use_it(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Usage {
    fn count(
        &mut self,
        caller: CallerName,
        id: CountedAs,
        shared_by: Option<LeaseToken>,
        ends: Instant,
    ) -> u64 {
        // A new lease proves that those are over which could not be held beside it.
        let alone = shared_by.is_none();
        self.forget_all(&id.0, |number, one| number == id.1 || alone || one.shared_by.is_none());
        self.stamps += 1;
        self.used.entry(caller.clone()).or_default().leases += 1;
        self.ends.insert((ends, id.clone()));
        let stamp = self.stamps;
        self.leases.insert(id, Tally { caller, ends, stamp, shared_by, unsure: None });
        stamp
    }

    fn of_key(&self, key: &LockKey) -> impl Iterator<Item = (&CountedAs, &Tally)> {
        self.leases.range((key.clone(), None)..=(key.clone(), Some(FencingToken::MOST)))
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

    fn forget_all(&mut self, key: &LockKey, which: impl Fn(Option<FencingToken>, &Tally) -> bool) {
        let over = self.of_key(key).filter(|((_, number), one)| which(*number, one));
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
            let (token, known_from) = one.unsure.clone()?;
            (known_from <= now).then(|| (key.clone(), token))
        });
        unsure.take(ASKED_AT_ONCE).collect()
    }
}

impl OpenClaim {
    /// Notes that the claim was granted this lease.
    pub(super) fn granted(mut self, lease: &Lease) -> CountedLease {
        let Some(Open { quotas, caller, claim }) = self.0.take() else { return CountedLease(None) };
        let id = (claim.key, Some(lease.fencing_token));
        let ends = Instant::now() + lease.ttl.as_duration();
        let shared_by = (lease.share != Share::ALONE).then_some(claim.token);
        let stamp = quotas.with(|state| {
            state.answered(&caller);
            // Another request may have been told of a later exclusive lease of the key first.
            let later = |((_, number), one): (&CountedAs, &Tally)| {
                *number > id.1 && one.shared_by.is_none()
            };
            let late = state.of_key(&id.0).any(later);
            (!late).then(|| state.count(caller, id.clone(), shared_by, ends))
        });
        CountedLease(stamp.map(|stamp| (quotas, id, stamp)))
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
    /// The outcome is unknown. A grant to a token of the service is undone; one to a token of the
    /// client stays.
    fn drop(&mut self) {
        let Some(Open { quotas, caller, claim }) = self.0.take() else { return };
        quotas.with(|state| {
            state.answered(&caller);
            let known_from = Instant::now() + state.quota.call;
            let ends = known_from + claim.ttl.as_duration();
            let counted = state.of_key(&claim.key).next().is_some();
            if claim.origin == Origin::Client && !counted {
                let id = (claim.key, None);
                state.count(caller, id.clone(), None, ends);
                if let Some(one) = state.leases.get_mut(&id) {
                    one.unsure = Some((claim.token, known_from));
                }
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
        let Some((quotas, id, stamp)) = &self.0 else { return };
        quotas.with(|state| {
            if state.leases.get(id).is_some_and(|one| one.stamp == *stamp) {
                change(state, id);
            }
        });
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
