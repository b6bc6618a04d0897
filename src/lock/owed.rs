//! Grants that no client received, and that the service still has to undo.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};
use tokio_util::task::TaskTracker;

use crate::lock::error::{Effect, StoreError};
use crate::lock::lease::{Claim, Origin};
use crate::lock::store::{Attempt, Store};
use crate::seeded::Bug;

/// The most grants to undo at once: a store outage must not fill the memory. Further leases expire
/// by their TTL, and the log says so.
const MAX_OWED: usize = 10_000;

/// The first pause between two attempts, doubled up to [`MAX_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Short enough that a key is free within a second of the store's return.
const MAX_PAUSE: Duration = Duration::from_millis(500);

/// Longer than any store call with its deadline: a TTL and this later, a grant without refresh has
/// expired.
const LONGEST_CALL: Duration = Duration::from_secs(30);

/// A store's answer to a claim, or the error that replaced it.
pub(crate) type Answer = Result<Attempt, StoreError>;

/// Undoes grants, retrying until the store confirms.
pub(crate) struct Owed {
    store: Arc<dyn Store>,
    tasks: TaskTracker,
    room: Arc<Semaphore>,
}

impl Owed {
    pub(crate) fn new(store: Arc<dyn Store>, tasks: TaskTracker) -> Self {
        Self { store, tasks, room: Arc::new(Semaphore::new(MAX_OWED)) }
    }

    /// Wraps an answer so that a grant in it is undone unless it is delivered.
    pub(crate) fn undelivered(self: Arc<Self>, claim: Claim, answer: Answer) -> Undelivered {
        Undelivered { owed: self, claim, answer: Some(answer) }
    }

    /// Undoes whatever the claim's token has or may get.
    pub(crate) fn take_back(&self, claim: &Claim) {
        if Bug::NothingTakenBack.is_in() {
            return;
        }
        let Ok(room) = self.room.clone().try_acquire_owned() else {
            tracing::warn!(lock.key = %claim.key, "undo queue full; lease will expire by its TTL");
            return;
        };
        let (store, claim) = (self.store.clone(), claim.clone());
        self.tasks.spawn(async move {
            let _room = room;
            let over_at = Instant::now() + claim.ttl.as_duration() + LONGEST_CALL;
            let mut pause = FIRST_PAUSE;
            while let Err(error) = store.undo(&claim.key, &claim.token).await {
                if Instant::now() >= over_at {
                    return;
                }
                tracing::debug!(lock.key = %claim.key, ?error, "cannot undo a grant; retrying");
                sleep(pause).await;
                pause = MAX_PAUSE.min(pause * 2);
            }
            tracing::info!(lock.key = %claim.key, "undid a grant that no client received");
        });
    }
}

/// The answer to a claim on its way to the caller.
pub(crate) struct Undelivered {
    owed: Arc<Owed>,
    claim: Claim,
    answer: Option<Answer>,
}

impl Undelivered {
    /// Hands over the answer. If its effect is unknown, a token of the service is undone.
    pub(crate) fn deliver(mut self) -> Answer {
        let answer = self.answer.take().expect("an answer is delivered once");
        if matches!(&answer, Err(StoreError { effect: Effect::Unknown, .. })) {
            self.owe();
        }
        answer
    }

    fn owe(&self) {
        if self.claim.origin == Origin::Service {
            self.owed.take_back(&self.claim);
        }
    }
}

impl Drop for Undelivered {
    fn drop(&mut self) {
        match &self.answer {
            Some(Ok(Attempt::Granted(_) | Attempt::Again(_)))
            | Some(Err(StoreError { effect: Effect::Unknown, .. })) => self.owe(),
            _ => (),
        }
    }
}
