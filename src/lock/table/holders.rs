//! The leases of one key in the table, in the order of their fencing tokens. Pure, as the table is.

use std::time::Duration;

use smallvec::SmallVec;

use crate::lock::lease::{Holder, Owner, Sharers, State};
use crate::lock::slots::{Share, Slots};
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
    /// Whether a stream keeps it, or its client was heard of.
    pub state: State,
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

/// The leases of a held key: nearly always one, which needs no memory of its own.
pub(crate) type Holders = SmallVec<[Entry; 1]>;

/// Returns true if all leases that would then hold the key, the token's of this share and the
/// others, allow the units of all.
pub(super) fn room(leases: &[Entry], token: &LeaseToken, share: Share) -> bool {
    let mut units = u64::from(share.units);
    let mut least = share.slots;
    for other in leases.iter().filter(|entry| entry.token != *token) {
        (units, least) = (units + u64::from(other.share.units), least.min(other.share.slots));
    }
    least.allows(units)
}

/// The share of a new lease: if it has one unit of a semaphore, it gets the lowest slot that is
/// free.
pub(super) fn numbered(leases: &[Entry], share: Share) -> Share {
    let lowest_free = || {
        let mut taken: Vec<_> = leases.iter().filter_map(|entry| entry.share.slot).collect();
        taken.sort_unstable();
        (1..).zip(&taken).take_while(|(slot, taken)| slot == *taken).count() as u16 + 1
    };
    Share { slot: share.is_numbered().then(lowest_free), ..share }
}

/// The lease whose end makes room for a claim with `slots`: the first to end if it shares, else the
/// last.
pub(super) fn makes_room(leases: &[Entry], slots: Slots) -> Option<&Entry> {
    match slots.is_alone() {
        true => leases.iter().max_by_key(|entry| entry.ends_at),
        false => leases.iter().min_by_key(|entry| entry.ends_at),
    }
}

/// The holder that a look sees: the one in question, an exclusive one, or of several only the time
/// until the last is over.
pub(super) fn seen<'a>(
    leases: impl Iterator<Item = &'a Entry>,
    own: Option<&Entry>,
    now: Timestamp,
) -> Option<Holder> {
    let last = leases.max_by_key(|entry| entry.ends_at)?;
    Some(match own {
        Some(own) => own.holder(now),
        None if last.share.slots.is_alone() => last.holder(now),
        None => Holder { left: last.holder(now).left, ..Holder::default() },
    })
}

/// The leases together, if they share their key.
pub(super) fn sharers<'a>(leases: impl Iterator<Item = &'a Entry>) -> Option<Sharers> {
    let mut all = Sharers { holders: 0, units: 0, slots: Slots::SHARED, leases: Vec::new() };
    for Entry { share, .. } in leases {
        all.holders += 1;
        all.units += u64::from(share.units);
        all.slots = all.slots.min(share.slots);
    }
    (all.holders > 0 && !all.slots.is_alone()).then_some(all)
}
