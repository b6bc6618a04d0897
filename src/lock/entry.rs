//! A held key in the table and in the embedded store.

use std::time::Duration;

use crate::lock::lease::{Holder, Owner, Renewals};
use crate::lock::slots::Share;
use crate::lock::time::{Timestamp, Ttl};
use crate::lock::token::{FencingToken, LeaseToken};

/// A lease in the table; expired once `ends_at` has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The holder's secret.
    pub token: LeaseToken,
    /// The holder's label.
    pub owner: Option<Owner>,
    /// The fencing token.
    pub fencing_token: FencingToken,
    /// The moment at which the lease began.
    pub since: Timestamp,
    /// The TTL by which the end was last set.
    pub ttl: Ttl,
    /// The moment at which the lease expires.
    pub ends_at: Timestamp,
    /// The renewals since the grant, without those by its keeper.
    pub renewals: Renewals,
    /// Its part of the key.
    pub share: Share,
}

impl Entry {
    /// The time left, as its holder is told: the lease may last a little longer.
    pub(super) fn left(&self, now: Timestamp) -> Duration {
        self.ends_at.left(now).min(self.ttl.as_duration())
    }

    /// The public view of the holder.
    pub(super) fn holder(&self, now: Timestamp) -> Holder {
        Holder {
            owner: self.owner.clone(),
            fencing_token: Some(self.fencing_token),
            left: Some(self.left(now)),
            held: Some(now.left(self.since)),
            share: self.share,
        }
    }
}
