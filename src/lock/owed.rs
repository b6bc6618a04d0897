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
use crate::lock::lease::{Claim, Origin, Receipt};
use crate::lock::leases::Leases;
use crate::lock::store::{Answer, Ended, If, Store, Target, Win};
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

/// Undoes grants, retrying until the store confirms.
pub(crate) struct Owed {
    store: Arc<dyn Store>,
    leases: Arc<Leases>,
    tasks: TaskTracker,
    room: Arc<Semaphore>,
}

impl Owed {
    pub(crate) fn new(store: Arc<dyn Store>, leases: Arc<Leases>, tasks: TaskTracker) -> Self {
        Self { store, leases, tasks, room: Arc::new(Semaphore::new(MAX_OWED)) }
    }

    /// Makes an answer ready for a request, with the moments of the question and of the answer. A
    /// grant in it is known from here on, and is taken back unless a request is handed it.
    pub(crate) fn deliver(
        self: &Arc<Self>,
        claim: &Claim,
        [asked, answered]: [Instant; 2],
        mut answer: Result<Answer, StoreError>,
    ) -> Delivery {
        let mut guard = None;
        match &mut answer {
            Ok(Answer::Won(win)) => {
                // Only this claim knows a token of the service: an earlier answer was lost.
                win.fresh |= claim.origin == Origin::Service;
                self.leases.granted(claim, win);
                // Nobody but the requests of this answer knows of the lease.
                if win.fresh && win.replaces.is_none() {
                    guard = Some(Arc::new(Guard::of(self, claim, win)));
                }
            }
            Err(StoreError { effect: Effect::Unknown, .. }) => self.undo(claim),
            _ => (),
        }
        Delivery { answer, guard, asked, answered, alone: true }
    }

    /// Undoes whatever the claim's token has or may get, if the service made that token.
    fn undo(&self, claim: &Claim) {
        if claim.origin == Origin::Client {
            return;
        }
        let all = Target::of(&claim.key, &claim.token, None).only(If::Ever);
        self.owe(all, claim.ttl.as_duration() + LONGEST_CALL);
    }

    /// Ends a lease, again until the store confirms it, for as long as the lease `lasts`.
    fn owe(&self, of: Target, lasts: Duration) {
        let Ok(room) = self.room.clone().try_acquire_owned() else {
            tracing::warn!(lock.key = %of.key, "undo queue full; lease will expire by its TTL");
            return;
        };
        let (store, leases) = (self.store.clone(), self.leases.clone());
        let over_at = Instant::now() + lasts;
        self.tasks.spawn(async move {
            let _room = room;
            let mut attempts = ATTEMPTS;
            let ended = loop {
                match store.end(&of).await {
                    Ok(ended) => break ended,
                    Err(_) if Instant::now() >= over_at => return,
                    Err(error) => {
                        tracing::debug!(lock.key = %of.key, ?error, "cannot undo a grant; retrying");
                        attempts.pause().await;
                    }
                }
            };
            if let Ended::Lease(holder) = ended {
                leases.taken_back(&of.key, &holder);
            }
            tracing::info!(lock.key = %of.key, "undid a grant that no client received");
        });
    }
}

/// The guard of a grant that began a lease.
struct Guard {
    owed: Arc<Owed>,
    grant: Target,
    ttl: Ttl,
    /// True once a request was handed the answer.
    handed: AtomicBool,
}

impl Guard {
    fn of(owed: &Arc<Owed>, claim: &Claim, Win { lease, place, by, .. }: &Win) -> Self {
        let (origin, place, by) = (claim.origin, *place, *by);
        let receipt = Receipt { renewals: lease.renewals, origin, place, by };
        let grant = Target::of(&claim.key, &claim.token, Some(lease.fencing_token));
        let grant = grant.only(If::Unheard(receipt));
        Self { owed: owed.clone(), grant, ttl: lease.ttl, handed: AtomicBool::new(false) }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.handed.load(Ordering::Relaxed) {
            self.owed.owe(self.grant.clone(), self.ttl.as_duration());
        }
    }
}

/// The store's answer to a claim, on its way to a request, with the guard of its grant.
pub(crate) struct Delivery {
    answer: Result<Answer, StoreError>,
    guard: Option<Arc<Guard>>,
    /// The moment of the question.
    pub(crate) asked: Instant,
    answered: Instant,
    /// True if no other request was told of this grant: then the end of its hold ends the lease.
    pub(crate) alone: bool,
}

impl Delivery {
    /// The answer to a claim that was released.
    pub(crate) fn gone() -> Self {
        let now = Instant::now();
        Self { answer: Ok(Answer::Gone), guard: None, asked: now, answered: now, alone: false }
    }

    /// The answer, before it is handed over.
    pub(crate) fn answer(&self) -> &Result<Answer, StoreError> {
        &self.answer
    }

    /// The same answer for another request of the claim: the lease is not new to it.
    pub(crate) fn again(&self) -> Self {
        let answer = match &self.answer {
            Ok(Answer::Won(win)) => Ok(Answer::Won(Win { fresh: false, ..win.clone() })),
            Ok(other) => Ok(other.clone()),
            Err(error) => Err(error.again()),
        };
        Self { answer, guard: self.guard.clone(), alone: false, ..*self }
    }

    /// Hands the answer over, with what is left of its lease by now: from here on the client counts
    /// as told.
    pub(crate) fn hand_over(self) -> Result<Answer, StoreError> {
        if let Some(guard) = &self.guard {
            guard.handed.store(true, Ordering::Relaxed);
        }
        let mut answer = self.answer;
        if let Ok(Answer::Won(win)) = &mut answer {
            let since = millis_down(Uptime::at(self.answered).elapsed());
            win.lease.ttl = Ttl::from_millis(win.lease.ttl.as_millis().saturating_sub(since));
        }
        answer
    }
}

/// A claim whose request is being answered.
pub struct Answering {
    pub(super) owed: Arc<Owed>,
    pub(super) claim: Claim,
}

impl Drop for Answering {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.owed.undo(&self.claim);
        }
    }
}
