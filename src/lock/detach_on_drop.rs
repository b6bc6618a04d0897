//! A call that runs to its end even if its caller is gone.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures_util::future::BoxFuture;
use tokio_util::task::TaskTracker;

/// A future that, dropped before its end, continues in a task of its own.
///
/// hyper drops a handler with its client. A store call dropped half-way could neither be told from
/// one that never happened nor be undone. A caller that stays costs no task.
pub(crate) struct DetachOnDrop<T: Send + 'static> {
    call: Option<BoxFuture<'static, T>>,
    tasks: TaskTracker,
}

impl<T: Send + 'static> DetachOnDrop<T> {
    /// Runs `call` to its end, on `tasks` if its caller goes.
    pub(crate) fn new(tasks: &TaskTracker, call: impl Future<Output = T> + Send + 'static) -> Self {
        Self { call: Some(Box::pin(call)), tasks: tasks.clone() }
    }
}

impl<T: Send + 'static> Future for DetachOnDrop<T> {
    type Output = T;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        // Taken out while polled: a call that panics has ended, and must not continue when dropped.
        let mut call = self.call.take().expect("polled no more once it is ready");
        let polled = call.as_mut().poll(context);
        if polled.is_pending() {
            self.call = Some(call);
        }
        polled
    }
}

impl<T: Send + 'static> Drop for DetachOnDrop<T> {
    fn drop(&mut self) {
        if let Some(call) = self.call.take() {
            self.tasks.spawn(async move { drop(call.await) });
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio_util::task::TaskTracker;

    use super::DetachOnDrop;

    #[tokio::test]
    async fn a_call_that_panics_does_not_go_on() {
        let tasks = TaskTracker::new();
        let caller = DetachOnDrop::<()>::new(&tasks, async { panic!("on purpose") });
        assert!(tokio::task::JoinSet::from_iter([caller]).join_next().await.unwrap().is_err());
        assert!(tasks.is_empty());
    }

    #[tokio::test]
    async fn a_caller_that_stays_needs_no_task() {
        let tasks = TaskTracker::new();
        assert_eq!(DetachOnDrop::new(&tasks, async { 7 }).await, 7);
        assert!(tasks.is_empty());
    }
}
