//! The file: one redb database with the leases, the store's clock and the last fencing token.
//! Reading it proves that it is whole, and not older than the last answer.

use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use redb::{Builder, Database, DatabaseError, StorageBackend};

use crate::lock::table::Table;
use crate::lock::time::Timestamp;
use crate::lock::token::FencingToken;
use crate::lock::watched::caught;
use crate::store::embedded::error::LogError;
use crate::store::embedded::file::DatabaseFile;
use crate::store::embedded::home::Home;
use crate::store::embedded::row::Sum;
use crate::store::embedded::tables::{Change, FORMAT, Meta, contents, write, write_new};

/// All leases are in memory anyway; the database needs little more than its write buffer.
const CACHE_BYTES: usize = 16 << 20;

/// The database and its last commit.
pub(super) struct Log {
    home: Home,
    database: Option<Database>,
    committed: u64,
    attempted: u64,
    sum: Sum,
}

/// The thoroughness of a check of the file.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Check {
    /// Every page, read or not: another process may have written to the file.
    Pages,
    /// The pages that are read.
    Leases,
}

impl Log {
    /// Opens or creates the log in `directory`. Returns the leases on disk and the time of the last
    /// commit with it.
    pub(super) fn open(directory: &Path) -> Result<(Self, Table, Timestamp), LogError> {
        let home = Home::take(directory, |file| {
            let begin = || write_new(&create(file, Arc::default())?);
            begin().map_err(|source| database_error(&directory.join("locks.redb"), source))
        })?;
        let sum = Sum::default();
        let mut log = Self { home, database: None, committed: 0, attempted: 0, sum };
        let (table, clock) = log.read(Check::Pages)?;
        log.home.keep_private();
        Ok((log, table, clock))
    }

    /// Opens the file again and reads it. Fails if it is another file, or has fewer commits than
    /// known.
    pub(super) fn reopen(&mut self) -> Result<(Table, Timestamp), LogError> {
        self.read(Check::Leases)
    }

    /// Writes changes, the highest fencing token and their time. They are safe on disk when it
    /// returns without an error.
    pub(super) fn commit(
        &mut self,
        changes: &[Change],
        last_fencing_token: u64,
        now: Timestamp,
    ) -> Result<(), LogError> {
        self.home.check_note()?; // The next note would hide it.
        self.attempted = self.committed + 1;
        let mut sum = self.sum;
        for Change { key, before, after } in changes {
            sum.replace(key, before.as_ref(), after.as_ref());
        }
        let meta = Meta {
            commits: self.attempted,
            clock: now.as_micros(),
            last_fencing_token,
            ..Meta::default()
        };
        let closed = redb::Error::DatabaseClosed;
        let written = self.database.as_ref().ok_or(closed);
        let written = written.and_then(|database| write(database, meta, sum, changes));
        written.map_err(|source| database_error(self.home.path(), source))?;
        self.committed = self.attempted;
        self.sum = sum;
        // Without this note a damaged file could pass for one that is a commit older.
        if let Err(error) = self.home.witness(self.committed) {
            tracing::debug!(%error, "cannot note the number of the last commit");
        }
        Ok(())
    }

    /// Fails if the file was moved, deleted, cut or overwritten.
    pub(super) fn check_place(&self) -> Result<(), LogError> {
        self.home.check_place()
    }

    pub(super) fn path(&self) -> &Path {
        self.home.path()
    }

    /// Returns true if the last attempted commit is known to be on disk.
    pub(super) fn is_committed(&self) -> bool {
        self.committed >= self.attempted
    }

    fn read(&mut self, check: Check) -> Result<(Table, Timestamp), LogError> {
        self.database = None; // Releases its lock on the file first.
        let file = self.home.open()?;
        let read = caught(|| self.open_and_read(file, check));
        let (database, meta, sum, table) =
            read.ok_or_else(|| self.damaged("the database cannot be read"))??;
        let witnessed = self.home.witnessed();
        let witnessed =
            witnessed.map_err(|source| database_error(self.home.path(), source.into()))?;
        let witnessed = witnessed.ok_or_else(|| self.damaged("its first page"))?;
        self.home.expect(witnessed);
        let (is, was) = (meta.commits, witnessed.max(self.committed));
        if is < was {
            return Err(self.damaged(format!("its last commit is {is}, but {was} was answered")));
        }
        (self.database, self.committed, self.sum) = (Some(database), is, sum);
        Ok((table, Timestamp::from_micros(meta.clock)))
    }

    fn open_and_read(
        &self,
        file: File,
        check: Check,
    ) -> Result<(Database, Meta, Sum, Table), LogError> {
        let failed = |error: redb::Error| match error {
            redb::Error::DatabaseAlreadyOpen => LogError::InUse(self.home.path().to_owned()),
            redb::Error::Corrupted(what) => self.damaged(what),
            redb::Error::TableDoesNotExist(name) => self.damaged(format!("it has no table {name}")),
            redb::Error::Io(error)
                if matches!(error.kind(), ErrorKind::InvalidData | ErrorKind::UnexpectedEof) =>
            {
                self.damaged(error.to_string())
            }
            error => database_error(self.home.path(), error),
        };
        if file.metadata().is_ok_and(|file| file.len() == 0) {
            return Err(self.damaged("it is empty"));
        }
        let mut database = create(file, self.home.length()).map_err(failed)?;
        if check == Check::Pages {
            database.check_integrity().map_err(|error| failed(error.into()))?;
        }
        let (meta, leases) = contents(&database).map_err(failed)?;
        if meta.format != FORMAT {
            let path = self.home.path().to_owned();
            return Err(LogError::Format { path, format: meta.format });
        }
        let leases: Option<Vec<_>> = leases.into_iter().collect();
        let leases = leases.ok_or_else(|| self.damaged("a lease cannot be read"))?;
        let mut sum = Sum::default();
        for (key, entry) in &leases {
            sum.replace(key, None, Some(entry));
        }
        if !meta.fits(sum) {
            let (is, was) = (leases.len(), meta.leases);
            let what = format!("its {is} leases are not the {was} that were written");
            return Err(self.damaged(what));
        }
        let highest = leases.iter().map(|(_, entry)| entry.fencing_token.number()).max();
        let last = meta.last_fencing_token;
        if last < highest.unwrap_or(0) || (last > 0 && FencingToken::from_number(last).is_none()) {
            return Err(self.damaged(format!("its last fencing token is {last}")));
        }
        Ok((database, meta, sum, Table::restore(leases, last)))
    }

    fn damaged(&self, what: impl Into<String>) -> LogError {
        LogError::Damaged { path: self.home.path().to_owned(), what: what.into() }
    }
}

fn create(file: File, length: Arc<AtomicU64>) -> Result<Database, redb::Error> {
    let file = DatabaseFile::new(file, length)?;
    // Data that is not yet safe must not pass for data on disk.
    file.sync_data()?;
    let created: Result<_, DatabaseError> =
        Builder::new().set_cache_size(CACHE_BYTES).create_with_backend(file);
    Ok(created?)
}

fn database_error(path: &Path, source: redb::Error) -> LogError {
    LogError::Database { path: path.to_owned(), source }
}
