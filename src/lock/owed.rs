//! Grants that no client received, and that the service still has to undo.
//!
//! A grant that began a lease has one [`Guard`], shared by all requests that are told of it. If none
//! of them was handed the answer, the guard ends that lease and no other, unless its token has
//! acquired or refreshed it since. A call without an answer is undone by the token, if the service
//! made it: nobody else knows that token.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::lock::backoff::Backoff;
use crate::lock::error::{Effect, StoreError};
use crate::lock::key::LockKey;
use crate::lock::lease::{Claim, Holding, Origin, Receipt};
use crate::lock::store::{Attempt, Store, Win};
use crate::lock::time::{Ttl, Uptime, millis_down};

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

    /// Guards an answer: a grant in it is taken back unless a request is handed it.
    pub(crate) fn guarded(self: Arc<Self>, claim: &Claim, answer: Answer) -> Guarded {
        let guard = match &answer {
            Ok(Attempt::Won(win)) if began_a_lease(claim, win) => {
                let receipt = receipt(claim, win);
                let (ttl, handed) = (win.lease.ttl, AtomicBool::new(false));
                Some(Arc::new(Guard { owed: self, receipt, ttl, handed }))
            }
            Err(StoreError { effect: Effect::Unknown, .. }) => {
                self.undo(claim);
                None
            }
            _ => None,
        };
        Guarded { answer, guard }
    }

    /// Undoes whatever the claim's token has or may get, if the service made that token.
    fn undo(&self, claim: &Claim) {
        if claim.origin == Origin::Client {
            return;
        }
        let (store, claim) = (self.store.clone(), Arc::new(claim.clone()));
        let (key, lasts) = (claim.key.clone(), claim.ttl.as_duration() + LONGEST_CALL);
        self.owe(key, lasts, move || {
            let (store, claim) = (store.clone(), claim.clone());
            async move { store.undo(&claim.key, &claim.token).await }
        });
    }

    /// Retries an undo until the store confirms it, for as long as what it would end `lasts`.
    fn owe<F>(&self, key: LockKey, lasts: Duration, undo: impl Fn() -> F + Send + 'static)
    where
        F: Future<Output = Result<(), StoreError>> + Send,
    {
        let Ok(room) = self.room.clone().try_acquire_owned() else {
            tracing::warn!(lock.key = %key, "undo queue full; lease will expire by its TTL");
            return;
        };
        let over_at = Instant::now() + lasts;
        self.tasks.spawn(async move {
            let _room = room;
            let mut attempts = ATTEMPTS;
            while let Err(error) = undo().await {
                if Instant::now() >= over_at {
                    return;
                }
                tracing::debug!(lock.key = %key, ?error, "cannot undo a grant; retrying");
                attempts.pause().await;
            }
            tracing::info!(lock.key = %key, "undid a grant that no client received");
        });
    }
}

/// Returns true if nobody but the requests of this answer can know of its lease: it is new, or its
/// token is known to nobody else.
fn began_a_lease(claim: &Claim, win: &Win) -> bool {
    win.replaces.is_none() && (win.fresh || claim.origin == Origin::Service)
}

fn receipt(claim: &Claim, Win { lease, place, node, .. }: &Win) -> Receipt {
    let lease = Holding {
        key: claim.key.clone(),
        token: claim.token.clone(),
        fencing_token: lease.fencing_token,
        renewals: lease.renewals,
    };
    Receipt { lease, origin: claim.origin, place: *place, node: *node }
}

/// The guard of a grant that began a lease.
struct Guard {
    owed: Arc<Owed>,
    receipt: Receipt,
    ttl: Ttl,
    /// True once a request was handed the answer.
    handed: AtomicBool,
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.handed.load(Ordering::Relaxed) {
            let (store, receipt) = (self.owed.store.clone(), self.receipt.clone());
            let (key, lasts) = (receipt.lease.key.clone(), self.ttl.as_duration());
            let receipt = Arc::new(receipt);
            self.owed.owe(key, lasts, move || {
                let (store, receipt) = (store.clone(), receipt.clone());
                async move { store.take_back(&receipt).await }
            });
        }
    }
}

/// The answer to a claim on its way to a request.
pub(crate) struct Guarded {
    answer: Answer,
    guard: Option<Arc<Guard>>,
}

impl Guarded {
    /// The answer, before it is handed over.
    pub(crate) fn answer(&self) -> &Answer {
        &self.answer
    }

    /// The same, or the error of a call without an answer.
    pub(crate) fn answered(self) -> Result<Self, StoreError> {
        let Self { answer, guard } = self;
        Ok(Self { answer: Ok(answer?), guard })
    }

    /// The same answer for another request of the claim: the lease is not new to it.
    pub(crate) fn again(&self) -> Self {
        let answer = match &self.answer {
            Ok(Attempt::Won(win)) => Ok(Attempt::Won(Win { fresh: false, ..win.clone() })),
            Ok(other) => Ok(other.clone()),
            Err(error) => Err(error.again()),
        };
        Self { answer, guard: self.guard.clone() }
    }

    /// Hands the answer over: from here on the client counts as told.
    pub(crate) fn hand_over(self) -> Answer {
        if let Some(guard) = &self.guard {
            guard.handed.store(true, Ordering::Relaxed);
        }
        self.answer
    }
}

/// The store's answer, and the moments of the question and of the answer.
pub(crate) struct Delivery {
    pub(crate) answer: Guarded,
    pub(crate) asked: Instant,
    pub(crate) answered: Instant,
    /// True if no other request was told of this grant: then the end of its hold ends the lease.
    pub(crate) alone: bool,
}

impl Delivery {
    /// Hands the answer over, with what is left of its lease by now.
    pub(crate) fn hand_over(self) -> Answer {
        let mut answer = self.answer.hand_over();
        if let Ok(Attempt::Won(win)) = &mut answer {
            let since = millis_down(Uptime::at(self.answered).elapsed());
            win.lease.ttl = Ttl::from_millis(win.lease.ttl.as_millis().saturating_sub(since));
        }
        answer
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
            self.owed.undo(&self.claim);
        }
    }
}
