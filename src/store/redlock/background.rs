//! Tasks without a caller, until the store is dropped.

use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

/// The tasks of a store; they end with it.
#[derive(Clone, Debug)]
pub(super) struct Background {
    tasks: TaskTracker,
    end: CancellationToken,
}

impl Background {
    /// No tasks yet, and the guard that ends them when it is dropped.
    pub(super) fn new() -> (Self, DropGuard) {
        let end = CancellationToken::new();
        (Self { tasks: TaskTracker::new(), end: end.clone() }, end.drop_guard())
    }

    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let end = self.end.clone();
        self.tasks.spawn(async move {
            end.run_until_cancelled(task).await;
        });
    }
}
