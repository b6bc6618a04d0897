//! Waiting in line, within one instance: the only waiting loop.
//!
//! Requests wait behind claims, one claim per token; the store has the order of the claims. One
//! task per key makes all calls about the key's line, round after round: it takes out claims whose
//! requests are gone, lets new claims join, asks the last question for claims that stop waiting,
//! and asks for the head when rung or due. So no call overtakes another, none is dropped half-way,
//! and a request is told no only while no question for its claim is under way.

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
use crate::lock::key_line::{KeyLine, ReleasedRequests, Told, WaitingRequest, Work};
use crate::lock::lease::{Claim, Origin};
use crate::lock::owed::{Answer, Delivery, Guarded, Owed};
use crate::lock::slots::Share;
use crate::lock::store::{Attempt, Keep, Store, Turn, Waiting, Win};
use crate::lock::token::LeaseToken;
use crate::lock::watched;

/// The most claims that join in one round of a key.
const ROUND: usize = 256;

/// The longest pause after a grant before the next claim asks: a client that sends no hint may
/// release soon, and a lease that expires sends none.
const AFTER_A_GRANT: Duration = Duration::from_millis(200);

/// The pause after a store call without an answer.
const AFTER_A_FAILURE: Duration = Duration::from_millis(500);

/// What each line adds to the pause between two questions of a line: the store has other work.
const FOR_EACH_LINE: Duration = Duration::from_micros(500);

/// The longest pause because of other lines: an instance that is silent for 3 s is passed over.
const AMONG_MANY_LINES: Duration = Duration::from_secs(1);

/// The limits of waiting requests.
#[derive(Clone, Copy, Debug)]
pub struct WaitLimits {
    /// Requests for one key.
    pub per_key: usize,
    /// Requests in this instance.
    pub per_instance: usize,
    /// Keys with waiters in this instance: each costs store calls all the time.
    pub keys: usize,
}

/// The waiting requests of this instance.
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

/// The pause until the head of one of so many lines asks again.
fn pause(waiting: &Waiting, lines: usize) -> Duration {
    let lines = u32::try_from(lines).unwrap_or(u32::MAX);
    let crowded = FOR_EACH_LINE.saturating_mul(lines).min(AMONG_MANY_LINES);
    waiting.recheck_after.max(crowded.min(waiting.lasts))
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

    pub(crate) fn len(&self) -> usize {
        self.with(|lines| lines.requests)
    }

    /// Adds a request behind its claim, and returns its number. It waits until it is told or is
    /// withdrawn.
    pub(super) fn enter(
        self: &Arc<Self>,
        claim: &Claim,
        tell: oneshot::Sender<Told>,
    ) -> Result<u64, LockError> {
        self.with(|lines| {
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
        })
    }

    /// Takes a released claim out of this instance's line, once no question for it is under way.
    /// Its requests are told by [`ReleasedRequests::told`].
    ///
    /// # Cancel safety
    ///
    /// The claim is still taken out, and its requests are told that the outcome is unknown.
    pub(crate) async fn release(
        &self,
        key: &LockKey,
        token: &LeaseToken,
        keep: Keep,
    ) -> ReleasedRequests {
        let taken_out = self.with_line(key, |line| line.release(token, keep)).flatten();
        let Some(taken_out) = taken_out else { return ReleasedRequests(Vec::new()) };
        ReleasedRequests(taken_out.await.unwrap_or_default())
    }

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

    /// Guards an answer: a grant in it is taken back unless a request is handed it.
    pub(super) fn guarded(&self, claim: &Claim, answer: Answer) -> Guarded {
        self.owed.clone().guarded(claim, answer)
    }

    fn with<T>(&self, use_them: impl FnOnce(&mut Lines) -> T) -> T {
        use_them(&mut self.lines.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn begin_line(self: &Arc<Self>, key: &LockKey) -> KeyLine {
        let bell = Arc::new(Notify::new());
        let serving = self.clone().serve(key.clone(), bell.clone());
        self.tasks.spawn(watched::sound("the waiting task of a key", serving));
        KeyLine::new(bell)
    }

    /// The task of a key, until the key has no waiters and the store knows it.
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
            let lasts = join_all(
                work.last_questions.into_iter().map(|(claim, stood)| self.ask_last(claim, stood)),
            );
            let (asked, lasts) = join(asked, lasts).await;
            for answered in asked {
                ask_at = ask_at.min(self.note(answered));
            }
            for answered in lasts {
                self.note_last(answered);
            }
            if Instant::now() >= ask_at {
                ask_at = self.ask_for_head(&key, take(&mut rung)).await.max(leave_at);
            }
            let states = |line: &mut KeyLine| (line.is_empty(), line.departs());
            let Some((nobody, departs)) = self.with_line(&key, states) else { continue };
            tokio::select! {
                () = bell.notified() => (),
                () = wakeup.rung(), if !nobody => (ask_at, rung) = (Instant::now(), true),
                () = tokio::time::sleep_until(ask_at), if !nobody => (),
                () = tokio::time::sleep_until(leave_at), if departs => (),
            }
        }
    }

    /// The work of this round, with departures from `leave_at` on. Returns `None` and removes the
    /// line if nothing waits.
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

    /// Takes claims out of the store's line. Returns false if that has to be retried.
    async fn leave(&self, key: &LockKey, leaving: Vec<(LeaseToken, Keep)>) -> bool {
        if leaving.is_empty() {
            return true;
        }
        let Err(error) = self.store.leave(key, &leaving).await else { return true };
        tracing::debug!(lock.key = %key, ?error, "claims could not leave the line; retrying");
        self.with_line(key, |line| line.leave_again(leaving));
        false
    }

    /// The claims at these places, which ended elsewhere.
    fn ended(&self, key: &LockKey, places: Vec<u64>) -> Vec<(Claim, Option<u64>)> {
        let at = |line: &mut KeyLine| places.iter().filter_map(|place| line.at(*place)).collect();
        self.with_line(key, at).unwrap_or_default()
    }

    async fn ask(&self, claim: Claim, stood: Option<u64>) -> Answered {
        let asked = Instant::now();
        let turn = self.store.wait_turn(&claim, stood).await;
        Answered { claim, at: [asked, Instant::now()], turn }
    }

    /// The last question for a claim, so that a key that is free by now is not called held.
    async fn ask_last(&self, claim: Claim, stood: Option<u64>) -> AnsweredLast {
        let asked = Instant::now();
        let answer = self.store.ask_last(&claim, stood).await;
        (claim, [asked, Instant::now()], answer)
    }

    /// Asks for the head, and for other claims that the key was handed to. Returns the moment to
    /// ask again.
    async fn ask_for_head(&self, key: &LockKey, rung: bool) -> Instant {
        let first = |most| self.with_line(key, |line| line.first(most)).unwrap_or_default();
        let mut next = first(1);
        for _ in 0..ROUND {
            let many = next.len();
            let asked = join_all(next.into_iter().map(|(claim, stood)| self.ask(claim, stood)));
            let answered = asked.await;
            let Some(head) = answered.first() else { break };
            let handed = match &head.turn {
                Ok(Turn::Waiting(waiting)) => waiting.handed.clone(),
                _ => None,
            };
            let handed = handed.filter(|handed| *handed != head.claim.token);
            let found_free = !rung && head.won().is_some_and(|win| win.fresh);
            let gone = matches!(head.turn, Ok(Turn::Gone | Turn::Held(_)));
            let failed = answered.iter().any(|one| one.turn.is_err());
            let mut won = answered.iter().filter_map(Answered::won);
            let shared = won.any(|win| win.lease.share != Share::ALONE);
            let ask_at = answered.into_iter().map(|one| self.note(one)).min();
            match handed {
                None if failed => return Instant::now() + AFTER_A_FAILURE,
                // Beside leases that share the key there may be room for more.
                None if shared => next = first(ROUND.min(2 * many)),
                // The key was free without a hint, or the claim ended elsewhere: the store may have
                // lost the line. The next claim's question restores it, or tells how long the lease
                // lasts.
                None if found_free || gone => next = first(1),
                None => return ask_at.unwrap_or_else(Instant::now),
                Some(handed) => {
                    let claim = self.with_line(key, |line| line.claim(&handed)).flatten();
                    next = claim.into_iter().collect();
                    if next.is_empty() {
                        // It leaves in the next round, together with all others that are gone.
                        self.with_line(key, |line| line.leave_handed(handed));
                        return Instant::now();
                    }
                }
            }
        }
        Instant::now()
    }

    /// Handles an answer: delivers a grant, notes a place. Returns the moment to ask again.
    fn note(&self, Answered { claim, at, turn }: Answered) -> Instant {
        let (key, token, [asked, _]) = (&claim.key, &claim.token, at);
        match turn {
            Ok(Turn::Won(win)) => self.granted(&claim, at, win),
            Ok(Turn::Waiting(waiting)) => {
                self.with_line(key, |line| line.note(token, &waiting));
                let lines = self.with(|lines| lines.keys.len());
                Instant::now() + pause(&waiting, lines)
            }
            Ok(Turn::Held(status)) => {
                let told = self.with_line(key, |line| line.take_out(token));
                self.tell(told.unwrap_or_default(), &claim, at, Ok(Attempt::Held(status)));
                asked
            }
            Ok(Turn::Gone) => {
                self.gone(&claim);
                asked
            }
            Err(error) => {
                // A claim in line keeps waiting; one that could not join is told.
                if self.with_line(key, |line| line.is_joining(token)) == Some(true) {
                    let told = self.with_line(key, |line| line.take_failed(&claim));
                    self.tell(told.unwrap_or_default(), &claim, at, Err(error));
                } else if self.with_line(key, |line| line.claim(token)).flatten().is_none() {
                    // It may have been granted, and no request waits for it any more.
                    drop(self.guarded(&claim, Err(error)));
                }
                asked + AFTER_A_FAILURE
            }
        }
    }

    /// Tells all requests of a claim that it was released.
    fn gone(&self, claim: &Claim) {
        let told = self.with_line(&claim.key, |line| line.take_out(&claim.token));
        told.into_iter().flatten().for_each(|request| request.tell(Told::Cancelled));
    }

    fn note_last(&self, (claim, at, answer): AnsweredLast) {
        let stopping = || {
            let taken = self.with_line(&claim.key, |line| line.take_stopping(&claim.token));
            taken.unwrap_or_default()
        };
        match answer {
            Ok(None) => self.gone(&claim),
            Ok(Some(Attempt::Won(win))) => _ = self.granted(&claim, at, win),
            Ok(Some(Attempt::Held(mut status))) => {
                let (told, left) = stopping();
                // The store still counts the claim that is about to leave.
                status.waiters = status.waiters.saturating_sub(left);
                self.tell(told, &claim, at, Ok(Attempt::Held(status)));
            }
            // No claim that waits names a lease.
            Ok(Some(Attempt::Lost)) => self.gone(&claim),
            Err(error) => self.tell(stopping().0, &claim, at, Err(error)),
        }
    }

    /// Tells all requests of a claim about its lease, and takes the claim out.
    fn granted(&self, claim: &Claim, at: [Instant; 2], mut win: Win) -> Instant {
        // Only this request knows a token of the service: an earlier answer was lost.
        win.fresh |= claim.origin == Origin::Service;
        let told = self.with_line(&claim.key, |line| line.take_out(&claim.token));
        let pause = AFTER_A_GRANT.min(win.lease.ttl.as_duration());
        self.tell(told.unwrap_or_default(), claim, at, Ok(Attempt::Won(win)));
        at[0] + pause
    }

    /// Tells requests the answer to their claim, under one guard: the others share the lease that
    /// the first was granted.
    fn tell(
        &self,
        told: Vec<WaitingRequest>,
        claim: &Claim,
        [asked, answered]: [Instant; 2],
        answer: Answer,
    ) {
        let began = matches!(&answer, Ok(Attempt::Won(win)) if win.fresh);
        let first = self.guarded(claim, answer);
        let others = told.iter().skip(1).map(|_| first.again()).collect::<Vec<_>>();
        let alone = began && others.is_empty();
        for (request, answer) in told.into_iter().zip(std::iter::once(first).chain(others)) {
            request.tell(Told::Answer(Delivery { answer, asked, answered, alone }));
        }
    }
}

struct Answered {
    claim: Claim,
    /// The moments of the question and of the answer.
    at: [Instant; 2],
    turn: Result<Turn, StoreError>,
}

/// A claim, the moments of its last question and of the answer, and the answer.
type AnsweredLast = (Claim, [Instant; 2], Result<Option<Attempt>, StoreError>);

impl Answered {
    fn won(&self) -> Option<&Win> {
        match &self.turn {
            Ok(Turn::Won(win)) => Some(win),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use crate::lock::store::Waiting;
    use crate::lock::waiting::pause;

    #[test]
    fn many_lines_ask_less_often_but_not_after_a_lease_may_be_over() {
        let pause = |recheck_after, lasts, lines| {
            let [recheck_after, lasts] = [recheck_after, lasts].map(Duration::from_millis);
            let (place, ahead, new, handed) = (1, 0, false, None);
            let waiting = Waiting { place, ahead, new, recheck_after, lasts, handed };
            pause(&waiting, lines).as_millis()
        };
        assert_eq!(pause(210, 60_000, 1), 210);
        assert_eq!(pause(210, 60_000, 400), 210);
        assert_eq!(pause(210, 60_000, 1_000), 500);
        assert_eq!(pause(210, 60_000, 50_000), 1_000);
        assert_eq!(pause(210, 300, 50_000), 300, "the lease is over then");
        assert_eq!(pause(40, 40, 50_000), 40);
        assert_eq!(pause(5_000, 0, 50_000), 5_000, "questions are cheap");
    }
}
