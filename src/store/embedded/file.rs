//! The database's file. Its errors tell a full disk from one that has lost data.

use std::fs::File;
use std::io;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use redb::backends::FileBackend;
use redb::{BackendError, DatabaseError, StorageBackend};

/// A failed sync. The data may not be on disk, and a second sync may report a false success,
/// because the system forgets what it could not write. So this is never mere lack of room, even if
/// the error says so.
#[derive(Debug, thiserror::Error)]
#[error("sync failed; the data may not be on disk: {0}")]
struct NotSafe(io::Error);

#[derive(Debug)]
pub(super) struct DatabaseFile(FileBackend, Arc<AtomicU64>);

impl DatabaseFile {
    /// The database's file; `length` is always the one that the database gave it.
    pub(super) fn new(file: File, length: Arc<AtomicU64>) -> Result<Self, DatabaseError> {
        let file = Self(FileBackend::new(file)?, length);
        file.1.store(file.0.len().map_err(redb::StorageError::from)?, Ordering::Relaxed);
        Ok(file)
    }
}

// Of the locks only those of a single writer.
impl StorageBackend for DatabaseFile {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read(offset, out)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)?;
        self.1.store(len, Ordering::Relaxed);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.0.sync_data().map_err(|error| io::Error::other(NotSafe(error)))
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write(offset, data)
    }

    fn close(&self) -> io::Result<()> {
        self.0.close()
    }

    fn try_lock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<bool, BackendError> {
        self.0.try_lock_range(start, end)
    }

    fn unlock_range(&self, start: Bound<u64>, end: Bound<u64>) -> Result<(), BackendError> {
        self.0.unlock_range(start, end)
    }
}
