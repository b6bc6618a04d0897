//! Clean-up at the end of an instance, and of a request whose handler panics.

use std::sync::Arc;
use std::time::Duration;

use crate::lock::lease::{Claim, Origin};
use crate::lock::locks::Locks;
use crate::lock::owed::Owed;

/// A claim whose request is being answered.
pub struct Answering {
    owed: Arc<Owed>,
    claim: Claim,
}

impl Drop for Answering {
    fn drop(&mut self) {
        if std::thread::panicking() && self.claim.origin == Origin::Service {
            self.owed.take_back(&self.claim);
        }
    }
}

impl Locks {
    /// Guards a claim while it is acquired and answered: after a panic, a lease whose token the
    /// service made is undone, because no client has received it.
    pub fn answering(&self, claim: &Claim) -> Answering {
        Answering { owed: self.owed.clone(), claim: claim.clone() }
    }

    /// Waits, at most `patience`, for calls whose callers are gone and for pending undos. Returns
    /// true if all are done.
    ///
    /// # Cancel safety
    ///
    /// Stops waiting; the tasks go on.
    pub async fn settle(&self, patience: Duration) -> bool {
        self.tasks.close();
        let done = tokio::time::timeout(patience, self.tasks.wait()).await.is_ok();
        if !done {
            tracing::warn!(open = self.tasks.len(), "shutting down with store calls still open");
        }
        done
    }
}
