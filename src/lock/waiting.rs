//! Waiting in line, within one instance: the only waiting loop.
//!
//! A claim has one waiting request, the newest; the store has the order of the claims. One
//! task per key makes all calls about the key's line, round after round: it takes out claims whose
//! requests are gone, lets new claims join, asks the last question for claims that stop waiting,
//! and asks for the head when rung or due. So no call overtakes another, none is dropped half-way,
//! and a request is told no only while no question for its claim is under way.

use std::collections::{HashMap, HashSet};
use std::mem::take;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::{Notify, Semaphore, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::lock::error::LockError;
use crate::lock::key::LockKey;
use crate::lock::key_line::{Fate, KeyLine, Stop, Work};
use crate::lock::lease::Claim;
use crate::lock::next::{Answered, Next, Question, after};
use crate::lock::store::{Answer, Ask, Keep, Store, Waiting};
use crate::lock::token::LeaseToken;
use crate::lock::turns::Turns;
use crate::lock::undo_queue::{Delivery, UndoQueue};
use crate::lock::waiting_request::WaitingRequest;
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
    /// Requests for one key in this instance, each with a claim of its own.
    pub per_key: usize,
    /// Requests in this instance.
    pub per_instance: usize,
    /// Keys with waiters in this instance: each costs store calls all the time.
    pub keys: usize,
}

/// The waiting requests of this instance.
pub(crate) struct Waiters {
    store: Arc<dyn Store>,
    pub(super) undos: Arc<UndoQueue>,
    turns: Arc<Turns>,
    tasks: TaskTracker,
    limits: WaitLimits,
    /// Cancelled once the instance shuts down.
    pub(super) draining: CancellationToken,
    /// Has a permit for each request that may wait.
    room: Arc<Semaphore>,
    last_request: AtomicU64,
    lines: Mutex<HashMap<LockKey, KeyLine>>,
}

/// The pause until the head of one of so many lines asks again.
fn pause(waiting: &Waiting, lines: usize) -> Duration {
    let lines = u32::try_from(lines).unwrap_or(u32::MAX);
    let crowded = FOR_EACH_LINE.saturating_mul(lines).min(AMONG_MANY_LINES);
    waiting.recheck_after.max(crowded.min(waiting.lasts))
}

impl Waiters {
    pub(crate) fn new(
        (store, turns): (Arc<dyn Store>, Arc<Turns>),
        undos: Arc<UndoQueue>,
        tasks: TaskTracker,
        limits: WaitLimits,
    ) -> Self {
        Self {
            store,
            undos,
            turns,
            tasks,
            limits,
            draining: CancellationToken::new(),
            room: Arc::new(Semaphore::new(limits.per_instance)),
            last_request: AtomicU64::new(0),
            lines: Mutex::default(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.limits.per_instance - self.room.available_permits()
    }

    /// Adds the waiting request of a claim in place of an older one, and returns its number. It waits
    /// until it is told or is withdrawn.
    pub(super) fn enter(
        self: &Arc<Self>,
        claim: &Claim,
        tell: oneshot::Sender<Option<Delivery>>,
    ) -> Result<u64, LockError> {
        let full = || LockError::TooManyWaiters("this instance has too many waiters");
        self.with(|lines| {
            let line = lines.get(&claim.key);
            let waits = line.is_some_and(|line| line.has(&claim.token));
            let is_full = line.is_none() && lines.len() >= self.limits.keys;
            if !waits && (is_full || self.room.available_permits() == 0) {
                return Err(full());
            }
            let line = lines.entry(claim.key.clone()).or_insert_with(|| {
                let bell = Arc::new(Notify::new());
                let serving = self.clone().serve(claim.key.clone(), bell.clone());
                self.tasks.spawn(watched::sound("the waiting task of a key", serving));
                KeyLine::new(bell)
            });
            if !waits && line.len() >= self.limits.per_key {
                return Err(LockError::TooManyWaiters("the line for this key is full"));
            }
            line.supersede(&claim.token);
            let room = self.room.clone().try_acquire_owned().map_err(|_| full())?;
            let number = self.last_request.fetch_add(1, Ordering::Relaxed);
            line.enter(claim.clone(), WaitingRequest { number, tell, _room: room });
            Ok(number)
        })
    }

    /// Tells the waiting request of a claim, if there is one, that a newer one comes.
    pub(crate) fn supersede(&self, key: &LockKey, token: &LeaseToken) {
        self.with_line(key, |line| line.supersede(token));
    }

    /// Returns true if a request of the claim waits.
    pub(crate) fn has(&self, claim: &Claim) -> bool {
        self.with_line(&claim.key, |line| line.has(&claim.token)).unwrap_or_default()
    }

    /// Takes a released claim out of this instance's line, once no question for it is under way.
    /// Returns its request, which is told by the caller; dropped, that the outcome is unknown.
    ///
    /// # Cancel safety
    ///
    /// The claim is still taken out, and its request is told that the outcome is unknown.
    pub(crate) async fn release(
        &self,
        key: &LockKey,
        token: &LeaseToken,
        keep: Keep,
    ) -> Option<WaitingRequest> {
        let (tell, told) = oneshot::channel();
        self.with_line(key, |line| line.stop(token, Stop::Released(keep, tell)));
        told.await.ok() // Without such a claim, nobody tells.
    }

    pub(super) fn with_line<T>(
        &self,
        key: &LockKey,
        use_it: impl FnOnce(&mut KeyLine) -> T,
    ) -> Option<T> {
        self.with(|lines| lines.get_mut(key).map(use_it))
    }

    fn with<T>(&self, use_them: impl FnOnce(&mut HashMap<LockKey, KeyLine>) -> T) -> T {
        use_them(&mut self.lines.lock().unwrap_or_else(PoisonError::into_inner))
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
            let mut asking = work.asking;
            let ended = wakeup.take_ended();
            let ended = self.with_line(&key, |line| line.ended(&ended)).unwrap_or_default();
            asking.extend(ended);
            for answered in self.ask_all(asking).await {
                ask_at = self.note(answered).map_or(ask_at, |moment| moment.min(ask_at));
            }
            if Instant::now() >= ask_at {
                ask_at = self.ask_for_head(&key, take(&mut rung)).await.max(leave_at);
            }
            let states = |line: &mut KeyLine| (line.len() == 0, line.departs());
            let Some((nobody, departs)) = self.with_line(&key, states) else { continue };
            tokio::select! {
                () = bell.notified() => (),
                () = wakeup.rung(), if !nobody => (ask_at, rung) = (Instant::now(), true),
                () = tokio::time::sleep_until(ask_at), if !nobody => (),
                () = tokio::time::sleep_until(leave_at), if nobody || departs => (),
            }
        }
    }

    /// The work of this round, with departures from `leave_at` on. Returns `None` and removes the
    /// line if nothing waits.
    fn take_work(&self, key: &LockKey, leave_at: Instant) -> Option<Work> {
        let due = Instant::now() >= leave_at;
        self.with(|lines| {
            let line = lines.get_mut(key)?;
            let work = line.take_work(ROUND, due);
            if work.leaving.is_empty() && line.len() == 0 && !line.departs() {
                lines.remove(key);
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

    /// Asks for these claims at once, for each of them once.
    async fn ask_all(&self, mut asking: Vec<Question>) -> Vec<Answered> {
        // Two questions of one claim would wait for each other's turn.
        let mut asked = HashSet::new();
        asking.retain(|question| asked.insert(question.claim.token.clone()));
        let questions = asking.into_iter().map(async |question| {
            let turn = self.turns.take(&question.claim).await;
            let asked = Instant::now();
            let answer = self.store.ask(&question.claim, question.ask).await;
            Answered { question, turn, at: [asked, Instant::now()], answer }
        });
        join_all(questions).await
    }

    /// Asks for the head, and for other claims that the key was handed to. Returns the moment to
    /// ask again.
    async fn ask_for_head(&self, key: &LockKey, rung: bool) -> Instant {
        let first = |most| self.with_line(key, |line| line.first(most)).unwrap_or_default();
        let mut asking = first(1);
        for _ in 0..ROUND {
            let answers = self.ask_all(asking).await;
            let next = after(&answers, rung);
            let ask_at = answers.into_iter().filter_map(|one| self.note(one)).min();
            asking = match next {
                Next::Sleep => return ask_at.unwrap_or_else(Instant::now),
                Next::Retry => return Instant::now() + AFTER_A_FAILURE,
                Next::First(most) => first(most.min(ROUND)),
                Next::Handed(token) => {
                    let claim = self.with_line(key, |line| line.question(&token)).flatten();
                    if claim.is_none() {
                        // It leaves in the next round, together with all others that are gone.
                        self.with_line(key, |line| line.leave_handed(token));
                        return Instant::now();
                    }
                    claim.into_iter().collect()
                }
            };
        }
        Instant::now()
    }

    /// Handles an answer: delivers a grant or a refusal, notes a place. Returns the moment to ask
    /// again, if the answer tells one.
    fn note(&self, one: Answered) -> Option<Instant> {
        let Answered { question, turn, at, mut answer } = one;
        let claim = &question.claim;
        let fate = self.with_line(&claim.key, |line| line.answered(&question, &mut answer));
        let asked = at[0];
        let again = match (&answer, question.ask) {
            (Ok(Answer::Waiting(waiting)), _) => {
                let lines = self.with(|lines| lines.len());
                return Some(Instant::now() + pause(waiting, lines));
            }
            (Ok(Answer::Won(win)), _) => {
                Some(asked + AFTER_A_GRANT.min(win.lease.ttl.as_duration()))
            }
            (Ok(Answer::Held(_)) | Err(_), Ask::Once(_)) => None,
            (Ok(_), _) => Some(asked),
            (Err(_), Ask::InLine(_)) => Some(asked + AFTER_A_FAILURE),
        };
        if matches!(fate, Some(Fate::Stays)) {
            return again;
        }
        // Without a request too: the claim may have been granted.
        let delivery = self.undos.deliver((claim, turn), at, answer);
        if let Some(Fate::Over(request)) = fate {
            request.tell(Some(delivery));
        }
        again
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
            let place = 1;
            let ahead = 0;
            let new = false;
            let handed = None;
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
