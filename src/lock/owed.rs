//! Grants that no client received, and that the service still has to undo.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::lock::backoff::Backoff;
use crate::lock::error::{Effect, StoreError};
use crate::lock::lease::{Claim, Origin};
use crate::lock::store::{Attempt, Store};

/// The most grants to undo at once: a store outage must not fill the memory. Further leases expire
/// by their TTL, and the log says so.
const MAX_OWED: usize = 10_000;

/// The pauses between attempts to end a lease: short enough that its key is free within a second of
/// the store's return.
pub(crate) const ATTEMPTS: Backoff =
    Backoff::new(Duration::from_millis(50), Duration::from_millis(500));

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

    /// Wraps an answer so that a grant in it is undone unless it is delivered. An answer of unknown
    /// effect is undone in any case.
    pub(crate) fn undelivered(self: Arc<Self>, claim: Claim, answer: Answer) -> Undelivered {
        if matches!(&answer, Err(StoreError { effect: Effect::Unknown, .. })) {
            self.take_back(&claim, None);
        }
        Undelivered { owed: self, claim, answer: Some(answer) }
    }

    /// Undoes whatever the claim's token has or may get, if the service made that token. Of a
    /// client's token, only what a request got `in_doubt`.
    fn take_back(&self, claim: &Claim, in_doubt: Option<String>) {
        let request = match claim.origin {
            Origin::Service => None,
            Origin::Client if in_doubt.is_none() => return,
            Origin::Client => in_doubt,
        };
        let Ok(room) = self.room.clone().try_acquire_owned() else {
            tracing::warn!(lock.key = %claim.key, "undo queue full; lease will expire by its TTL");
            return;
        };
        let (store, claim) = (self.store.clone(), claim.clone());
        self.tasks.spawn(async move {
            let _room = room;
            let over_at = Instant::now() + claim.ttl.as_duration() + LONGEST_CALL;
            let mut attempts = ATTEMPTS;
            let (key, token) = (&claim.key, &claim.token);
            let undo = async || match &request {
                Some(request) => store.give_up(key, token, request).await,
                None => store.undo(key, token).await,
            };
            while let Err(error) = undo().await {
                if Instant::now() >= over_at {
                    return;
                }
                tracing::debug!(lock.key = %claim.key, ?error, "cannot undo a grant; retrying");
                attempts.pause().await;
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
    /// Hands over the answer.
    pub(crate) fn deliver(mut self) -> Answer {
        self.answer.take().expect("an answer is delivered once")
    }
}

impl Drop for Undelivered {
    fn drop(&mut self) {
        if let Some(Ok(Attempt::Won(win))) = &self.answer {
            self.owed.take_back(&self.claim, win.in_doubt.clone());
        }
    }
}

/// A claim whose request is being answered.
pub struct Answering {
    owed: Arc<Owed>,
    claim: Claim,
}

impl Answering {
    pub(super) fn new(owed: Arc<Owed>, claim: Claim) -> Self {
        Self { owed, claim }
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.owed.take_back(&self.claim, None);
        }
    }
}
