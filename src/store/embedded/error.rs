//! What can be wrong with the file of a store, each in one sentence for an operator.

use std::io;
use std::path::PathBuf;

/// See the module.
#[derive(Debug, thiserror::Error)]
pub(super) enum LogError {
    #[error("{} cannot be used: {source}", path.display())]
    Unusable { path: PathBuf, source: io::Error },
    #[error("another process serves the locks in {}: stop it, or name another directory", .0.display())]
    InUse(PathBuf),
    #[error("{} has format {format}, written by a newer lockkeeper: run that one", path.display())]
    Newer { path: PathBuf, format: u64 },
    #[error(
        "{} was moved, deleted or replaced under the running service: put it back, or stop the \
         service before it is started without it", .0.display()
    )]
    Misplaced(PathBuf),
    #[error(
        "{} is damaged ({what}): put a backup in its place, or move it away to begin without its \
         leases once the longest of them must be over", path.display()
    )]
    Damaged { path: PathBuf, what: String },
    #[error("the committer cannot be started: {0}")]
    Thread(#[from] io::Error),
    #[error("{}: {source}", path.display())]
    Database { path: PathBuf, source: redb::Error },
}

impl LogError {
    /// Whether what could not be read again may be read later: nothing was lost.
    pub(super) fn may_pass(&self) -> bool {
        self.is_full() || matches!(self, Self::Unusable { .. } | Self::Misplaced(_))
    }

    /// Whether it is only room that lacks.
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
