//! The use of each API key in this instance: leases, and requests that wait, stream or list.
//!
//! A lease is counted from its request until its release or the end of its TTL; releases through
//! other instances are not seen. If a client disconnects before its answer, its lease is unsure; it
//! is looked up only when the API key has no room left. Without API keys nothing is counted.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::api::error::ApiError;
use crate::auth::{Caller, CallerName};
use crate::lock::error::{Effect, LockError, StoreError};
use crate::lock::key::LockKey;
use crate::lock::lease::{Claim, Lease, Origin};
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
    leases: HashMap<LockKey, Tally>,
    ends: BTreeSet<(Instant, LockKey)>,
    /// A number for each count of a lease, to tell counts apart.
    stamps: u64,
}

#[derive(Debug, Default)]
struct Used {
    leases: usize,
    asked: usize,
    requests: [usize; 4],
}

#[derive(Debug)]
struct Tally {
    caller: CallerName,
    fencing_token: Option<FencingToken>,
    ends: Instant,
    stamp: u64,
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
pub(super) struct CountedLease(Option<(Arc<Quotas>, LockKey, u64)>);

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
    pub fn found(
        &self,
        caller: CallerName,
        key: LockKey,
        number: Option<FencingToken>,
        left: Duration,
    ) {
        self.with(|state| state.count(caller, key, number, Instant::now() + left));
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
            let again = state.leases.get(&claim.key).is_some_and(|one| one.caller == *name);
            let used = state.used.entry(name.clone()).or_default();
            // The holder of the key may acquire it again.
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

    /// Notes that a lease lasts for `left` more.
    pub(super) fn extended(&self, key: &LockKey, left: Duration) {
        self.with(|state| state.extend(key, Instant::now() + left));
    }

    /// Notes that the lease of this number, or an earlier one, has ended.
    pub(super) fn ended(&self, key: &LockKey, number: Option<FencingToken>) {
        self.with(|state| {
            // A later lease of the key may have been counted meanwhile.
            if state.leases.get(key).is_some_and(|one| one.fencing_token <= number) {
                state.forget(key);
            }
        });
    }

    /// Notes that an unsure lease does not exist.
    pub(super) fn is_not_there(&self, key: &LockKey, token: &LeaseToken) {
        self.with(|state| {
            let unsure = state.leases.get(key).and_then(|one| one.unsure.as_ref());
            if unsure.is_some_and(|(of, _)| of == token) {
                state.forget(key);
            }
        });
    }

    fn with<T>(&self, use_it: impl FnOnce(&mut Usage) -> T) -> T {
        use_it(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Usage {
    fn count(
        &mut self,
        caller: CallerName,
        key: LockKey,
        number: Option<FencingToken>,
        ends: Instant,
    ) -> u64 {
        self.forget(&key);
        self.stamps += 1;
        self.used.entry(caller.clone()).or_default().leases += 1;
        self.ends.insert((ends, key.clone()));
        let stamp = self.stamps;
        let one = Tally { caller, fencing_token: number, ends, stamp, unsure: None };
        self.leases.insert(key, one);
        stamp
    }

    fn extend(&mut self, key: &LockKey, ends: Instant) {
        if let Some(one) = self.leases.get_mut(key) {
            self.ends.remove(&(one.ends, key.clone()));
            (one.ends, one.unsure) = (ends, None);
            self.ends.insert((ends, key.clone()));
        }
    }

    fn forget(&mut self, key: &LockKey) {
        let Some(one) = self.leases.remove(key) else { return };
        self.ends.remove(&(one.ends, key.clone()));
        if let Some(used) = self.used.get_mut(&one.caller) {
            used.leases -= 1;
        }
    }

    fn expire(&mut self, now: Instant) {
        while let Some((ends, key)) = self.ends.first().cloned()
            && ends <= now
        {
            self.forget(&key);
        }
    }

    fn answered(&mut self, caller: &CallerName) {
        if let Some(used) = self.used.get_mut(caller) {
            used.asked -= 1;
        }
    }

    fn unsure(&self, caller: &CallerName, now: Instant) -> Vec<(LockKey, LeaseToken)> {
        let own = self.leases.iter().filter(|(_, one)| one.caller == *caller);
        let unsure = own.filter_map(|(key, one)| {
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
        let (number, ends) = (Some(lease.fencing_token), Instant::now() + lease.ttl.as_duration());
        let stamp = quotas.with(|state| {
            state.answered(&caller);
            // Another request may have been told of a later lease of the key first.
            let late = state.leases.get(&claim.key).is_some_and(|one| one.fencing_token > number);
            (!late).then(|| state.count(caller, claim.key.clone(), number, ends))
        });
        CountedLease(stamp.map(|stamp| (quotas, claim.key, stamp)))
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
            if claim.origin == Origin::Client && !state.leases.contains_key(&claim.key) {
                state.count(caller, claim.key.clone(), None, ends);
                if let Some(one) = state.leases.get_mut(&claim.key) {
                    one.unsure = Some((claim.token, known_from));
                }
            }
        });
    }
}

impl CountedLease {
    /// Ends the lease now or after `linger`, unless it was granted again meanwhile.
    pub(super) fn let_go(&self, linger: Option<Duration>) {
        let Some((quotas, key, stamp)) = &self.0 else { return };
        quotas.with(|state| match (state.leases.get(key), linger) {
            (Some(one), None) if one.stamp == *stamp => state.forget(key),
            (Some(one), Some(linger)) if one.stamp == *stamp => {
                state.extend(key, Instant::now() + linger);
            }
            _ => (),
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
