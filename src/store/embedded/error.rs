//! The faults of a store's file, each in one sentence for an operator.

use std::io;
use std::path::PathBuf;

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
    Format { path: PathBuf, format: u64 },
    #[error(
        "{} was moved, deleted, replaced or written to under the running service: put it back, or \
         stop the service, wait for the longest lease, and start it", .0.display()
    )]
    Misplaced(PathBuf),
    #[error(
        "{} is damaged ({}): move it away to begin without its leases once the longest of them must \
         have expired", path.display(), what.escape_debug()
    )]
    Damaged {
        path: PathBuf,
        /// It may quote the file, and so any bytes.
        what: String,
    },
    #[error("the committer cannot be started: {0}")]
    Thread(#[from] io::Error),
    #[error("{}: {source}", path.display())]
    Database { path: PathBuf, source: redb::Error },
}

impl LogError {
    /// Returns true if the file may be readable later: no data was lost.
    pub(super) fn may_pass(&self) -> bool {
        self.is_full() || matches!(self, Self::Unusable { .. } | Self::Misplaced(_))
    }

    /// Returns true if only room is lacking.
    pub(super) fn is_full(&self) -> bool {
        use io::ErrorKind::{FileTooLarge, QuotaExceeded, StorageFull};
        match self {
            Self::Database { source: redb::Error::Io(error), .. } => {
                matches!(error.kind(), FileTooLarge | QuotaExceeded | StorageFull)
            }
            _ => false,
        }
    }
}
