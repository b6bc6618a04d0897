//! The tables in the file: the leases, their shares, and the numbers beside them.
//!
//! Format 2: format 1, with the number of leases and a checksum over all in `meta`. Format 3: rows
//! by fencing token, so that new leases are neighbours, with the start of each. Format 4: leases that
//! share a key, with another row each. A change needs a new number, a way to read the old ones, and
//! a test with an old file.

use redb::{
    AccessGuard, Database, ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition,
    WriteTransaction,
};

use crate::lock::entry::Entry;
use crate::lock::key::LockKey;
use crate::lock::token::FencingToken;
use crate::store::embedded::row;
use crate::store::embedded::row::{LeaseRow, RowByKey, ShareRow, Sum};

const LEASES: TableDefinition<'_, u64, LeaseRow> = TableDefinition::new("leases_by_number");
const SHARES: TableDefinition<'_, u64, ShareRow> = TableDefinition::new("shares");
/// The leases of formats 1 and 2. Empty now, and kept for older versions: they read it before they
/// see that the format is newer.
const LEASES_BY_KEY: TableDefinition<'_, &str, RowByKey> = TableDefinition::new("leases");
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");

pub(super) const FORMAT: u64 = 4;
/// The first format with the number of leases and their checksum.
pub(super) const SUMMED: u64 = 2;
/// The first format with rows by fencing token.
pub(super) const BY_NUMBER: u64 = 3;
/// The first format with several leases of a key.
const SHARED: u64 = 4;

/// A lease that began, changed or ended.
pub(super) struct Change {
    pub(super) key: LockKey,
    /// The row on disk.
    pub(super) before: Option<Entry>,
    /// The new row.
    pub(super) after: Option<Entry>,
}

/// The numbers in a file beside the leases.
#[derive(Clone, Copy, Default)]
pub(super) struct Meta {
    pub(super) format: u64,
    pub(super) commits: u64,
    pub(super) clock: u64,
    pub(super) last_fencing_token: u64,
    pub(super) leases: u64,
    pub(super) checksum: u64,
}

pub(super) type LeaseOfKey = (LockKey, Entry);
type Row<'a, K, V> = (AccessGuard<'a, K>, AccessGuard<'a, V>);

impl Meta {
    /// The rows of the file. The checksum is the last, and covers all others.
    fn rows(&self) -> [(&'static str, u64); 6] {
        [
            ("format", self.format),
            ("commits", self.commits),
            ("clock_us", self.clock),
            ("last_fencing_token", self.last_fencing_token),
            ("leases", self.leases),
            ("checksum", self.checksum),
        ]
    }

    /// The same with the sum of the leases, in the newest format.
    fn summed(self, sum: Sum) -> Self {
        Self { format: FORMAT, ..self }.with_sum(sum)
    }

    /// The same with the sum of the leases, in its own format, which the checksum covers.
    fn with_sum(self, sum: Sum) -> Self {
        let mut summed = Self { leases: sum.leases(), checksum: 0, ..self };
        summed.checksum = sum.checksum(summed.rows().map(|(_, number)| number));
        summed
    }

    pub(super) fn fits(&self, sum: Sum) -> bool {
        let expected = self.with_sum(sum);
        (expected.leases, expected.checksum) == (self.leases, self.checksum)
    }
}

pub(super) fn write(
    database: &Database,
    meta: Meta,
    sum: Sum,
    changes: &[Change],
) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    {
        let mut leases = transaction.open_table(LEASES)?;
        for Change { key, before, after } in changes {
            match (before, after) {
                (_, Some(after)) => {
                    _ = leases.insert(after.fencing_token.number(), row::encode(key, after))?;
                }
                (Some(ended), None) => _ = leases.remove(ended.fencing_token.number())?,
                (None, None) => (),
            }
        }
    }
    write_shares(
        &transaction,
        changes.iter().map(|one| (one.before.as_ref(), one.after.as_ref())),
    )?;
    write_meta(&transaction, meta.summed(sum))?;
    Ok(transaction.commit()?)
}

/// Writes all leases in the newest format, whatever the format was.
pub(super) fn write_anew(
    database: &Database,
    meta: Meta,
    sum: Sum,
    all: &[LeaseOfKey],
) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    {
        transaction.open_table(LEASES_BY_KEY)?.retain(|_, _| false)?;
        let mut leases = transaction.open_table(LEASES)?;
        leases.retain(|_, _| false)?;
        for (key, entry) in all {
            leases.insert(entry.fencing_token.number(), row::encode(key, entry))?;
        }
        transaction.open_table(SHARES)?.retain(|_, _| false)?;
    }
    write_shares(&transaction, all.iter().map(|(_, entry)| (None, Some(entry))))?;
    write_meta(&transaction, meta.summed(sum))?;
    Ok(transaction.commit()?)
}

/// Writes the shares of changed leases; the table is not touched without any.
fn write_shares<'a>(
    transaction: &WriteTransaction,
    changes: impl Iterator<Item = (Option<&'a Entry>, Option<&'a Entry>)>,
) -> Result<(), redb::Error> {
    let share =
        |entry: &Entry| Some((entry.fencing_token.number(), row::encode_share(entry.share)?));
    let shares = changes.map(|(before, after)| (before.and_then(share), after.and_then(share)));
    let mut changed = shares.filter(|(before, after)| before != after).peekable();
    if changed.peek().is_none() {
        return Ok(());
    }
    let mut table = transaction.open_table(SHARES)?;
    for change in changed {
        match change {
            (_, Some((number, share))) => _ = table.insert(number, share)?,
            (Some((number, _)), None) => _ = table.remove(number)?,
            (None, None) => (),
        }
    }
    Ok(())
}

fn write_meta(transaction: &WriteTransaction, meta: Meta) -> Result<(), redb::Error> {
    let mut table = transaction.open_table(META)?;
    for (name, number) in meta.rows() {
        table.insert(name, number)?;
    }
    Ok(())
}

/// Reads a database; `None` for a lease that cannot be read.
pub(super) fn contents(
    database: &Database,
) -> Result<(Meta, Vec<Option<LeaseOfKey>>), redb::Error> {
    let transaction = database.begin_read()?;
    let table = match transaction.open_table(META) {
        // An old version was killed before its first commit.
        Err(redb::TableError::TableDoesNotExist(_)) => return Ok((Meta::default(), Vec::new())),
        table => table?,
    };
    let number = |name| Ok::<_, redb::Error>(table.get(name)?.map_or(0, |value| value.value()));
    let meta = Meta {
        format: number("format")?,
        commits: number("commits")?,
        clock: number("clock_us")?,
        last_fencing_token: number("last_fencing_token")?,
        leases: number("leases")?,
        checksum: number("checksum")?,
    };
    let leases: Vec<_> = match meta.format {
        newer if newer > FORMAT => Vec::new(),
        BY_NUMBER.. => {
            let rows = transaction.open_table(LEASES)?;
            let lease =
                |(number, row): Row<'_, u64, LeaseRow>| row::decode(number.value(), row.value());
            let leases = rows.iter()?.map(|row| row.map(lease)).collect::<Result<_, _>>()?;
            if meta.format < SHARED { leases } else { with_shares(leases, &transaction)? }
        }
        _ => {
            let rows = transaction.open_table(LEASES_BY_KEY)?;
            let lease =
                |(key, row): Row<'_, &str, RowByKey>| row::decode_by_key(key.value(), row.value());
            rows.iter()?.map(|row| row.map(lease)).collect::<Result<_, _>>()?
        }
    };
    Ok((meta, leases))
}

/// The same leases with their shares; `None` for one whose share is of no lease or cannot be read.
fn with_shares(
    mut leases: Vec<Option<LeaseOfKey>>,
    transaction: &ReadTransaction,
) -> Result<Vec<Option<LeaseOfKey>>, redb::Error> {
    for row in transaction.open_table(SHARES)?.iter()? {
        let (number, share) = row?;
        let number = FencingToken::from_number(number.value());
        // The rows of both tables are in the order of their numbers.
        let at = leases.binary_search_by_key(&number, |lease| {
            lease.as_ref().map(|(_, entry)| entry.fencing_token)
        });
        let lease = at.ok().and_then(|at| leases[at].as_mut());
        match (lease, row::decode_share(share.value())) {
            (Some((_, entry)), Some(share)) => entry.share = share,
            _ => leases.push(None),
        }
    }
    Ok(leases)
}
