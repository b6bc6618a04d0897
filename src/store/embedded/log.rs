//! What is on disk: one redb database with the leases, the store's clock and the last fencing
//! token.
//!
//! Format 1. A change of it needs a new number, a way to read the old one, and a test with a file
//! of the old one.

use std::collections::BTreeSet;
use std::fs;
use std::fs::File;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::path::PathBuf;

use redb::Builder;
use redb::Database;
use redb::DatabaseError;
use redb::ReadableDatabase;
use redb::ReadableTable;
use redb::StorageBackend;
use redb::TableDefinition;

use crate::lock::entry::Entry;
use crate::lock::key::LockKey;
use crate::lock::lease::Owner;
use crate::lock::lease::Renewals;
use crate::lock::table::Table;
use crate::lock::time::Timestamp;
use crate::lock::time::Ttl;
use crate::lock::token::FencingToken;
use crate::lock::token::LeaseToken;
use crate::store::embedded::file::DatabaseFile;

/// Token, owner (empty if none), fencing token, TTL in milliseconds, end in microseconds of the
/// store's clock, renewals.
type LeaseRow = (&'static str, &'static str, u64, u64, u64, u64);

const LEASES: TableDefinition<'_, &str, LeaseRow> = TableDefinition::new("leases");
const META: TableDefinition<'_, &str, u64> = TableDefinition::new("meta");

const FORMAT: u64 = 1;
const FILE: &str = "locks.redb";

/// The leases are all in memory anyway; the database needs little more than its write buffer.
const CACHE_BYTES: usize = 16 << 20;

/// The database and how far it has come.
pub(super) struct Log {
    path: PathBuf,
    position_kept: Ttl,
    database: Option<Database>,
    committed: u64,
    attempted: u64,
}

impl Log {
    /// Opens the log in `directory`, or makes both.
    pub(super) fn open(directory: &Path, position_kept: Ttl) -> Result<Self, LogError> {
        let unusable = |source| LogError::Directory { path: directory.to_owned(), source };
        fs::DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(unusable)?;
        let path = directory.join(FILE);
        let mut log = Self { path, position_kept, database: None, committed: 0, attempted: 0 };
        log.reopen()?;
        // The new file's name has to survive a loss of power as well.
        File::open(directory).and_then(|directory| directory.sync_all()).map_err(unusable)?;
        Ok(log)
    }

    /// Opens the file anew, so that what is read next is what is on disk.
    pub(super) fn reopen(&mut self) -> Result<(), LogError> {
        self.database = None; // Its lock on the file has to go first.
        let mut options = fs::OpenOptions::new();
        let options = options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options
            .open(&self.path)
            .map_err(|source| LogError::Directory { path: self.path.clone(), source })?;
        let opened = DatabaseFile::new(file).and_then(|file| {
            // What is there but not yet safe must not be taken for what is on disk.
            file.sync_data().map_err(redb::StorageError::from)?;
            Builder::new().set_cache_size(CACHE_BYTES).create_with_backend(file)
        });
        self.database = Some(opened.map_err(|error| match error {
            DatabaseError::DatabaseAlreadyOpen => LogError::InUse(self.path.clone()),
            error => LogError::Database(error.into()),
        })?);
        self.committed = self.meta("commits")?;
        self.attempted = self.committed;
        Ok(())
    }

    /// The leases on disk, and the moment they are from.
    pub(super) fn read(&self) -> Result<(Table, Timestamp), LogError> {
        let format = self.meta("format")?;
        if format > FORMAT {
            return Err(LogError::Newer { path: self.path.clone(), format });
        }
        let clock = Timestamp::from_micros(self.meta("clock_us")?);
        let leases = if self.committed > 0 { self.leases()? } else { Vec::new() };
        let leases: Option<Vec<_>> = leases.into_iter().collect();
        let leases = leases.ok_or(LogError::Unreadable)?;
        let table = Table::restore(leases, self.meta("last_fencing_token")?);
        Ok((table.keeping_positions(self.position_kept), clock))
    }

    /// Brings the `changes` of the table to the disk, and the moment they are from. When it
    /// returns without an error they are safe.
    pub(super) fn commit(
        &mut self,
        table: &Table,
        changes: &BTreeSet<LockKey>,
        now: Timestamp,
    ) -> Result<(), LogError> {
        self.attempted = self.committed + 1;
        self.write(table, changes, now)?;
        self.committed = self.attempted;
        Ok(())
    }

    /// The number of the last commit that is known to be on disk.
    pub(super) fn committed(&self) -> u64 {
        self.committed
    }

    /// The number of the last commit that was tried.
    pub(super) fn attempted(&self) -> u64 {
        self.attempted
    }

    fn write(
        &self,
        table: &Table,
        changes: &BTreeSet<LockKey>,
        now: Timestamp,
    ) -> Result<(), redb::Error> {
        let transaction = self.database()?.begin_write()?;
        {
            let mut leases = transaction.open_table(LEASES)?;
            for key in changes {
                match table.entry(key) {
                    Some(entry) => leases.insert(key.as_str(), encode(entry))?,
                    None => leases.remove(key.as_str())?,
                };
            }
            let mut meta = transaction.open_table(META)?;
            meta.insert("format", FORMAT)?;
            meta.insert("commits", self.attempted)?;
            meta.insert("clock_us", now.as_micros())?;
            meta.insert("last_fencing_token", table.last_fencing_token())?;
        }
        Ok(transaction.commit()?)
    }

    /// The leases on disk; `None` for one that cannot be read.
    fn leases(&self) -> Result<Vec<Option<(LockKey, Entry)>>, redb::Error> {
        let transaction = self.database()?.begin_read()?;
        let rows = transaction.open_table(LEASES)?;
        let lease = |row: Result<_, redb::StorageError>| {
            let (key, lease): (redb::AccessGuard<'_, &str>, redb::AccessGuard<'_, LeaseRow>) = row?;
            Ok(decode(key.value(), lease.value()))
        };
        rows.iter()?.map(lease).collect()
    }

    fn meta(&self, name: &str) -> Result<u64, redb::Error> {
        match self.database()?.begin_read()?.open_table(META) {
            Ok(table) => Ok(table.get(name)?.map_or(0, |value| value.value())),
            Err(redb::TableError::TableDoesNotExist(_)) => Ok(0),
            Err(error) => Err(error.into()),
        }
    }

    fn database(&self) -> Result<&Database, redb::Error> {
        self.database.as_ref().ok_or(redb::Error::DatabaseClosed)
    }
}

fn encode(entry: &Entry) -> (&str, &str, u64, u64, u64, u64) {
    (
        entry.token.expose(),
        entry.owner.as_ref().map_or("", Owner::as_str),
        entry.fencing_token.number(),
        entry.ttl.as_millis(),
        entry.ends_at.as_micros(),
        entry.renewals.number(),
    )
}

fn decode(key: &str, row: (&str, &str, u64, u64, u64, u64)) -> Option<(LockKey, Entry)> {
    let (token, owner, fencing_token, ttl, ends_at, renewals) = row;
    let entry = Entry {
        token: LeaseToken::parse(token).ok()?,
        owner: Owner::parse(owner).ok()?,
        fencing_token: FencingToken::from_number(fencing_token)?,
        ttl: Ttl::from_millis(ttl),
        ends_at: Timestamp::from_micros(ends_at),
        renewals: Renewals::from_number(renewals),
    };
    Some((LockKey::parse(key).ok()?, entry))
}

/// What can be wrong with the log.
#[derive(Debug, thiserror::Error)]
pub(super) enum LogError {
    #[error("{} cannot be used: {source}", path.display())]
    Directory { path: PathBuf, source: io::Error },
    #[error("another process serves the locks in {}: stop it, or name another directory", .0.display())]
    InUse(PathBuf),
    #[error("{} has format {format}, written by a newer lockkeeper: run that one", path.display())]
    Newer { path: PathBuf, format: u64 },
    #[error("a lease on disk cannot be read")]
    Unreadable,
    #[error("the committer cannot be started: {0}")]
    Thread(#[from] io::Error),
    #[error(transparent)]
    Database(#[from] redb::Error),
}

impl LogError {
    /// Whether what could not be read again may be read later: nothing was lost.
    pub(super) fn may_pass(&self) -> bool {
        self.is_full() || matches!(self, Self::Directory { .. })
    }

    /// Whether it is only room that lacks.
    pub(super) fn is_full(&self) -> bool {
        use io::ErrorKind::FileTooLarge;
        use io::ErrorKind::QuotaExceeded;
        use io::ErrorKind::StorageFull;
        match self {
            Self::Database(redb::Error::Io(error)) => {
                matches!(error.kind(), FileTooLarge | QuotaExceeded | StorageFull)
            }
            _ => false,
        }
    }
}
