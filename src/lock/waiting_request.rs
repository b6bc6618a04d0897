//! The waiting request of a claim, as its line knows it.

use tokio::sync::{OwnedSemaphorePermit, oneshot};

use crate::lock::store::Answer;
use crate::lock::undo_queue::Delivery;

/// The waiting request of a claim: the newest.
pub(crate) struct WaitingRequest {
    pub(super) number: u64,
    pub(super) tell: oneshot::Sender<Option<Delivery>>,
    pub(super) _room: OwnedSemaphorePermit,
}

impl WaitingRequest {
    /// Tells the request. If it is gone, its answer's guard is dropped.
    pub(super) fn tell(self, told: Option<Delivery>) {
        drop(self.tell.send(told));
    }

    /// Tells the request that its claim was released.
    pub(crate) fn cancel(self) {
        self.tell(Some(Delivery::of(Answer::Cancelled)));
    }
}
