//! The ends that no request tells of: leases whose TTL has passed are looked for.

use std::time::Duration;

use tokio::time::sleep;

use crate::lock::locks::Locks;

/// The pause between two looks.
const PAUSE: Duration = Duration::from_millis(500);

/// The keys that are looked at in a second on a store that other instances share. A lease that was
/// released through another instance costs a look as well.
const SHARED: usize = 32;

/// The same on a store of this instance alone, whose looks read its memory.
const ALONE: usize = 4_000;

impl Locks {
    /// Looks for the ends of leases whose TTL has passed, for the log and the dashboard. Never ends.
    ///
    /// # Cancel safety
    ///
    /// Changes nothing.
    pub async fn look_for_ends(&self) {
        let most = if self.leases.are_complete() { ALONE } else { SHARED };
        loop {
            sleep(PAUSE).await;
            for (key, number) in self.leases.overdue(most / 2) {
                // A store that does not answer has nothing to tell.
                let Ok(status) = self.store.look(&key, None, 0).await else { break };
                self.leases.looked(&status, number);
            }
        }
    }
}
