//! The faults of a store's file, each in one sentence for an operator.

use std::io;
use std::path::{Path, PathBuf};

use rusqlite::ErrorCode;

use crate::store::embedded::tables::FORMAT;

#[derive(Debug, thiserror::Error)]
pub(super) enum LogError {
    #[error("{} cannot be used: {source}", path.display())]
    Unusable { path: PathBuf, source: io::Error },
    #[error("another process serves the locks in {}: stop it, or name another directory", .0.display())]
    InUse(PathBuf),
    #[error(
        "{} has format {format}, and this lockkeeper reads format {FORMAT} only: run the version \
         that wrote it, or move it away to begin without its leases once the longest of them must \
         have expired", path.display()
    )]
    Format { path: PathBuf, format: u32 },
    #[error(
        "{} was moved, deleted, replaced or written to under the running service: put it back, or \
         stop the service, wait for the longest lease, and start it", .0.display()
    )]
    Misplaced(PathBuf),
    #[error(
        "{} is damaged, or a file beside it is ({}): restore them, or move all of them away to begin \
         without their leases once the longest of them must have expired", path.display(),
        what.escape_debug()
    )]
    Damaged {
        path: PathBuf,
        /// It may quote the file, and so any bytes.
        what: String,
    },
    #[error("the committer cannot be started: {0}")]
    Thread(#[from] io::Error),
    #[error("{}: {source}", path.display())]
    Database { path: PathBuf, source: rusqlite::Error },
}

impl LogError {
    /// What the database has said.
    pub(super) fn said(path: &Path, source: rusqlite::Error) -> Self {
        use ErrorCode::{DatabaseCorrupt, NotADatabase, Unknown};
        let path = path.to_owned();
        match source.sqlite_error_code() {
            None | Some(DatabaseCorrupt | NotADatabase | Unknown) => {
                Self::Damaged { path, what: source.to_string() }
            }
            Some(_) => Self::Database { path, source },
        }
    }

    /// Returns true if the file may be readable later: no data was lost by reading it.
    pub(super) fn may_pass(&self) -> bool {
        matches!(self, Self::Unusable { .. } | Self::Misplaced(_) | Self::Database { .. })
    }

    /// Returns true if a transaction did not begin, or was taken back: also where another program has
    /// changed a file, and a reading tells what.
    pub(super) fn is_undone(&self) -> bool {
        let is_busy = self.code() == Some(ErrorCode::DatabaseBusy);
        self.is_full() || is_busy || matches!(self, Self::Misplaced(_))
    }

    /// The fault for clients.
    pub(super) fn fault(&self) -> &'static str {
        match self {
            _ if self.is_full() => "the disk is full",
            Self::Misplaced(_) => "the file was moved",
            _ => "the disk failed",
        }
    }

    /// Returns true if only room is lacking. A sync that fails for it is another error: the data may
    /// not be on disk, and a second sync may report a false success.
    pub(super) fn is_full(&self) -> bool {
        self.code() == Some(ErrorCode::DiskFull)
    }

    fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Database { source, .. } => source.sqlite_error_code(),
            _ => None,
        }
    }
}
