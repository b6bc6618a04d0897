//! The tasks that the service cannot work without. If one ends too early, the process must end:
//! half a service looks healthy, and no supervisor restarts it.
//!
//! [`endless`] and [`sound`] wrap such a task, [`fail`] reports another cause, and the server waits
//! for [`failed`]. An aborted task reports nothing.

use std::cell::Cell;
use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::sync::OnceLock;

use tokio::sync::Notify;

static PROCESS: Failure = Failure::new();

thread_local! {
    static CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// Runs a task that must not end. Reports if it panics or returns.
///
/// # Cancel safety
///
/// Dropping the future ends the task without a report.
pub async fn endless<T>(name: &'static str, task: impl Future<Output = T>) -> T {
    PROCESS.endless(name, task).await
}

/// Runs a task that may end but must not panic. Reports if it panics.
///
/// # Cancel safety
///
/// Dropping the future ends the task without a report.
pub async fn sound<T>(name: &'static str, task: impl Future<Output = T>) -> T {
    PROCESS.sound(name, task).await
}

/// Reports in one sentence why the service cannot go on. The first report counts.
pub fn fail(reason: String) {
    PROCESS.fail(reason);
}

/// Waits until the service cannot go on, and returns the reason.
///
/// # Cancel safety
///
/// No report is lost.
pub async fn failed() -> &'static str {
    PROCESS.failed().await
}

/// The reported reason, if the service cannot go on.
pub fn failure() -> Option<&'static str> {
    PROCESS.reason.get().map(String::as_str)
}

/// Calls foreign code that panics where it should return an error, such as a parser of damaged
/// data. `None` if it panicked.
pub fn caught<T>(call: impl FnOnce() -> T) -> Option<T> {
    CAUGHT.set(true);
    let called = catch_unwind(AssertUnwindSafe(call)).ok();
    CAUGHT.set(false);
    called
}

/// Returns true if a panic of this thread is expected and not worth a log line.
pub fn is_caught() -> bool {
    CAUGHT.get()
}

/// The first report of a process.
struct Failure {
    reason: OnceLock<String>,
    reported: Notify,
}

impl Failure {
    const fn new() -> Self {
        Self { reason: OnceLock::new(), reported: Notify::const_new() }
    }

    async fn endless<T>(&self, name: &'static str, task: impl Future<Output = T>) -> T {
        let ended = self.sound(name, task).await;
        self.fail(format!("{name} ended by itself"));
        ended
    }

    async fn sound<T>(&self, name: &'static str, task: impl Future<Output = T>) -> T {
        let mut task = pin!(task);
        poll_fn(|context| {
            // Only during the poll: a task that is dropped while another panics has not panicked.
            let watching = OnPanic(self, name);
            let polled = task.as_mut().poll(context);
            std::mem::forget(watching);
            polled
        })
        .await
    }

    fn fail(&self, reason: String) {
        // A later report is a consequence of the first.
        let _ = self.reason.set(reason);
        self.reported.notify_waiters();
    }

    async fn failed(&self) -> &str {
        loop {
            // Listens before it checks, so that no report falls between the two.
            let reported = self.reported.notified();
            if let Some(reason) = self.reason.get() {
                return reason;
            }
            reported.await;
        }
    }
}

/// Reports a panic when it is dropped; without a panic it is forgotten.
struct OnPanic<'a>(&'a Failure, &'static str);

impl Drop for OnPanic<'_> {
    fn drop(&mut self) {
        self.0.fail(format!("{} panicked", self.1));
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::time::Duration;

    use tokio::task::JoinSet;
    use tokio::time::timeout;

    use super::Failure;

    static NEVER: Duration = Duration::from_secs(3_600);

    #[tokio::test(start_paused = true)]
    async fn a_task_that_panics_is_reported_and_so_is_an_endless_one_that_ends() {
        static PANICKED: Failure = Failure::new();
        static ENDED: Failure = Failure::new();
        static SOUND: Failure = Failure::new();
        let mut tasks = JoinSet::new();
        tasks.spawn(PANICKED.sound("the keeper", async { panic!("on purpose") }));
        tasks.spawn(ENDED.endless("the watcher", async {}));
        tasks.spawn(SOUND.sound("a task that may end", async {}));
        assert_eq!(PANICKED.failed().await, "the keeper panicked");
        assert_eq!(ENDED.failed().await, "the watcher ended by itself");
        assert!(timeout(NEVER, SOUND.failed()).await.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_its_owner_ends_is_not_reported() {
        static ABORTED: Failure = Failure::new();
        let mut tasks = JoinSet::new();
        tasks.spawn(ABORTED.endless("the keeper", pending::<()>()));
        tokio::task::yield_now().await;
        tasks.shutdown().await;
        assert!(timeout(NEVER, ABORTED.failed()).await.is_err());
    }

    #[tokio::test]
    async fn the_first_report_counts_and_whoever_comes_later_hears_it() {
        static FAILED: Failure = Failure::new();
        FAILED.fail("the disk failed".to_owned());
        FAILED.fail("the store is gone".to_owned());
        assert_eq!(FAILED.failed().await, "the disk failed");
        assert_eq!(FAILED.failed().await, "the disk failed");
    }
}
