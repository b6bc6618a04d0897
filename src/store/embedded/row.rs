//! The row of a lease in the database, and the sum over all rows.

use redb::Value;
use sha2::{Digest, Sha256};

use crate::lock::key::LockKey;
use crate::lock::lease::{Owner, State};
use crate::lock::slots::{Share, Slots};
use crate::lock::table::Entry;
use crate::lock::time::{Timestamp, Ttl};
use crate::lock::token::{FencingToken, LeaseToken};

/// By fencing token: key, token, owner (empty if none), start, TTL in milliseconds, end, state.
/// Times are microseconds of the store's clock.
pub(super) type LeaseRow = (&'static str, &'static str, &'static str, u64, u64, u64, u64);

/// By fencing token: the slots of a lease that shares its key, and its slot, 0 for none. Other leases
/// have no such row.
pub(super) type ShareRow = (u16, u16);

/// The row of a lease.
pub(super) fn encode<'a>(key: &'a LockKey, entry: &'a Entry) -> <LeaseRow as Value>::SelfType<'a> {
    (
        key.as_str(),
        entry.token.expose(),
        entry.owner.as_ref().map_or("", Owner::as_str),
        entry.since.as_micros(),
        entry.ttl.as_millis(),
        entry.ends_at.as_micros(),
        entry.state.number(),
    )
}

/// The row of a share; `None` for an exclusive lease.
pub(super) fn encode_share(share: Share) -> Option<ShareRow> {
    (!share.slots.is_alone()).then(|| (share.slots.number(), share.slot.unwrap_or_default()))
}

/// The share of a row; `None` if the row is invalid.
pub(super) fn decode_share((slots, slot): ShareRow) -> Option<Share> {
    let slots = Slots::from_number(slots.into()).filter(|slots| !slots.is_alone())?;
    let slot = (slot > 0).then_some(slot);
    (slot.is_some() == slots.is_numbered()).then_some(Share { slots, slot })
}

/// The lease of a row; `None` if the row is invalid. Its share is in another row.
pub(super) fn decode(
    number: u64,
    (key, token, owner, since, ttl, ends_at, state): <LeaseRow as Value>::SelfType<'_>,
) -> Option<(LockKey, Entry)> {
    let entry = Entry {
        token: LeaseToken::parse(token).ok()?,
        owner: Owner::parse(owner).ok()?,
        fencing_token: FencingToken::from_number(number)?,
        since: Timestamp::from_micros(since),
        ttl: Ttl::from_millis(ttl),
        ends_at: Timestamp::from_micros(ends_at),
        state: State::from_number(state)?,
        share: Share::ALONE,
    };
    Some((LockKey::parse(key).ok()?, entry))
}

/// The number of leases, and a checksum over them in any order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sum {
    leases: u64,
    checksum: u64,
}

impl Sum {
    /// Replaces one state of a lease by another; either may be missing.
    pub(super) fn replace(&mut self, key: &LockKey, before: Option<&Entry>, after: Option<&Entry>) {
        if let Some(before) = before {
            self.leases = self.leases.wrapping_sub(1);
            self.checksum = self.checksum.wrapping_sub(checksum(key, before));
        }
        if let Some(after) = after {
            self.leases = self.leases.wrapping_add(1);
            self.checksum = self.checksum.wrapping_add(checksum(key, after));
        }
    }

    pub(super) fn leases(self) -> u64 {
        self.leases
    }

    /// The checksum over the leases, and over `numbers` in this order.
    pub(super) fn checksum<const N: usize>(self, numbers: [u64; N]) -> u64 {
        let mut hash = Sha256::new();
        for number in numbers {
            hash.update(number.to_le_bytes());
        }
        self.checksum.wrapping_add(first_word(hash))
    }
}

fn checksum(key: &LockKey, entry: &Entry) -> u64 {
    let (key, token, owner, since, ttl, ends_at, state) = encode(key, entry);
    let mut hash = Sha256::new();
    for text in [key, token, owner] {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    }
    for number in [entry.fencing_token.number(), since, ttl, ends_at, state] {
        hash.update(number.to_le_bytes());
    }
    for number in encode_share(entry.share).into_iter().flat_map(|(slots, slot)| [slots, slot]) {
        hash.update(number.to_le_bytes());
    }
    first_word(hash)
}

fn first_word(hash: Sha256) -> u64 {
    hash.finalize().iter().take(8).fold(0, |word, byte| word << 8 | u64::from(*byte))
}
