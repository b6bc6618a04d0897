//! The database: a SQLite file with the leases, the store's clock and the last fencing token.
//! Reading it proves that it is whole, and not older than the last answer.

use std::path::Path;
use std::time::Duration;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_encode};
use rusqlite::ErrorCode::{DatabaseBusy, DiskFull};
use rusqlite::config::DbConfig;
use rusqlite::hooks::Wal;
use rusqlite::{Connection, OpenFlags};

use crate::lock::table::Table;
use crate::lock::time::Timestamp;
use crate::store::embedded::error::LogError;
use crate::store::embedded::home::Home;
use crate::store::embedded::row::{LeaseOfKey, Sum};
use crate::store::embedded::tables::{APPLICATION, Change, FORMAT, Meta};
use crate::store::embedded::tables::{contents, write, write_new};

/// The longest time that another program may keep the database from a commit.
const BUSY: Duration = Duration::from_millis(250);

/// What may stand in the path of a URI.
const PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'/').remove(b'.').remove(b'-').remove(b'_');

/// The pages after which the log is copied into the database: it has 4 MB, and a commit that copies it
/// takes less than 50 ms.
const CHECKPOINT: i32 = 1_000;

/// Every commit is synchronised. No page is read through a mapping, and none is believed unchecked.
const SETTINGS: &str = "
PRAGMA synchronous = FULL;
PRAGMA cache_size = -16384;
PRAGMA mmap_size = 0;
PRAGMA cell_size_check = ON;
PRAGMA trusted_schema = OFF;
";

/// The database and its last commit.
pub(super) struct Log {
    pub(super) home: Home,
    connection: Option<Connection>,
    /// The number of the last commit that is known to be on disk.
    pub(super) commits: u64,
    sum: Sum,
    /// Changes when another connection has written to the database.
    version: i64,
}

impl Log {
    /// Opens or creates the log in `directory`. Returns the leases on disk and the time of the last
    /// commit with it.
    pub(super) fn open(directory: &Path) -> Result<(Self, Table, Timestamp), LogError> {
        let home = Home::take(directory, |path| {
            let begin = || write_new(&connected(path)?);
            begin().map_err(|error| LogError::said(path, error))
        })?;
        let sum = Sum::default();
        let mut log = Self { home, connection: None, commits: 0, sum, version: 0 };
        let (table, clock) = log.read()?;
        log.home.keep_private();
        Ok((log, table, clock))
    }

    /// Writes changes, the highest fencing token and their time. They are safe on disk when it
    /// returns without an error.
    pub(super) fn commit(
        &mut self,
        changes: &[Change],
        last_fencing_token: u64,
        now: Timestamp,
    ) -> Result<(), LogError> {
        let mut sum = self.sum;
        for Change { key, before, after } in changes {
            sum.replace(key, before.as_ref(), after.as_ref());
        }
        let commits = self.commits + 1;
        let clock = now.as_micros();
        let numbers = Meta { commits, clock, last_fencing_token, ..Meta::default() };
        let written = self.write(numbers.summed(sum), changes);
        if !written.map_err(|error| LogError::said(self.home.path(), error))? {
            return Err(LogError::Misplaced(self.home.path().to_owned()));
        }
        (self.commits, self.sum) = (commits, sum);
        // Without this note a damaged file could pass for one that is a commit older.
        if let Err(error) = self.home.note.write(commits) {
            tracing::debug!(%error, "cannot note the number of the last commit");
        }
        Ok(())
    }

    /// Ends with everything in the database. If that fails, its log stays beside it, as after a crash.
    pub(super) fn close(self) {
        let empties = DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE;
        let _ = self.connection.map(|connection| connection.set_db_config(empties, false));
    }

    /// Writes a transaction. Returns false if another program has written to the database.
    fn write(&mut self, numbers: Meta, changes: &[Change]) -> rusqlite::Result<bool> {
        let Some(connection) = &self.connection else { return Ok(false) };
        run(connection, "BEGIN IMMEDIATE")?;
        let is_ours = version(connection).map(|version| version == self.version);
        let written = is_ours.and_then(|is_ours| {
            is_ours.then(|| write(connection, numbers, changes)).transpose()?;
            run(connection, if is_ours { "COMMIT" } else { "ROLLBACK" })?;
            Ok(is_ours)
        });
        // Some failures have taken it back themselves.
        written.inspect_err(|_| _ = run(connection, "ROLLBACK"))
    }

    /// Opens the database and reads it. Fails if it is another file, or has fewer commits than known.
    pub(super) fn read(&mut self) -> Result<(Table, Timestamp), LogError> {
        self.home.settle()?;
        self.connection = None; // Not before: with the last connection, its log may be removed.
        let failed = |error| LogError::said(self.home.path(), error);
        let connection = connected(self.home.database()).map_err(failed)?;
        self.check(&connection).map_err(failed)??;
        let (numbers, leases) = contents(&connection).map_err(failed)?;
        let version = version(&connection).map_err(failed)?;
        let (sum, table) = self.restored(numbers, leases)?;
        let noted = self.home.note.read().ok().flatten();
        let noted = noted.ok_or_else(|| self.damaged("the note beside it cannot be read"))?;
        let is = numbers.commits;
        let was = noted.max(self.commits);
        if is < was {
            return Err(self.damaged(format!("its last commit is {is}, but {was} was answered")));
        }
        self.home.watch()?;
        (self.connection, self.commits, self.sum, self.version) =
            (Some(connection), is, sum, version);
        Ok((table, Timestamp::from_micros(numbers.clock)))
    }

    /// Checks whose database it is and, at the start, all its pages. Later its sum is enough.
    fn check(&self, of: &Connection) -> rusqlite::Result<Result<(), LogError>> {
        let number = |name| of.pragma_query_value(None, name, |row| row.get::<_, u32>(0));
        let application = number("application_id")?;
        let format = number("user_version")?;
        let path = self.home.path().to_owned();
        match (application, format) {
            (APPLICATION, FORMAT) => (),
            (APPLICATION, format) => return Ok(Err(LogError::Format { path, format })),
            _ => return Ok(Err(self.damaged("it is empty, or of another program"))),
        }
        if self.commits == 0 {
            let found: String = of.query_row("PRAGMA quick_check(1)", [], |row| row.get(0))?;
            if found != "ok" {
                return Ok(Err(self.damaged(found)));
            }
        }
        of.pragma_update(None, "journal_mode", "WAL")?;
        Ok(Ok(()))
    }

    fn restored(
        &self,
        numbers: Meta,
        leases: Vec<Option<LeaseOfKey>>,
    ) -> Result<(Sum, Table), LogError> {
        let leases: Option<Vec<_>> = leases.into_iter().collect();
        let leases = leases.ok_or_else(|| self.damaged("a lease cannot be read"))?;
        let mut sum = Sum::default();
        for (key, entry) in &leases {
            sum.replace(key, None, Some(entry));
        }
        if numbers.summed(sum) != numbers {
            return Err(self.damaged("its leases are not those that were written"));
        }
        Ok((sum, Table::restore(leases, numbers.last_fencing_token)))
    }

    fn damaged(&self, what: impl Into<String>) -> LogError {
        LogError::Damaged { path: self.home.path().to_owned(), what: what.into() }
    }
}

/// Opens a database that is there. `psow=0`: no commit shares a sector with the one before, which
/// was answered. A log is emptied at a clean end only: to read it is the proof that it is whole.
fn connected(path: &Path) -> rusqlite::Result<Connection> {
    let name = percent_encode(path.as_os_str().as_encoded_bytes(), PATH);
    let flags = OpenFlags::default() - OpenFlags::SQLITE_OPEN_CREATE;
    let mut connection = Connection::open_with_flags(format!("file:{name}?psow=0"), flags)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DEFENSIVE, true)?;
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false)?;
    connection.busy_timeout(BUSY)?;
    connection.execute_batch(SETTINGS)?;
    connection.wal_hook(Some(checkpoint))?;
    Ok(connection)
}

/// Copies a long log into the database. SQLite would do the same and hide that the disk has failed.
fn checkpoint(log: &mut Wal, pages: i32) -> rusqlite::Result<()> {
    if pages < CHECKPOINT {
        return Ok(());
    }
    match log.checkpoint() {
        // The next commit tries again.
        Err(error) if matches!(error.sqlite_error_code(), Some(DatabaseBusy | DiskFull)) => Ok(()),
        copied => copied,
    }
}

fn run(connection: &Connection, verb: &str) -> rusqlite::Result<()> {
    connection.prepare_cached(verb)?.execute([]).map(|_| ())
}

fn version(connection: &Connection) -> rusqlite::Result<i64> {
    connection.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))
}
