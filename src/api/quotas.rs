//! The quota of each API key in this instance: leases, and requests that wait, stream or list.
//!
//! The claim of a lease carries its permit; the registry of leases keeps it until the lease is over.
//! Without API keys nothing is counted.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use crate::api::error::ApiError;
use crate::auth::{Caller, CallerName};
use crate::lock::permit::{Count, Permit};

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
}

/// The use of all API keys.
#[derive(Debug, Default)]
pub struct Quotas(Mutex<(Quota, HashMap<CallerName, [Count; 4]>)>);

/// What is limited per API key.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Lease,
    Waiter,
    Stream,
    List,
}

impl Quotas {
    /// Starts with nothing used.
    pub fn new(quota: Quota) -> Self {
        Self(Mutex::new((quota, HashMap::new())))
    }

    /// Replaces the quota. What is in use stays counted.
    pub fn replace(&self, quota: Quota) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).0 = quota;
    }

    /// A permit for one more; `None` if nothing is counted for the caller.
    pub(super) fn permit(&self, caller: &Caller, kind: Kind) -> Result<Option<Permit>, ApiError> {
        let Some(name) = caller.counted_as() else { return Ok(None) };
        let (quota, count) = self.of(name, kind);
        let (most, what) = match kind {
            Kind::Lease => (quota.leases, "leases"),
            Kind::Waiter => (quota.waiters, "waiting requests"),
            Kind::Stream => (quota.streams, "streams"),
            Kind::List => (quota.lists, "lists at a time"),
        };
        let permit = count.permit(most).ok_or_else(|| ApiError::quota(what, most))?;
        Ok(Some(permit))
    }

    /// A permit for a lease that is there already, or takes the place of one.
    pub(crate) fn permit_anyway(&self, name: &CallerName) -> Option<Permit> {
        self.leases(name).permit(usize::MAX)
    }

    /// A permit for a request that takes the place of another one.
    pub(super) fn request_anyway(&self, caller: &Caller, kind: Kind) -> Option<Permit> {
        self.of(caller.counted_as()?, kind).1.permit(usize::MAX)
    }

    /// The count of an API key's leases.
    pub(super) fn leases(&self, name: &CallerName) -> Count {
        self.of(name, Kind::Lease).1
    }

    fn of(&self, name: &CallerName, kind: Kind) -> (Quota, Count) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (quota, used) = &mut *state;
        (*quota, used.entry(name.clone()).or_default()[kind as usize].clone())
    }
}
