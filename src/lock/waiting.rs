//! Waiting in line, within one instance: the only waiting loop.
//!
//! The requests of a key stand behind claims, one for each token; the store has the order of the
//! claims. One task a key asks the store for all of them: it takes those out whose requests are
//! gone, lets new claims join, asks the last question for those that stop waiting, and asks for
//! the head when it is rung or when it is time. All calls about a key's line are made by that
//! task, one round after another, so none overtakes another, none is dropped half-way, and a
//! request is told no while no question for its claim is under way.

use std::collections::HashMap;
use std::mem::take;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::{join, join_all};
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::lock::error::{LockError, StoreError};
use crate::lock::key::LockKey;
use crate::lock::key_line::{Delivery, KeyLine, Request, Told, Work};
use crate::lock::lease::{Claim, Lease, LockStatus, Origin};
use crate::lock::locks::Answer;
use crate::lock::owed::{Owed, Undelivered};
use crate::lock::store::{Attempt, Keep, Store, Turn};
use crate::lock::ticket::Ticket;
use crate::lock::token::LeaseToken;
use crate::lock::watched;

/// How many claims join at once for one key.
const ROUND: usize = 256;

/// How long the next in line is left unasked for after a grant. The lease may be released at once
/// by a client that tells nobody; a hint comes sooner where there is one.
const AFTER_A_GRANT: Duration = Duration::from_millis(200);

/// Before asking again where the store did not answer.
const AFTER_A_FAILURE: Duration = Duration::from_millis(500);

/// How many may wait.
#[derive(Clone, Copy, Debug)]
pub struct WaitLimits {
    /// Requests for one key.
    pub per_key: usize,
    /// Requests in this instance.
    pub per_instance: usize,
    /// Keys that are waited for in this instance: each costs the store questions while it is.
    pub keys: usize,
}

/// All requests of this instance that wait.
pub(crate) struct Waiters {
    store: Arc<dyn Store>,
    owed: Arc<Owed>,
    tasks: TaskTracker,
    limits: WaitLimits,
    lines: Mutex<Lines>,
}

#[derive(Default)]
struct Lines {
    keys: HashMap<LockKey, KeyLine>,
    requests: usize,
    next_request: u64,
}

impl Waiters {
    pub(crate) fn new(
        store: Arc<dyn Store>,
        owed: Arc<Owed>,
        tasks: TaskTracker,
        limits: WaitLimits,
    ) -> Self {
        Self { store, owed, tasks, limits, lines: Mutex::default() }
    }

    /// How many requests wait.
    pub(crate) fn len(&self) -> usize {
        self.with(|lines| lines.requests)
    }

    /// Has a request wait behind its claim, until it is told or the ticket is dropped.
    pub(crate) fn enter(self: &Arc<Self>, claim: Claim) -> Result<Ticket, LockError> {
        let (tell, told) = oneshot::channel();
        let number = self.with(|lines| {
            let Lines { keys, requests, next_request } = lines;
            let room = keys.len() < self.limits.keys || keys.contains_key(&claim.key);
            if *requests >= self.limits.per_instance || !room {
                return Err(LockError::TooManyWaiters("this instance has too many waiters"));
            }
            let line = keys.entry(claim.key.clone()).or_insert_with(|| self.begin_line(&claim.key));
            if line.requests() >= self.limits.per_key {
                return Err(LockError::TooManyWaiters("the line for this key is full"));
            }
            (*next_request, *requests) = (*next_request + 1, *requests + 1);
            line.enter(claim.clone(), *next_request, tell);
            Ok(*next_request)
        });
        Ok(Ticket::new(self.clone(), claim, number?, told))
    }

    /// Takes a claim that is released out of the line of this instance, once no question for it is
    /// under way. Its requests are told by [`ReleasedRequests::told`].
    ///
    /// # Cancel safety
    ///
    /// The claim goes all the same, and its requests are told that nobody knows.
    pub(crate) async fn release(&self, key: &LockKey, token: &LeaseToken) -> ReleasedRequests {
        let taken_out = self.with_line(key, |line| line.release(token)).flatten();
        let requests = match taken_out {
            Some(taken_out) => taken_out.await.unwrap_or_default(),
            None => Vec::new(),
        };
        ReleasedRequests(requests)
    }

    /// Uses the line of a key, if somebody waits for it.
    pub(super) fn with_line<T>(
        &self,
        key: &LockKey,
        use_it: impl FnOnce(&mut KeyLine) -> T,
    ) -> Option<T> {
        self.with(|lines| {
            let line = lines.keys.get_mut(key)?;
            let before = line.requests();
            let used = use_it(line);
            lines.requests = lines.requests + line.requests() - before;
            Some(used)
        })
    }

    /// An answer to a claim that is taken back unless somebody receives it.
    pub(super) fn undelivered(&self, claim: Claim, answer: Answer) -> Undelivered {
        self.owed.clone().undelivered(claim, answer)
    }

    fn with<T>(&self, use_them: impl FnOnce(&mut Lines) -> T) -> T {
        use_them(&mut self.lines.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn begin_line(self: &Arc<Self>, key: &LockKey) -> KeyLine {
        let bell = Arc::new(Notify::new());
        let serving = self.clone().serve(key.clone(), bell.clone());
        self.tasks.spawn(watched::sound("the task of a key that is waited for", serving));
        KeyLine::new(bell)
    }

    /// The task of a key: ends when nobody waits for the key any more, and the store knows it.
    async fn serve(self: Arc<Self>, key: LockKey, bell: Arc<Notify>) {
        let wakeup = self.store.listen(&key);
        let mut ask_at = Instant::now() + AFTER_A_FAILURE;
        let mut leave_at = Instant::now();
        let mut rung = false;
        while let Some(work) = self.take_work(&key, leave_at) {
            if !self.leave(&key, work.leaving).await {
                leave_at = Instant::now() + AFTER_A_FAILURE;
            }
            let ended = self.ended(&key, wakeup.take_ended());
            let joins = work.joining.into_iter().map(|claim| (claim, None)).chain(ended);
            let asked = join_all(joins.map(|(claim, stood)| self.ask(claim, stood)));
            let lasts = join_all(work.last_questions.into_iter().map(|claim| self.ask_last(claim)));
            let (asked, lasts) = join(asked, lasts).await;
            for answered in asked {
                ask_at = ask_at.min(self.note(&key, answered));
            }
            for (claim, asked, answer) in lasts {
                self.note_last(&key, claim, asked, answer);
            }
            if Instant::now() >= ask_at {
                ask_at = self.ask_for_head(&key, take(&mut rung)).await.max(leave_at);
            }
            let Some(nobody) = self.with_line(&key, |line| line.is_empty()) else { continue };
            tokio::select! {
                () = bell.notified() => (),
                () = wakeup.rung(), if !nobody => (ask_at, rung) = (Instant::now(), true),
                () = tokio::time::sleep_until(ask_at), if !nobody => (),
                () = tokio::time::sleep_until(leave_at), if nobody => (),
            }
        }
    }

    /// What is to be told to the store in this round; `None`, and no line any more, if nobody
    /// waits. Departures are told from `leave_at` on.
    fn take_work(&self, key: &LockKey, leave_at: Instant) -> Option<Work> {
        let due = Instant::now() >= leave_at;
        let work = self.with_line(key, |line| line.take_work(ROUND, due))?;
        let idle = work.leaving.is_empty();
        self.with(|lines| {
            if idle && lines.keys.get(key).is_some_and(KeyLine::is_over) {
                lines.keys.remove(key);
                return None;
            }
            Some(work)
        })
    }

    /// Takes claims out of the store's line; says whether that needs no second try.
    async fn leave(&self, key: &LockKey, leaving: Vec<(LeaseToken, Keep)>) -> bool {
        if leaving.is_empty() {
            return true;
        }
        let Err(error) = self.store.leave(key, &leaving).await else { return true };
        tracing::debug!(lock.key = %key, ?error, "claims could not leave the line; retrying");
        self.with_line(key, |line| line.leave_again(leaving));
        false
    }

    /// The claims at these places, which have ended elsewhere.
    fn ended(&self, key: &LockKey, places: Vec<u64>) -> Vec<(Claim, Option<u64>)> {
        let at = |line: &mut KeyLine| places.iter().filter_map(|place| line.at(*place)).collect();
        self.with_line(key, at).unwrap_or_default()
    }

    async fn ask(&self, claim: Claim, stood: Option<u64>) -> Answered {
        let asked = Instant::now();
        let turn = self.store.wait_turn(&claim, stood).await;
        Answered { claim, asked, turn }
    }

    /// The last question for a claim: a key that is free by now is not called held.
    async fn ask_last(&self, claim: Claim) -> (Claim, Instant, Answer) {
        let asked = Instant::now();
        let answer = self.store.try_acquire(&claim).await;
        (claim, asked, answer)
    }

    /// Asks for the head, and for whom else the key was handed to; says when to ask again.
    async fn ask_for_head(&self, key: &LockKey, rung: bool) -> Instant {
        let mut next = self.with_line(key, |line| line.head()).flatten();
        for _ in 0..ROUND {
            let Some((claim, stood)) = next else { break };
            let token = claim.token.clone();
            let answered = self.ask(claim, stood).await;
            let handed = match &answered.turn {
                Ok(Turn::Waiting(waiting)) => waiting.handed.clone(),
                _ => None,
            };
            let failed = answered.turn.is_err();
            let found_free = !rung && matches!(answered.turn, Ok(Turn::Granted(_)));
            let gone = matches!(answered.turn, Ok(Turn::Gone));
            let ask_at = self.note(key, answered);
            match handed.filter(|handed| *handed != token) {
                None if failed => return Instant::now() + AFTER_A_FAILURE,
                // Nobody released it to this line: the store may have lost the line, and the next
                // one hears of that; else it hears how long the lease lasts.
                None if found_free || gone => {
                    next = self.with_line(key, |line| line.head()).flatten();
                }
                None => return ask_at,
                Some(handed) => {
                    next = self.with_line(key, |line| line.claim(&handed)).flatten();
                    if next.is_none() {
                        // Leaves in the next round, together with all others that are gone.
                        self.with_line(key, |line| line.leave_handed(handed));
                        return Instant::now();
                    }
                }
            }
        }
        Instant::now() + AFTER_A_GRANT
    }

    /// Does what an answer asks for: delivers a grant, notes a place. Says when to ask again.
    fn note(&self, key: &LockKey, answered: Answered) -> Instant {
        let Answered { claim, asked, turn } = answered;
        match turn {
            Ok(Turn::Granted(lease)) => self.granted(key, claim, asked, Attempt::Granted(lease)),
            Ok(Turn::Again(lease)) => self.granted(key, claim, asked, Attempt::Again(lease)),
            Ok(Turn::Waiting(waiting)) => {
                self.with_line(key, |line| line.note(&claim.token, &waiting));
                Instant::now() + waiting.recheck_after
            }
            Ok(Turn::Gone) => {
                let told = self.with_line(key, |line| line.take_out(&claim.token));
                told.into_iter().flatten().for_each(|request| request.tell(Told::Cancelled));
                asked
            }
            Err(error) => {
                // A claim that stands in line waits on; one that could not join is told.
                if self.with_line(key, |line| line.is_joining(&claim.token)) == Some(true) {
                    let told = self.with_line(key, |line| {
                        let told = line.take_out(&claim.token);
                        // It may have joined, or may still.
                        line.leave_after_failure(&claim);
                        told
                    });
                    self.failed(told.unwrap_or_default(), claim, asked, error);
                } else {
                    self.taken_back_if_gone(key, claim, error);
                }
                asked + AFTER_A_FAILURE
            }
        }
    }

    /// A question for a claim has failed that may have granted it: if nobody waits for it any
    /// more, it is taken back where that may be done.
    fn taken_back_if_gone(&self, key: &LockKey, claim: Claim, error: StoreError) {
        if self.with_line(key, |line| line.claim(&claim.token)).flatten().is_none() {
            drop(self.undelivered(claim, Err(error)));
        }
    }

    /// Does what the answer to a last question asks for.
    fn note_last(&self, key: &LockKey, claim: Claim, asked: Instant, answer: Answer) {
        let taken = |line: &mut KeyLine| line.take_stopping(&claim.token);
        match answer {
            Ok(Attempt::Held(status)) => {
                let (told, left) = self.with_line(key, taken).unwrap_or_default();
                // The store still counts a claim that is about to leave.
                let waiters = status.waiters.saturating_sub(left);
                let status = LockStatus { waiters, ..status };
                told.into_iter().for_each(|request| request.tell(Told::Held(status.clone())));
            }
            Ok(attempt) => _ = self.granted(key, claim, asked, attempt),
            Err(error) => {
                let (told, _) = self.with_line(key, taken).unwrap_or_default();
                if told.is_empty() {
                    return self.taken_back_if_gone(key, claim, error);
                }
                self.failed(told, claim, asked, error);
            }
        }
    }

    /// Tells all requests of a claim that has the lease, and takes it out of the line of this
    /// instance. Where nobody is left to be told, a grant to a token of the service is taken back.
    fn granted(&self, key: &LockKey, claim: Claim, asked: Instant, attempt: Attempt) -> Instant {
        // A token of the service is in no other hands: the answer that granted it was lost.
        let (lease, mut attempt) = match (attempt, claim.origin) {
            (Attempt::Granted(lease), _) | (Attempt::Again(lease), Origin::Service) => {
                (lease.clone(), Attempt::Granted(lease))
            }
            (Attempt::Again(lease), Origin::Client) => (lease.clone(), Attempt::Again(lease)),
            (Attempt::Held(_), _) => return asked,
        };
        let told = self.with_line(key, |line| line.take_out(&claim.token)).unwrap_or_default();
        if told.is_empty() {
            drop(self.undelivered(claim.clone(), Ok(Attempt::Again(lease.clone()))));
        }
        let alone = told.len() == 1;
        for request in told {
            let answer = self.undelivered(claim.clone(), Ok(attempt));
            request.tell(Told::Answer(Delivery { answer, asked, alone }));
            // All but the first have what the first has been granted.
            attempt = Attempt::Again(lease.clone());
        }
        asked + after_a_grant(&lease)
    }

    /// Tells requests that the store did not answer.
    fn failed(&self, told: Vec<Request>, claim: Claim, asked: Instant, error: StoreError) {
        let alone = told.len() == 1;
        for request in told {
            let answer = self.undelivered(claim.clone(), Err(error.again()));
            request.tell(Told::Answer(Delivery { answer, asked, alone }));
        }
    }
}

/// The requests of a claim that is being released.
pub(crate) struct ReleasedRequests(Vec<Request>);

impl ReleasedRequests {
    /// Tells them that their claim was released. Without it they are told that nobody knows.
    pub(crate) fn told(self) {
        self.0.into_iter().for_each(|request| request.tell(Told::Cancelled));
    }
}

/// A claim, and what the store said to it.
struct Answered {
    claim: Claim,
    asked: Instant,
    turn: Result<Turn, StoreError>,
}

/// When to ask for the next in line at the latest: nobody tells of a lease that runs out.
fn after_a_grant(lease: &Lease) -> Duration {
    AFTER_A_GRANT.min(lease.ttl.as_duration())
}
