//! A call to the committer, with a deadline.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use crate::lock::error::{Effect, StoreError, Verb};
use crate::lock::lease::Lease;
use crate::lock::table::Table;
use crate::lock::time::{Timestamp, Ttl};
use crate::store::embedded::committer::Shared;
use crate::store::embedded::queue::{ENDED, Job, JobError, Order};

/// The fault of a disk that takes too long.
const SLOW: &str = "the disk is too slow";

impl Shared {
    /// Runs `op` on the table and answers once it is on disk. In turn it has a deadline, at which it
    /// is withdrawn if it has not begun.
    pub(super) async fn call<T: Send + 'static>(
        &self,
        verb: Verb,
        order: Order,
        timeout: Duration,
        op: impl FnOnce(&mut Table, Timestamp) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        let failed = |failure: JobError| StoreError {
            verb,
            effect: failure.effect,
            fault: failure.fault,
            reason: failure.reason.to_string().into(),
        };
        let (reply, mut answer) = oneshot::channel();
        let job = Box::new(Operation { op: Some(op), answer: None, reply });
        let full = || JobError::new(Effect::None, SLOW, "too many calls wait for the disk");
        let id = self.queue.push(order, job).ok_or_else(|| failed(full()))?;
        let deadline = Instant::now() + timeout;
        let answered = tokio::select! {
            biased;
            answered = &mut answer => {
                answered.map_err(|_| JobError::new(Effect::Unknown, "the disk failed", ENDED)).flatten()
            }
            () = sleep_until(deadline), if order == Order::InTurn => {
                let effect = if self.queue.withdraw(id) { Effect::None } else { Effect::Unknown };
                let reason = format!("the disk did not answer within {timeout:?}");
                Err(JobError::new(effect, SLOW, reason))
            }
        };
        answered.map_err(failed)
    }

    /// The lease for its holder, with the time left at this moment as its TTL: none, if the disk took
    /// longer. A crash before its end is on disk would bring it back.
    pub(super) fn told(&self, lease: Lease, ends_at: Option<Timestamp>) -> Lease {
        let left = ends_at.map_or(Duration::ZERO, |end| end.left(self.clock.now()));
        Lease { ttl: lease.ttl.min(Ttl::lasting(left)), ..lease }
    }
}

/// An operation on its way through the committer.
struct Operation<T, F> {
    op: Option<F>,
    answer: Option<T>,
    reply: oneshot::Sender<Result<T, JobError>>,
}

impl<T: Send, F: FnOnce(&mut Table, Timestamp) -> T + Send> Job for Operation<T, F> {
    fn run(&mut self, table: &mut Table, now: Timestamp) {
        self.answer = self.op.take().map(|op| op(table, now));
    }

    fn reply(self: Box<Self>, outcome: Result<(), JobError>) {
        let Self { answer, reply, .. } = *self;
        let reason = "the operation did not run";
        let never_ran = || JobError::new(Effect::None, "the disk failed", reason);
        // The caller may have given up meanwhile.
        let _ = reply.send(outcome.and_then(|()| answer.ok_or_else(never_ran)));
    }
}
