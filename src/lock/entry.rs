//! A held key as the table knows it and the embedded store keeps it.

use crate::lock::lease::{Holder, Owner, Renewals};
use crate::lock::time::{Timestamp, Ttl};
use crate::lock::token::{FencingToken, LeaseToken};

/// What the table knows of a held key; over once `ends_at` has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The holder's secret.
    pub token: LeaseToken,
    /// Who the holder is.
    pub owner: Option<Owner>,
    /// The number of the lease.
    pub fencing_token: FencingToken,
    /// The TTL last asked for.
    pub ttl: Ttl,
    /// When the lease is over.
    pub ends_at: Timestamp,
    /// How often others than its keeper have renewed it since the grant.
    pub renewals: Renewals,
}

impl Entry {
    /// Whether this is the lease of `token`; of the one with that fencing token, if one is named.
    pub(super) fn is_lease_of(&self, token: &LeaseToken, named: Option<FencingToken>) -> bool {
        self.token == *token && named.is_none_or(|named| named == self.fencing_token)
    }

    /// Who holds the key, as others may know it.
    pub(super) fn holder(&self, now: Timestamp) -> Holder {
        Holder {
            owner: self.owner.clone(),
            fencing_token: Some(self.fencing_token),
            // It may last a little longer than anybody is told.
            left: Some(self.ends_at.left(now).min(self.ttl.as_duration())),
        }
    }
}
