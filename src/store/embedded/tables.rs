//! The tables in the database: the leases, and the numbers beside them.
//!
//! Rows are by fencing token, so that new leases are neighbours. A change of the tables, or of what
//! their columns mean, needs a new number of the format.

use rusqlite::Connection;

use crate::lock::key::LockKey;
use crate::lock::table::Entry;
use crate::store::embedded::row::{LeaseOfKey, Sum, decode, insert};

/// The format that is written, and the only one that is read. The first one was another file.
pub(super) const FORMAT: u32 = 3;
pub(super) const EARLIER: (&str, u32) = ("locks.redb", 1);

/// What tells the database from those of other programs: `lock`.
pub(super) const APPLICATION: u32 = 0x6c6f_636b;

const SCHEMA: &str = "
CREATE TABLE leases (
  fencing_token INTEGER PRIMARY KEY,
  key TEXT NOT NULL,
  token TEXT NOT NULL,
  owner TEXT,
  since_us INTEGER NOT NULL,
  ttl_ms INTEGER NOT NULL,
  ends_at_us INTEGER NOT NULL,
  state INTEGER NOT NULL,
  slots INTEGER,
  units INTEGER,
  slot INTEGER
) STRICT;
CREATE TABLE numbers (
  commits INTEGER NOT NULL,
  clock_us INTEGER NOT NULL,
  last_fencing_token INTEGER NOT NULL,
  checksum INTEGER NOT NULL
) STRICT;
INSERT INTO numbers VALUES (0, 0, 0, 0);
";

const INSERT: &str = "INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
const DELETE: &str = "DELETE FROM leases WHERE fencing_token = ?";
const LEASES: &str = "SELECT * FROM leases";

const UPDATE: &str = "UPDATE numbers SET
  commits = ?, clock_us = ?, last_fencing_token = ?, checksum = ?";
const NUMBERS: &str = "SELECT commits, clock_us, last_fencing_token, checksum FROM numbers";

/// A lease that began, changed or ended.
pub(super) struct Change {
    pub(super) key: LockKey,
    /// The row on disk.
    pub(super) before: Option<Entry>,
    /// The new row.
    pub(super) after: Option<Entry>,
}

/// The numbers in a database beside the leases.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Meta {
    pub(super) commits: u64,
    pub(super) clock: u64,
    pub(super) last_fencing_token: u64,
    pub(super) checksum: u64,
}

impl Meta {
    /// The same with the sum of the leases, and over all of them.
    pub(super) fn summed(self, sum: Sum) -> Self {
        let checksum = sum.with([self.commits, self.clock, self.last_fencing_token]);
        Self { checksum, ..self }
    }
}

/// Writes the tables of a new database, without leases.
pub(super) fn write_new(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch(SCHEMA)?;
    write_numbers(connection, Meta::default().summed(Sum::default()))?;
    connection.pragma_update(None, "application_id", APPLICATION)?;
    connection.pragma_update(None, "user_version", FORMAT)
}

/// Writes changes, and the numbers with them.
pub(super) fn write(
    connection: &Connection,
    numbers: Meta,
    changes: &[Change],
) -> rusqlite::Result<()> {
    for Change { key, before, after } in changes {
        match (before, after) {
            (_, Some(after)) => insert(&mut *connection.prepare_cached(INSERT)?, key, after)?,
            (Some(ended), None) => {
                let mut delete = connection.prepare_cached(DELETE)?;
                delete.execute([ended.fencing_token.number()])?;
            }
            (None, None) => (),
        }
    }
    write_numbers(connection, numbers)
}

fn write_numbers(connection: &Connection, numbers: Meta) -> rusqlite::Result<()> {
    let Meta { commits, clock, last_fencing_token, checksum } = numbers;
    let mut update = connection.prepare_cached(UPDATE)?;
    update.execute((commits, clock, last_fencing_token, checksum.cast_signed()))?;
    Ok(())
}

/// Reads a database; `None` for a lease that cannot be read.
pub(super) fn contents(
    connection: &Connection,
) -> rusqlite::Result<(Meta, Vec<Option<LeaseOfKey>>)> {
    let numbers = connection.query_row(NUMBERS, [], |row| {
        Ok(Meta {
            commits: row.get(0)?,
            clock: row.get(1)?,
            last_fencing_token: row.get(2)?,
            checksum: row.get::<_, i64>(3)?.cast_unsigned(),
        })
    })?;
    let mut rows = connection.prepare(LEASES)?;
    let leases = rows.query_map([], |row| Ok(decode(row)))?.collect::<Result<_, _>>()?;
    Ok((numbers, leases))
}
