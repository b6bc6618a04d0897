//! The calls that have not begun, in the order of their arrival, up to a limit. Callers can
//! withdraw them.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::lock::error::Effect;
use crate::lock::table::Table;
use crate::lock::time::Timestamp;

/// The most calls that wait for the disk: as many as there can be clients, and some megabytes.
/// Undos come on top, limited by `UndoQueue`.
const MAX_WAITING: usize = 32_768;

/// The failure of the calls that are left when the committer ends.
pub(super) const ENDED: &str = "the committer has ended";

/// An operation that waits for its batch.
pub(super) trait Job: Send {
    /// Runs it on the table, in memory.
    fn run(&mut self, table: &mut Table, now: Timestamp);

    /// Answers it after the commit of its batch, or after the failure.
    fn reply(self: Box<Self>, outcome: Result<(), JobError>);
}

/// The reason why a batch is not on disk.
#[derive(Clone, Debug)]
pub(super) struct JobError {
    pub(super) effect: Effect,
    pub(super) fault: &'static str,
    pub(super) reason: Arc<str>,
}

impl JobError {
    pub(super) fn new(effect: Effect, fault: &'static str, reason: impl Into<Arc<str>>) -> Self {
        Self { effect, fault, reason: reason.into() }
    }
}

/// The order of a job among those that wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Order {
    /// First, and as long as it takes: it undoes an earlier job.
    First,
    /// In the order of arrival.
    InTurn,
}

/// A job's place in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct JobId(Order, u64);

/// The queue between the callers and the committer.
#[derive(Default)]
pub(super) struct Queue {
    waiting: Mutex<WaitingJobs>,
    arrived: Condvar,
}

#[derive(Default)]
struct WaitingJobs {
    jobs: BTreeMap<JobId, Box<dyn Job>>,
    arrivals: u64,
    closed: bool,
}

impl Queue {
    /// Adds a job. `None` if the queue is full or closed.
    pub(super) fn push(&self, order: Order, job: Box<dyn Job>) -> Option<JobId> {
        let mut waiting = self.waiting();
        if waiting.closed || (waiting.jobs.len() >= MAX_WAITING && order == Order::InTurn) {
            return None;
        }
        waiting.arrivals += 1;
        let id = JobId(order, waiting.arrivals);
        waiting.jobs.insert(id, job);
        drop(waiting);
        self.arrived.notify_one();
        Some(id)
    }

    /// Removes a job that has not begun. Returns true if it was removed, and so never runs.
    pub(super) fn withdraw(&self, id: JobId) -> bool {
        self.waiting().jobs.remove(&id).is_some()
    }

    /// The next jobs, at most `most`, after waiting at most `patience` for one. `None` once the
    /// queue is closed and empty.
    pub(super) fn next(&self, most: usize, patience: Duration) -> Option<Vec<Box<dyn Job>>> {
        let idle = |waiting: &mut WaitingJobs| waiting.jobs.is_empty() && !waiting.closed;
        let waited = self.arrived.wait_timeout_while(self.waiting(), patience, idle);
        let mut waiting = waited.unwrap_or_else(PoisonError::into_inner).0;
        if waiting.jobs.is_empty() && waiting.closed {
            return None;
        }
        let next = std::iter::from_fn(|| waiting.jobs.pop_first().map(|(_, job)| job));
        Some(next.take(most).collect())
    }

    /// Closes the queue; waiting jobs still run.
    pub(super) fn close(&self) {
        self.waiting().closed = true;
        self.arrived.notify_one();
    }

    /// Closes the queue and fails the waiting jobs, because the committer is gone.
    pub(super) fn abandon(&self) {
        let mut waiting = self.waiting();
        waiting.closed = true;
        let left = std::mem::take(&mut waiting.jobs);
        drop(waiting);
        for job in left.into_values() {
            job.reply(Err(JobError::new(Effect::None, "the disk failed", ENDED)));
        }
    }

    fn waiting(&self) -> MutexGuard<'_, WaitingJobs> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};
    use std::time::Duration;

    use super::{Job, JobError, MAX_WAITING, Order, Queue};
    use crate::lock::table::Table;
    use crate::lock::time::Timestamp;

    struct Named(&'static str, Arc<Mutex<Vec<&'static str>>>);

    impl Job for Named {
        fn run(&mut self, _: &mut Table, _: Timestamp) {
            self.1.lock().unwrap().push(self.0);
        }

        fn reply(self: Box<Self>, _: Result<(), JobError>) {}
    }

    #[test]
    fn jobs_run_in_turn_but_for_those_that_take_back_and_those_that_were_withdrawn() {
        let (queue, ran) = (Queue::default(), Arc::default());
        let named = |name| Box::new(Named(name, Arc::clone(&ran)));
        queue.push(Order::InTurn, named("one"));
        let two = queue.push(Order::InTurn, named("two")).unwrap();
        queue.push(Order::InTurn, named("three"));
        queue.push(Order::First, named("undo"));
        assert!(queue.withdraw(two));
        assert!(!queue.withdraw(two));
        let (mut table, now) = (Table::restore([], 0), Timestamp::from_micros(0));
        for most in [2, 1] {
            for mut job in queue.next(most, Duration::ZERO).unwrap() {
                job.run(&mut table, now);
            }
        }
        assert_eq!(*ran.lock().unwrap(), ["undo", "one", "three"]);
        assert!(queue.next(9, Duration::ZERO).unwrap().is_empty());
        queue.push(Order::InTurn, named("last"));
        queue.close();
        assert!(queue.push(Order::First, named("late")).is_none());
        assert_eq!(queue.next(9, Duration::ZERO).unwrap().len(), 1);
        assert!(queue.next(9, Duration::ZERO).is_none());
    }

    #[test]
    fn a_full_queue_takes_only_what_gives_back() {
        let (queue, ran) = (Queue::default(), Arc::default());
        let named = || Box::new(Named("", Arc::clone(&ran)));
        let first = queue.push(Order::InTurn, named()).unwrap();
        for _ in 1..MAX_WAITING {
            assert!(queue.push(Order::InTurn, named()).is_some());
        }
        assert!(queue.push(Order::InTurn, named()).is_none());
        assert!(queue.push(Order::First, named()).is_some());
        assert!(queue.withdraw(first));
        assert!(queue.push(Order::InTurn, named()).is_none(), "the other one counts");
        assert_eq!(queue.next(1, Duration::ZERO).unwrap().len(), 1);
        assert!(queue.push(Order::InTurn, named()).is_some());
    }
}
