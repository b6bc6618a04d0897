//! The shutdown of an instance: it refuses claims, is sure of each refusal, and waits for its calls.

use std::time::Duration;

use crate::lock::error::LockError;
use crate::lock::lease::{Claim, Origin};
use crate::lock::locks::Locks;
use crate::lock::undo_queue::Delivery;

impl Locks {
    /// Tells whether the store could serve, and the shutdown has not begun.
    ///
    /// # Errors
    ///
    /// One sentence says why it is not ready.
    pub fn ready(&self) -> Result<(), String> {
        if self.drains() {
            return Err("the instance is shutting down".to_owned());
        }
        self.store.contacted()
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

    /// Returns true once the shutdown has begun.
    pub(crate) fn drains(&self) -> bool {
        self.waiters.draining.is_cancelled()
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
        if self.is_in_line(claim) {
            // In its place this one stops waiting.
            let told = self.enter(claim.clone(), None)?.outcome().await;
            told.map(Delivery::hand_over).transpose()?;
        }
        let _turn = self.turns.take(claim).await;
        self.has_lease(claim).await
    }
}
