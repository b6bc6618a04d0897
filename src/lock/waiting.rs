//! Waiting in line, within one instance: the only waiting loop.
//!
//! The requests of a key stand behind claims, one for each token; the store has the order of the
//! claims. One task a key asks the store for all of them: it lets new claims join, takes those
//! out whose requests are gone, and asks for the head when it is rung or when it is time. All
//! calls about a key's line are made by that task, one round after another, so none overtakes
//! another, and none is dropped half-way.

use std::collections::HashMap;
use std::mem::take;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::Notify;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::lock::error::Effect;
use crate::lock::error::LockError;
use crate::lock::error::StoreError;
use crate::lock::error::Verb;
use crate::lock::key::LockKey;
use crate::lock::key_line::Delivery;
use crate::lock::key_line::KeyLine;
use crate::lock::key_line::Work;
use crate::lock::lease::Claim;
use crate::lock::lease::Origin;
use crate::lock::locks::Answer;
use crate::lock::owed::Owed;
use crate::lock::store::Attempt;
use crate::lock::store::Keep;
use crate::lock::store::Store;
use crate::lock::store::Turn;
use crate::lock::store::Waiting;
use crate::lock::ticket::Ticket;
use crate::lock::ticket::kept;
use crate::lock::token::LeaseToken;
use crate::lock::watched;

/// How many joins or departures are under way at once for one key.
const ROUND: usize = 64;

/// How long the next in line is left unasked for after a grant. The lease may be released at once
/// by a client that tells nobody; a hint comes sooner where there is one.
const AFTER_A_GRANT: Duration = Duration::from_millis(500);

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
pub(super) struct Lines {
    pub(super) keys: HashMap<LockKey, KeyLine>,
    pub(super) requests: usize,
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
        self.lines().requests
    }

    /// Lets a request wait behind its claim, until the ticket is given back or dropped.
    pub(crate) fn enter(self: &Arc<Self>, claim: Claim) -> Result<Ticket, LockError> {
        let (tell, told) = oneshot::channel();
        let (key, token) = (claim.key.clone(), claim.token.clone());
        let mut lines = self.lines();
        let Lines { keys, requests, next_request } = &mut *lines;
        let room = keys.len() < self.limits.keys || keys.contains_key(&key);
        if *requests >= self.limits.per_instance || !room {
            return Err(LockError::TooManyWaiters("this instance has too many waiters"));
        }
        let line = keys.entry(key.clone()).or_insert_with(|| self.begin_line(&key));
        if line.requests >= self.limits.per_key {
            return Err(LockError::TooManyWaiters("the line for this key is full"));
        }
        *next_request += 1;
        *requests += 1;
        line.enter(claim, *next_request, tell);
        Ok(Ticket::new(self.clone(), (key, token), *next_request, told))
    }

    pub(super) fn lines(&self) -> MutexGuard<'_, Lines> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn begin_line(self: &Arc<Self>, key: &LockKey) -> KeyLine {
        let bell = Arc::new(Notify::new());
        let serving = self.clone().serve(key.clone(), bell.clone());
        self.tasks.spawn(watched::sound("the task of a key that is waited for", serving));
        KeyLine::new(bell)
    }

    /// The task of a key: ends when nobody waits for the key any more.
    async fn serve(self: Arc<Self>, key: LockKey, bell: Arc<Notify>) {
        let wakeup = self.store.listen(&key);
        let mut ask_at = Instant::now() + AFTER_A_FAILURE;
        let mut rung = false;
        while let Some((leaving, joining)) = self.take_work(&key) {
            join_all(leaving.iter().map(|(token, keep)| self.leave(&key, token, *keep))).await;
            let joins = joining.iter().map(|claim| self.ask(claim));
            for answered in join_all(joins).await {
                ask_at = ask_at.min(self.settle(&key, answered));
            }
            if Instant::now() >= ask_at {
                ask_at = self.ask_for_head(&key, take(&mut rung)).await;
            }
            if !self.anybody(&key) {
                continue; // Ends at once: a task that sleeps on holds up the end of the service.
            }
            tokio::select! {
                () = bell.notified() => (),
                () = wakeup.rung() => (ask_at, rung) = (Instant::now(), true),
                () = tokio::time::sleep_until(ask_at) => (),
            }
        }
    }

    /// What is to be told to the store in this round; `None`, and no line any more, if nobody
    /// waits.
    fn take_work(&self, key: &LockKey) -> Option<Work> {
        let mut lines = self.lines();
        let line = lines.keys.get_mut(key)?;
        if line.claims.is_empty() && line.leaving.is_empty() {
            lines.keys.remove(key);
            return None;
        }
        Some(line.take_work(ROUND))
    }

    async fn leave(&self, key: &LockKey, token: &LeaseToken, keep: Keep) {
        if let Err(error) = self.store.leave(key, token, keep).await {
            // What the store hands to it meanwhile lapses, or comes back as nobody's below.
            tracing::debug!(lock.key = %key, ?error, "a claim could not be taken out of the line");
        }
    }

    async fn ask(&self, claim: &Claim) -> Answered {
        let asked = Instant::now();
        Answered { claim: claim.clone(), asked, turn: self.store.wait_turn(claim).await }
    }

    /// Asks for the head, and for whom else the key was handed to; says when to ask again.
    async fn ask_for_head(&self, key: &LockKey, rung: bool) -> Instant {
        let mut next = self.head(key);
        for _ in 0..ROUND {
            let Some(claim) = next else { break };
            let answered = self.ask(&claim).await;
            let handed = match &answered.turn {
                Ok(Turn::Waiting(waiting)) => waiting.handed.clone(),
                _ => None,
            };
            let failed = answered.turn.is_err();
            let found_free = !rung && matches!(answered.turn, Ok(Turn::Granted(_)));
            let ask_at = self.settle(key, answered);
            match handed.filter(|handed| *handed != claim.token) {
                None if failed => return Instant::now() + AFTER_A_FAILURE,
                // Nobody released it to this line: the store may have lost the line, and the next
                // one hears of that; else it hears how long the lease lasts.
                None if found_free => next = self.head(key),
                None => return ask_at,
                Some(handed) => {
                    next = self.claim(key, &handed);
                    if next.is_none() {
                        // It may be a client's, who may be back in a moment.
                        let keep = self.departing(key, &handed).unwrap_or(Keep::Place);
                        self.leave(key, &handed, keep).await;
                        next = self.head(key);
                    }
                }
            }
        }
        Instant::now() + AFTER_A_GRANT
    }

    fn anybody(&self, key: &LockKey) -> bool {
        self.lines().keys.get(key).is_some_and(|line| !line.claims.is_empty())
    }

    fn head(&self, key: &LockKey) -> Option<Claim> {
        self.lines().keys.get(key)?.head().cloned()
    }

    fn claim(&self, key: &LockKey, token: &LeaseToken) -> Option<Claim> {
        let lines = self.lines();
        lines.keys.get(key)?.claims.get(token).map(|standing| standing.claim.clone())
    }

    /// How a claim steps out that has departed in this very moment.
    fn departing(&self, key: &LockKey, token: &LeaseToken) -> Option<Keep> {
        let lines = self.lines();
        let mut leaving = lines.keys.get(key)?.leaving.iter();
        leaving.find(|(leaving, _)| leaving == token).map(|(_, keep)| *keep)
    }

    /// Does what an answer asks for: delivers a grant, notes a place. Says when to ask again.
    fn settle(&self, key: &LockKey, answered: Answered) -> Instant {
        let Answered { claim, asked, turn } = answered;
        match turn {
            Ok(Turn::Granted(lease)) => {
                self.deliver(key, claim, asked, Ok(Attempt::Granted(lease)));
                asked + AFTER_A_GRANT
            }
            Ok(Turn::Again(lease)) => {
                // A token of the service is in no other hands: the answer that granted it was lost.
                let attempt = match claim.origin {
                    Origin::Service => Attempt::Granted(lease),
                    Origin::Client => Attempt::Again(lease),
                };
                self.deliver(key, claim, asked, Ok(attempt));
                asked + AFTER_A_GRANT
            }
            Ok(Turn::Waiting(waiting)) => self.note(key, &claim.token, &waiting),
            Err(error) => {
                // A claim that stands in line waits on; one that could not join is told.
                match self.missed(key, &claim.token) {
                    Missed::Joining => {
                        if error.effect == Effect::Unknown {
                            self.step_aside(&claim);
                        }
                        self.deliver(key, claim, asked, Err(error));
                    }
                    Missed::Gone => drop(self.owed.clone().undelivered(claim, Err(error))),
                    Missed::Waiting => (),
                }
                asked + AFTER_A_FAILURE
            }
        }
    }

    /// Has a claim that may have joined leave again, as its requests do.
    fn step_aside(&self, claim: &Claim) {
        if let Some(line) = self.lines().keys.get_mut(&claim.key) {
            line.leaving.push((claim.token.clone(), kept(claim)));
            line.bell.notify_one();
        }
    }

    /// Who has got no answer. A claim that lost its place with the store's data joins again in
    /// the next round.
    fn missed(&self, key: &LockKey, token: &LeaseToken) -> Missed {
        let mut lines = self.lines();
        let Some(line) = lines.keys.get_mut(key) else { return Missed::Gone };
        match line.claims.get(token) {
            None if line.settled.contains(token) => Missed::Waiting,
            None => Missed::Gone,
            Some(standing) if !standing.joined => Missed::Joining,
            Some(standing) => {
                if standing.place.is_none() && !line.joining.contains(token) {
                    line.joining.push(token.clone());
                }
                Missed::Waiting
            }
        }
    }

    /// Tells all requests of a claim, and takes it out of the line of this instance. Where nobody
    /// is left to be told, a grant to a token of the service is taken back.
    fn deliver(&self, key: &LockKey, claim: Claim, asked: Instant, answer: Answer) {
        let mut lines = self.lines();
        let told = lines.take(key, &claim.token);
        let settled = lines.keys.get(key).is_some_and(|line| line.settled.contains(&claim.token));
        let alone = told.len() == 1;
        match answer {
            Ok(mut attempt) => {
                let lease = match &attempt {
                    Attempt::Granted(lease) | Attempt::Again(lease) => lease.clone(),
                    Attempt::Held(_) => return,
                };
                // All but the first have what the first has been granted.
                let nobody = told.is_empty();
                for tell in told {
                    let answer = self.owed.clone().undelivered(claim.clone(), Ok(attempt));
                    // Whoever is gone drops the answer, which does what is to be done.
                    let _ = tell.send(Delivery { answer, asked, alone });
                    attempt = Attempt::Again(lease.clone());
                }
                if nobody && !settled {
                    drop(self.owed.clone().undelivered(claim, Ok(Attempt::Again(lease))));
                }
            }
            Err(error) => {
                let (effect, mut error) = (error.effect, Some(error));
                for tell in told {
                    let error = error.take().unwrap_or_else(|| error_again(&claim, effect));
                    let answer = self.owed.clone().undelivered(claim.clone(), Err(error));
                    let _ = tell.send(Delivery { answer, asked, alone });
                }
            }
        }
    }

    /// Notes the place of a claim. If the store has only now heard of one that stood in line
    /// before, it has lost its data, and all of this instance join again.
    fn note(&self, key: &LockKey, token: &LeaseToken, waiting: &Waiting) -> Instant {
        let mut lines = self.lines();
        let Some(line) = lines.keys.get_mut(key) else { return Instant::now() };
        let Some(standing) = line.claims.get_mut(token) else {
            return Instant::now() + AFTER_A_FAILURE;
        };
        let before = standing.place.replace(waiting.place);
        (standing.joined, standing.ahead) = (true, waiting.ahead);
        if let Some(before) = before {
            line.forget_place(before, token);
        }
        let shadowed = line.order.insert(waiting.place, token.clone());
        if before.is_some() && waiting.new || shadowed.is_some_and(|other| other != *token) {
            line.rejoin_but(token);
        }
        if line.order.first_key_value().is_some_and(|(_, head)| head == token) {
            line.before_head = waiting.ahead;
        }
        Instant::now() + waiting.recheck_after
    }
}

/// A claim, and what the store said to it.
struct Answered {
    claim: Claim,
    asked: Instant,
    turn: Result<Turn, StoreError>,
}

/// Whose question was not answered.
enum Missed {
    /// One that has no place yet.
    Joining,
    /// One that has.
    Waiting,
    /// One that left meanwhile.
    Gone,
}

impl Lines {
    /// Takes a claim out, and gives those who are to be told.
    fn take(&mut self, key: &LockKey, token: &LeaseToken) -> Vec<oneshot::Sender<Delivery>> {
        let Some(line) = self.keys.get_mut(key) else { return Vec::new() };
        let Some(standing) = line.remove(token) else { return Vec::new() };
        self.requests -= standing.requests.len();
        line.requests -= standing.requests.len();
        standing.requests.into_iter().map(|(_, tell)| tell).collect()
    }
}

/// The same failure for another request of the same claim.
fn error_again(claim: &Claim, effect: Effect) -> StoreError {
    StoreError {
        verb: Verb::WaitTurn,
        effect,
        reason: format!("the claim for {} could not join the line", claim.key).into(),
    }
}
