//! A call to the committer, with a deadline; withdrawn if its answer is not needed any more.

use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use crate::lock::error::{Effect, StoreError, Verb};
use crate::lock::key::LockKey;
use crate::lock::lease::Lease;
use crate::lock::table::Table;
use crate::lock::time::{Timestamp, Ttl};
use crate::lock::token::LeaseToken;
use crate::store::embedded::committer::Shared;
use crate::store::embedded::queue::{Job, JobError, Order};

/// The way in which a call is waited for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Manner {
    /// Until the deadline; then it is withdrawn if it has not begun.
    Withdrawn,
    /// Until the deadline; the call still runs after it.
    Kept,
    /// Without a deadline, and ahead of all others.
    Undo,
}

/// An answer that is on disk, and the end of the lease in it.
pub(super) struct Committed<T> {
    pub(super) answer: T,
    ends_at: Option<Timestamp>,
}

impl<T> Committed<T> {
    /// An answer with the lease that the token now has of `key`.
    pub(super) fn with_lease(
        table: &Table,
        (key, token): (&LockKey, &LeaseToken),
        answer: T,
    ) -> Self {
        Self { answer, ends_at: table.entry_of(key, token).map(|entry| entry.ends_at) }
    }

    pub(super) fn plain(answer: T) -> Self {
        Self { answer, ends_at: None }
    }
}

impl Shared {
    /// Runs `op` on the table and answers once it is on disk.
    pub(super) async fn call<T: Send + 'static>(
        &self,
        verb: Verb,
        manner: Manner,
        timeout: Duration,
        op: impl FnOnce(&mut Table, Timestamp) -> Committed<T> + Send + 'static,
    ) -> Result<Committed<T>, StoreError> {
        let failed = |failure: JobError| StoreError {
            verb,
            effect: failure.effect,
            reason: failure.reason.to_string().into(),
        };
        let (reply, mut answer) = oneshot::channel();
        let job = Box::new(Operation { op: Some(op), answer: None, reply });
        let order = match manner {
            Manner::Undo => Order::First,
            _ => Order::InTurn,
        };
        let full = || JobError::new(Effect::None, "too many calls wait for the disk");
        let id = self.queue.push(order, job).ok_or_else(|| failed(full()))?;
        let deadline = Instant::now() + timeout;
        let answered = tokio::select! {
            biased;
            answered = &mut answer => answered.map_err(|_| ended()).flatten(),
            () = sleep_until(deadline), if !matches!(manner, Manner::Undo) => {
                match matches!(manner, Manner::Withdrawn) && self.queue.withdraw(id) {
                    true => Err(late(Effect::None, timeout)),
                    false => Err(late(Effect::Unknown, timeout)),
                }
            }
        };
        answered.map_err(failed)
    }

    /// The lease for its holder, with the time left at this moment as its TTL.
    ///
    /// If the disk took longer, the lease has expired. But a crash before its end is on disk would
    /// bring it back, so this is not a definite no. One that `max_hold` ends has no time left in the
    /// end, and nothing makes it last longer.
    pub(super) fn tell<T>(
        &self,
        verb: Verb,
        mut lease: Lease,
        answered: &Committed<T>,
    ) -> Result<Lease, StoreError> {
        let left = answered.ends_at.map_or(Duration::ZERO, |end| end.left(self.clock.now()));
        lease.ttl = lease.ttl.min(Ttl::lasting(left));
        if lease.is_over() && !lease.capped {
            let reason = "the lease expired before it was on disk".into();
            return Err(StoreError { verb, effect: Effect::Unknown, reason });
        }
        Ok(lease)
    }
}

fn late(effect: Effect, timeout: Duration) -> JobError {
    JobError::new(effect, format!("the disk did not answer within {timeout:?}"))
}

fn ended() -> JobError {
    JobError::new(Effect::Unknown, "the committer has ended")
}

/// An operation on its way through the committer.
struct Operation<T, F> {
    op: Option<F>,
    answer: Option<Committed<T>>,
    reply: oneshot::Sender<Result<Committed<T>, JobError>>,
}

impl<T: Send, F: FnOnce(&mut Table, Timestamp) -> Committed<T> + Send> Job for Operation<T, F> {
    fn run(&mut self, table: &mut Table, now: Timestamp) {
        self.answer = self.op.take().map(|op| op(table, now));
    }

    fn reply(self: Box<Self>, outcome: Result<(), JobError>) {
        let Self { answer, reply, .. } = *self;
        let never_ran = || JobError::new(Effect::None, "the operation did not run");
        // The caller may have given up meanwhile.
        let _ = reply.send(outcome.and_then(|()| answer.ok_or_else(never_ran)));
    }
}
