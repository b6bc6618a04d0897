//! The tasks that the service cannot work without. If one ends too early, the process must end:
//! half a service looks healthy, and no supervisor restarts it.
//!
//! [`endless`] and [`sound`] wrap such a task, [`fail`] reports another cause, and the server waits
//! for [`failed`]. An aborted task reports nothing.

use std::future::poll_fn;
use std::pin::pin;

use tokio::sync::SetOnce;

/// The first report; a later one is a consequence of it.
type Report = SetOnce<String>;

static PROCESS: Report = Report::const_new();

/// Runs a task that must not end. Reports if it panics or returns.
pub(crate) async fn endless<T>(name: &'static str, task: impl Future<Output = T>) -> T {
    let ended = sound(name, task).await;
    fail(format!("{name} ended by itself"));
    ended
}

/// Runs a task that may end but must not panic. Reports if it panics.
pub(crate) async fn sound<T>(name: &'static str, task: impl Future<Output = T>) -> T {
    reporting(&PROCESS, name, task).await
}

/// Reports in one sentence why the service cannot go on. The first report counts.
pub(crate) fn fail(reason: String) {
    let _ = PROCESS.set(reason);
}

/// Waits until the service cannot go on, and returns the reason.
pub(crate) async fn failed() -> &'static str {
    PROCESS.wait().await
}

/// The reported reason, if the service cannot go on.
pub(crate) fn failure() -> Option<&'static str> {
    PROCESS.get().map(String::as_str)
}

async fn reporting<T>(to: &Report, name: &'static str, task: impl Future<Output = T>) -> T {
    let mut task = pin!(task);
    poll_fn(|context| {
        // Only during the poll: a task that is dropped while another panics has not panicked.
        let watching = OnPanic(to, name);
        let polled = task.as_mut().poll(context);
        std::mem::forget(watching);
        polled
    })
    .await
}

/// Reports a panic when it is dropped; without a panic it is forgotten.
struct OnPanic<'a>(&'a Report, &'static str);

impl Drop for OnPanic<'_> {
    fn drop(&mut self) {
        let _ = self.0.set(format!("{} panicked", self.1));
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use tokio::task::JoinSet;

    use super::{Report, endless, failed, reporting};

    #[tokio::test]
    async fn a_task_that_panics_is_reported_and_one_that_ends_or_is_ended_is_not() {
        static REPORT: Report = Report::const_new();
        let mut tasks = JoinSet::new();
        tasks.spawn(reporting(&REPORT, "a task that may end", async {}));
        tasks.join_next().await;
        tasks.spawn(reporting(&REPORT, "a task that its owner ends", pending()));
        tokio::task::yield_now().await;
        tasks.shutdown().await;
        assert_eq!(REPORT.get(), None);
        tasks.spawn(reporting(&REPORT, "the keeper", async { panic!("on purpose") }));
        assert_eq!(REPORT.wait().await, "the keeper panicked");
    }

    #[tokio::test]
    async fn an_endless_task_that_ends_is_reported() {
        endless("the watcher", async {}).await;
        assert_eq!(failed().await, "the watcher ended by itself");
    }
}
