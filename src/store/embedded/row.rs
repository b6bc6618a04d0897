//! The row of a lease in the database, and the sum over all rows.

use rusqlite::{Row, Statement};
use sha2::{Digest, Sha256};

use crate::lock::key::LockKey;
use crate::lock::lease::{Owner, State};
use crate::lock::slots::{Share, Slots};
use crate::lock::table::Entry;
use crate::lock::time::{Timestamp, Ttl};
use crate::lock::token::{FencingToken, LeaseToken};

/// A lease and its key.
pub(super) type LeaseOfKey = (LockKey, Entry);

/// Writes the row of a lease with this statement. Times are microseconds of the store's clock.
pub(super) fn insert(
    statement: &mut Statement<'_>,
    key: &LockKey,
    entry: &Entry,
) -> rusqlite::Result<()> {
    let share = shared(entry.share);
    statement.execute((
        entry.fencing_token.number(),
        key.as_str(),
        entry.token.expose(),
        entry.owner.as_ref().map(Owner::as_str),
        entry.since.as_micros(),
        entry.ttl.as_millis(),
        entry.ends_at.as_micros(),
        entry.state.number(),
        share.map(|share| share.slots.number()),
        share.map(|share| share.units),
        share.and_then(|share| share.slot),
    ))?;
    Ok(())
}

/// The lease of a row; `None` if the row is invalid.
pub(super) fn decode(row: &Row<'_>) -> Option<LeaseOfKey> {
    let text = |column| row.get_ref(column).ok()?.as_str().ok();
    let number = |column| row.get::<_, u64>(column).ok();
    let owner = row.get_ref("owner").ok()?.as_str_or_null().ok()?;
    let entry = Entry {
        token: LeaseToken::parse(text("token")?).ok()?,
        owner: owner.map_or(Ok(None), Owner::parse).ok()?,
        fencing_token: FencingToken::from_number(number("fencing_token")?)?,
        since: Timestamp::from_micros(number("since_us")?),
        ttl: Ttl::from_millis(number("ttl_ms")?),
        ends_at: Timestamp::from_micros(number("ends_at_us")?),
        state: State::from_number(number("state")?)?,
        share: share(row.get("slots").ok()?, row.get("units").ok()?, row.get("slot").ok()?)?,
    };
    Some((LockKey::parse(text("key")?).ok()?, entry))
}

/// The share of a lease, if it shares its key.
fn shared(share: Share) -> Option<Share> {
    (!share.slots.is_alone()).then_some(share)
}

/// The share with these columns; `None` if they are invalid.
fn share(slots: Option<u16>, units: Option<u16>, slot: Option<u16>) -> Option<Share> {
    let slots = slots.map_or(Some(Slots::ALONE), |slots| Slots::from_number(slots.into()))?;
    let share = Share { slots, units: units.unwrap_or(1), slot };
    let is_valid = slots.has(share.units) && units.is_some() != slots.is_alone();
    (is_valid && slot.is_some() == share.is_numbered() && slot != Some(0)).then_some(share)
}

/// A checksum over leases in any order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sum(u64);

impl Sum {
    /// Replaces one state of a lease by another; either may be missing.
    pub(super) fn replace(&mut self, key: &LockKey, before: Option<&Entry>, after: Option<&Entry>) {
        let of = |entry: Option<&Entry>| entry.map_or(0, |entry| checksum(key, entry));
        self.0 = self.0.wrapping_sub(of(before)).wrapping_add(of(after));
    }

    /// The checksum over the leases, and over `numbers` in this order.
    pub(super) fn with<const N: usize>(self, numbers: [u64; N]) -> u64 {
        let mut hash = Sha256::new();
        for number in numbers {
            hash.update(number.to_le_bytes());
        }
        self.0.wrapping_add(first_word(hash))
    }
}

fn checksum(key: &LockKey, entry: &Entry) -> u64 {
    let owner = entry.owner.as_ref().map_or("", Owner::as_str);
    let mut hash = Sha256::new();
    for text in [key.as_str(), entry.token.expose(), owner] {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text);
    }
    let times = [entry.since.as_micros(), entry.ttl.as_millis(), entry.ends_at.as_micros()];
    let rest = [entry.fencing_token.number(), entry.state.number()];
    let share = shared(entry.share);
    let share = share.map(|one| [one.slots.number(), one.units, one.slot.unwrap_or_default()]);
    let share = share.into_iter().flatten().map(u64::from);
    for number in times.into_iter().chain(rest).chain(share) {
        hash.update(number.to_le_bytes());
    }
    first_word(hash)
}

fn first_word(hash: Sha256) -> u64 {
    hash.finalize().iter().take(8).fold(0, |word, byte| word << 8 | u64::from(*byte))
}
