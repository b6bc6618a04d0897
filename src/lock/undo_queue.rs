//! Grants that no client received, and that the service still has to undo.
//!
//! A grant that began a lease has a [`Guard`]. If no request was handed the answer, the guard ends
//! that lease and no other, unless its client was heard of since. A call without an answer is undone
//! by the token, if the service made it: nobody else knows that token.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::lock::backoff::Backoff;
use crate::lock::error::{Effect, StoreError};
use crate::lock::lease::{Claim, Origin, Owner, Receipt};
use crate::lock::leases::Leases;
use crate::lock::store::{Answer, Condition, Ended, Store, Target, Win};
use crate::lock::time::Ttl;
use crate::lock::token::FencingToken;
use crate::lock::turns::Turn;

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
pub(crate) struct UndoQueue {
    store: Arc<dyn Store>,
    leases: Arc<Leases>,
    tasks: TaskTracker,
    room: Arc<Semaphore>,
}

impl UndoQueue {
    pub(crate) fn new(store: Arc<dyn Store>, leases: Arc<Leases>, tasks: TaskTracker) -> Self {
        Self { store, leases, tasks, room: Arc::new(Semaphore::new(MAX_OWED)) }
    }

    /// Makes an answer ready for a request, with the moments of the question and of the answer. A
    /// grant in it is known from here on, and is taken back unless a request is handed it; the turn
    /// of its claim lasts until then.
    pub(crate) fn deliver(
        self: &Arc<Self>,
        (claim, turn): (&Claim, Option<Turn>),
        [asked, answered]: [Instant; 2],
        mut answer: Result<Answer, StoreError>,
    ) -> Delivery {
        let mut guard = None;
        match &mut answer {
            Ok(Answer::Won(win)) => {
                // Only this claim knows a token of the service: an earlier answer was lost.
                win.fresh |= claim.origin == Origin::Service;
                self.leases.granted(claim, win);
                // Nobody but the request of this answer knows of the lease.
                guard = win.fresh.then(|| Guard::of(self, (claim, turn), win));
            }
            Err(StoreError { effect: Effect::Unknown, .. }) => self.undo(claim),
            _ => (),
        }
        Delivery { answer, guard, asked, answered }
    }

    /// Undoes whatever the claim's token has or may get, if the service made that token.
    pub(super) fn undo(&self, claim: &Claim) {
        if claim.origin == Origin::Client {
            return;
        }
        let all = Target::of(&claim.key, &claim.token, None).only(Condition::Ever);
        drop(self.push(all, claim.ttl.as_duration() + LONGEST_CALL, None));
    }

    /// Ends a lease, again until the store confirms it, for as long as the lease `lasts`. The turn
    /// of its claim lasts until the store has been asked once.
    fn push(&self, of: Target, lasts: Duration, mut turn: Option<Turn>) -> Option<JoinHandle<()>> {
        let Ok(room) = self.room.clone().try_acquire_owned() else {
            tracing::warn!(lock.key = %of.key, "undo queue full; lease will expire by its TTL");
            return None;
        };
        let store = self.store.clone();
        let leases = self.leases.clone();
        let over_at = Instant::now() + lasts;
        Some(self.tasks.spawn(async move {
            let _room = room;
            let mut attempts = ATTEMPTS;
            let ended = loop {
                let ended = store.end(&of).await;
                drop(turn.take());
                match ended {
                    Ok(ended) => break ended,
                    Err(_) if Instant::now() >= over_at => return,
                    Err(error) => {
                        tracing::debug!(lock.key = %of.key, ?error, "cannot undo a grant; retrying");
                        attempts.pause().await;
                    }
                }
            };
            let number = match &ended {
                Ended::Lease(holder) => holder.fencing_token,
                _ => None,
            };
            let owner = number.and_then(|number| leases.taken_back(&of.key, number));
            tracing::info!(
                lock.key = %of.key,
                lock.owner = owner.as_ref().map(Owner::as_str),
                lock.fencing_token = number.map(FencingToken::number),
                end = "undone",
                "undid a grant that no client received"
            );
        }))
    }
}

/// The guard of a grant that began a lease, until its answer is handed over.
struct Guard {
    undos: Arc<UndoQueue>,
    /// `None` once a request was handed the answer.
    grant: Option<Target>,
    ttl: Ttl,
    turn: Option<Turn>,
}

impl Guard {
    fn of(undos: &Arc<UndoQueue>, (claim, turn): (&Claim, Option<Turn>), win: &Win) -> Self {
        let Win { lease, replaces: replaced, place, by, .. } = win;
        let origin = claim.origin;
        let place = *place;
        let replaced = *replaced;
        let by = *by;
        let only = Condition::Unheard(Receipt { origin, place, replaced, by });
        let grant = Target::of(&claim.key, &claim.token, Some(lease.fencing_token)).only(only);
        Self { undos: undos.clone(), grant: Some(grant), ttl: lease.ttl, turn }
    }

    fn undo(&mut self) -> Option<JoinHandle<()>> {
        self.undos.push(self.grant.take()?, self.ttl.as_duration(), self.turn.take())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        drop(self.undo());
    }
}

/// The store's answer to a claim, on its way to a request, with the guard of its grant.
pub(crate) struct Delivery {
    answer: Result<Answer, StoreError>,
    guard: Option<Guard>,
    /// The moment of the question.
    pub(crate) asked: Instant,
    answered: Instant,
}

impl Delivery {
    /// An answer without a question.
    pub(crate) fn of(answer: Answer) -> Self {
        let now = Instant::now();
        Self { answer: Ok(answer), guard: None, asked: now, answered: now }
    }

    /// The answer, before it is handed over.
    pub(crate) fn answer(&self) -> &Result<Answer, StoreError> {
        &self.answer
    }

    /// Notes that the lease of the grant is renewed by its keeper, who ends it from now on: on Redlock
    /// its votes are no longer open.
    pub(crate) fn kept(&mut self) {
        if let Some(grant) = self.guard.as_mut().and_then(|guard| guard.grant.as_mut()) {
            grant.only = Condition::LetGo { grants: false };
        }
    }

    /// Leaves the grant as it is, also if no request is handed the answer.
    pub(crate) fn count_as_told(&mut self) {
        self.guard.iter_mut().for_each(|guard| guard.grant = None);
    }

    /// Lets the next request of the claim ask, which finds a lease that is kept.
    pub(crate) fn end_turn(&mut self) {
        self.guard.iter_mut().for_each(|guard| guard.turn = None);
    }

    /// Takes the grant back, if there is one. The task ends with that.
    pub(crate) fn take_back(mut self) -> Option<JoinHandle<()>> {
        self.guard.as_mut()?.undo()
    }

    /// Hands the answer over, with what is left of its lease by now: from here on the client counts
    /// as told.
    pub(crate) fn hand_over(mut self) -> Result<Answer, StoreError> {
        self.count_as_told();
        let mut answer = self.answer;
        if let Ok(Answer::Won(win)) = &mut answer {
            win.lease.count_down_since(self.answered);
        }
        answer
    }
}

/// A claim whose request is being answered.
pub struct Answering {
    pub(super) undos: Arc<UndoQueue>,
    pub(super) claim: Claim,
}

impl Drop for Answering {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.undos.undo(&self.claim);
        }
    }
}
