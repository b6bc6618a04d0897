//! The shutdown of an instance: it refuses claims, is sure of each refusal, and waits for its calls.

use std::time::Duration;

use crate::lock::error::LockError;
use crate::lock::lease::{Claim, Origin};
use crate::lock::locks::Locks;
use crate::lock::owed::Delivery;

impl Locks {
    /// Returns true once the store has answered, until the shutdown begins.
    pub fn ready(&self) -> bool {
        self.store.contacted() && !self.waiters.draining.is_cancelled()
    }

    /// Begins the shutdown: refuses claims, and tells waiting requests. Leases stay.
    pub fn drain(&self) {
        self.waiters.draining.cancel();
    }

    /// Waits, at most `patience`, for calls whose callers are gone and for pending undos. Returns
    /// true if all are done.
    ///
    /// # Cancel safety
    ///
    /// Stops waiting; the tasks go on.
    pub async fn finish(&self, patience: Duration) -> bool {
        self.tasks.close();
        let done = tokio::time::timeout(patience, self.tasks.wait()).await.is_ok();
        if !done {
            tracing::warn!(open = self.tasks.len(), "shutting down with store calls still open");
        }
        done
    }

    pub(crate) async fn drained(&self) {
        self.waiters.draining.cancelled().await;
    }

    /// Returns whether a client's claim has a lease, once no call that this instance made before it
    /// drained can grant it one.
    pub(super) async fn has_lease_at_last(&self, claim: &Claim) -> Result<bool, LockError> {
        if claim.origin == Origin::Service {
            return Ok(false);
        }
        self.attempts.close();
        self.attempts.wait().await;
        let waits = self.waiters.with_line(&claim.key, |line| line.claim(&claim.token)).flatten();
        if waits.is_some() {
            // Another request waits with it; this one stops as that one does.
            let told = self.enter(claim.clone(), None)?.outcome().await;
            told.map(Delivery::hand_over).transpose()?;
        }
        self.has_lease(claim).await
    }
}
