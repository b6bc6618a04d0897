//! The row of a lease in the database, and the sum over all rows.

use sha2::{Digest, Sha256};

use crate::lock::entry::Entry;
use crate::lock::key::LockKey;
use crate::lock::lease::{Owner, Renewals};
use crate::lock::time::{Timestamp, Ttl};
use crate::lock::token::{FencingToken, LeaseToken};

/// Token, label, fencing token, TTL in milliseconds, end in microseconds of the store's clock,
/// renewals.
///
/// The label is the owner (empty if none) and, from format 3 on, a line feed, which no owner has,
/// and the start of the lease in microseconds. So all formats have rows of one type, and an older
/// version can open a newer file far enough to say so.
pub(super) type LeaseRow = (&'static str, &'static str, u64, u64, u64, u64);

/// More renewals than a lease can have.
const MAX_RENEWALS: u64 = 1 << 62;

/// The label of a lease's row.
pub(super) fn label(entry: &Entry) -> String {
    let owner = entry.owner.as_ref().map_or("", Owner::as_str);
    entry.since.map_or_else(|| owner.to_owned(), |at| format!("{owner}\n{}", at.as_micros()))
}

/// The row of a lease with this label.
pub(super) fn encode<'a>(
    entry: &'a Entry,
    label: &'a str,
) -> (&'a str, &'a str, u64, u64, u64, u64) {
    (
        entry.token.expose(),
        label,
        entry.fencing_token.number(),
        entry.ttl.as_millis(),
        entry.ends_at.as_micros(),
        entry.renewals.number(),
    )
}

/// The lease of a row; `None` if the row is invalid.
pub(super) fn decode(key: &str, row: (&str, &str, u64, u64, u64, u64)) -> Option<(LockKey, Entry)> {
    let (token, label, fencing_token, ttl, ends_at, renewals) = row;
    let (owner, since) = match label.split_once('\n') {
        Some((owner, since)) => (owner, Some(Timestamp::from_micros(since.parse().ok()?))),
        None => (label, None),
    };
    let entry = Entry {
        token: LeaseToken::parse(token).ok()?,
        owner: Owner::parse(owner).ok()?,
        fencing_token: FencingToken::from_number(fencing_token)?,
        since,
        ttl: Ttl::from_millis(ttl),
        ends_at: Timestamp::from_micros(ends_at),
        renewals: (renewals < MAX_RENEWALS).then(|| Renewals::from_number(renewals))?,
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
    /// Replaces one lease by another; either may be missing.
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
    let label = label(entry);
    let (token, label, fencing_token, ttl, ends_at, renewals) = encode(entry, &label);
    let mut hash = Sha256::new();
    for text in [key.as_str(), token, label] {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    }
    for number in [fencing_token, ttl, ends_at, renewals] {
        hash.update(number.to_le_bytes());
    }
    first_word(hash)
}

fn first_word(hash: Sha256) -> u64 {
    hash.finalize().iter().take(8).fold(0, |word, byte| word << 8 | u64::from(*byte))
}
