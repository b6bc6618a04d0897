//! Tasks without a caller, until the store is dropped.

use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

/// The tasks of a store; they end with it.
#[derive(Clone, Debug)]
pub(super) struct Background {
    tasks: TaskTracker,
    /// Those that end soon.
    brief: TaskTracker,
    end: CancellationToken,
}

impl Background {
    /// An empty set of tasks, and the guard that ends them when it is dropped.
    pub(super) fn new() -> (Self, DropGuard) {
        let end = CancellationToken::new();
        let (tasks, brief) = (TaskTracker::new(), TaskTracker::new());
        (Self { tasks, brief, end: end.clone() }, end.drop_guard())
    }

    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(self.until_the_end(task));
    }

    /// The same for a task that ends soon, so that a shutdown waits for it.
    pub(super) fn spawn_brief(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.brief.spawn(self.until_the_end(task));
    }

    /// Waits for the tasks that end soon.
    ///
    /// # Cancel safety
    ///
    /// Stops waiting; the tasks go on.
    pub(super) async fn finish(&self) {
        self.brief.close();
        self.brief.wait().await;
    }

    fn until_the_end(
        &self,
        task: impl Future<Output = ()> + Send + 'static,
    ) -> impl Future<Output = ()> + Send + 'static {
        let end = self.end.clone();
        async move {
            end.run_until_cancelled(task).await;
        }
    }
}
