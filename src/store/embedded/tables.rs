//! The tables in the file: the leases, their shares, and the numbers beside them.
//!
//! Rows are by fencing token, so that new leases are neighbours. A change needs a new number of the
//! format.

use redb::{
    AccessGuard, Database, ReadTransaction, ReadableDatabase, ReadableTable, TableDefinition,
    WriteTransaction,
};

use crate::lock::key::LockKey;
use crate::lock::table::Entry;
use crate::lock::token::FencingToken;
use crate::store::embedded::row;
use crate::store::embedded::row::{LeaseRow, ShareRow, Sum};

const LEASES: TableDefinition<'_, u64, LeaseRow> = TableDefinition::new("leases");
const SHARES: TableDefinition<'_, u64, ShareRow> = TableDefinition::new("shares");
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");

/// The format that is written, and the only one that is read.
pub(super) const FORMAT: u64 = 1;

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

type LeaseOfKey = (LockKey, Entry);
type Row<'a> = (AccessGuard<'a, u64>, AccessGuard<'a, LeaseRow>);

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

    /// The same with the sum of the leases.
    fn summed(self, sum: Sum) -> Self {
        let mut summed = Self { format: FORMAT, leases: sum.leases(), checksum: 0, ..self };
        summed.checksum = sum.checksum(summed.rows().map(|(_, number)| number));
        summed
    }

    pub(super) fn fits(&self, sum: Sum) -> bool {
        let expected = self.summed(sum);
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
    write_shares(&transaction, changes)?;
    write_meta(&transaction, meta.summed(sum))?;
    Ok(transaction.commit()?)
}

/// Writes the tables of a new file, without leases.
pub(super) fn write_new(database: &Database) -> Result<(), redb::Error> {
    let transaction = database.begin_write()?;
    transaction.open_table(LEASES)?;
    transaction.open_table(SHARES)?;
    write_meta(&transaction, Meta::default().summed(Sum::default()))?;
    Ok(transaction.commit()?)
}

/// Writes the shares of changed leases; the table is not touched without any.
fn write_shares(transaction: &WriteTransaction, changes: &[Change]) -> Result<(), redb::Error> {
    let share =
        |entry: &Entry| Some((entry.fencing_token.number(), row::encode_share(entry.share)?));
    let shares = changes
        .iter()
        .map(|one| (one.before.as_ref().and_then(share), one.after.as_ref().and_then(share)));
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

/// Reads a database; `None` for a lease that cannot be read. One of another format has no leases.
pub(super) fn contents(
    database: &Database,
) -> Result<(Meta, Vec<Option<LeaseOfKey>>), redb::Error> {
    let transaction = database.begin_read()?;
    let table = transaction.open_table(META)?;
    let number = |name| Ok::<_, redb::Error>(table.get(name)?.map_or(0, |value| value.value()));
    let meta = Meta {
        format: number("format")?,
        commits: number("commits")?,
        clock: number("clock_us")?,
        last_fencing_token: number("last_fencing_token")?,
        leases: number("leases")?,
        checksum: number("checksum")?,
    };
    if meta.format != FORMAT {
        return Ok((meta, Vec::new()));
    }
    let rows = transaction.open_table(LEASES)?;
    let lease = |(number, row): Row<'_>| row::decode(number.value(), row.value());
    let leases = rows.iter()?.map(|row| row.map(lease)).collect::<Result<_, _>>()?;
    Ok((meta, with_shares(leases, &transaction)?))
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
