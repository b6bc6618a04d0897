//! The claims of one key in this instance, each with its waiting request and its place. The task of
//! the key takes its work between two rounds, so no question for a claim is under way when the claim
//! is taken out.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::mem::take;
use std::sync::Arc;

use tokio::sync::{Notify, oneshot};

use crate::lock::error::{Effect, StoreError};
use crate::lock::lease::Claim;
use crate::lock::next::Question;
use crate::lock::store::{Answer, Ask, Keep, Waiting};
use crate::lock::token::LeaseToken;
use crate::lock::undo_queue::Delivery;
use crate::lock::waiting_request::WaitingRequest;
use crate::lock::wakeup::EndElsewhere;

/// The claims of one key in this instance.
#[derive(Default)]
pub(super) struct KeyLine {
    claims: HashMap<LeaseToken, WaitingClaim>,
    /// The claims with a known place.
    order: BTreeMap<u64, LeaseToken>,
    /// The claims to join; claims that are gone or have joined by now are skipped.
    joining: VecDeque<LeaseToken>,
    /// The claims that stop waiting.
    stopping: Vec<(LeaseToken, Stop)>,
    /// The claims that are gone but that the store may still have in line.
    leaving: HashMap<LeaseToken, Keep>,
    /// The number of claims of other instances ahead of the first claim of this one.
    before_head: u64,
    /// Rung when the task of the key has work.
    bell: Arc<Notify>,
}

struct WaitingClaim {
    claim: Claim,
    /// True once the store may have it in line.
    asked: bool,
    /// True while it is among those that are to join.
    queued: bool,
    /// True once the store has told its place.
    joined: bool,
    place: Option<u64>,
    /// The number of claims ahead of it in the store's last answer.
    ahead: u64,
    /// True after a question without an answer: it may have been granted and have ended since. The
    /// next question joins anew, at its place if that is still there.
    unsure: bool,
    /// True once its request is to be told the answer to the last question.
    stops: bool,
    /// True once this instance has heard that the claim was released on another one.
    released: bool,
    request: WaitingRequest,
}

/// What an answer does to its claim.
pub(super) enum Fate {
    /// It keeps waiting.
    Stays,
    /// Nobody is told: its request is gone, or asks for something else.
    Untold,
    /// It is over, and its request is told.
    Over(WaitingRequest),
}

/// The way in which a claim stops waiting.
pub(super) enum Stop {
    /// If its request has this number, with a last question to the store.
    LastQuestion(u64),
    /// The same without a question, because the instance is shutting down.
    Draining(u64),
    /// It is released. The releasing call gets its request; `Keep` says whether the place is kept
    /// for the store's release.
    Released(Keep, oneshot::Sender<WaitingRequest>),
}

/// The work of one round.
#[derive(Default)]
pub(super) struct Work {
    pub(super) leaving: Vec<(LeaseToken, Keep)>,
    /// The claims that join, and those that ask for the last time.
    pub(super) asking: Vec<Question>,
}

impl KeyLine {
    pub(super) fn new(bell: Arc<Notify>) -> Self {
        Self { bell, ..Self::default() }
    }

    /// The number of claims.
    pub(super) fn len(&self) -> usize {
        self.claims.len()
    }

    /// Returns true if a request of the claim waits.
    pub(super) fn has(&self, token: &LeaseToken) -> bool {
        self.claims.contains_key(token)
    }

    /// Returns true if claims are gone that the store may still have in line.
    pub(super) fn departs(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Adds the waiting request of a claim, which joins the line.
    pub(super) fn enter(&mut self, claim: Claim, request: WaitingRequest) {
        let token = claim.token.clone();
        // The claim is back before the store was told that it left, so it never did.
        let asked = self.leaving.remove(&token).is_some();
        self.joining.push_back(token.clone());
        self.claims.insert(
            token,
            WaitingClaim {
                claim,
                asked,
                queued: true,
                joined: false,
                place: None,
                ahead: 0,
                unsure: false,
                stops: false,
                released: false,
                request,
            },
        );
        self.bell.notify_one();
    }

    /// Rule 9: tells the waiting request of a claim that a newer one comes, and frees its room. The
    /// newer one joins again, because the claim may wait on another instance by now.
    pub(super) fn supersede(&mut self, token: &LeaseToken) {
        if let Some(older) = self.take_request(token) {
            older.tell(Some(Delivery::of(Answer::Superseded)));
        }
    }

    /// Makes a claim, if it waits, stop waiting in the next round.
    pub(super) fn stop(&mut self, token: &LeaseToken, stop: Stop) {
        if self.claims.contains_key(token) {
            self.stopping.push((token.clone(), stop));
            self.bell.notify_one();
        }
    }

    /// Takes out a claim whose client is gone, if this is its request. An answer under way then finds
    /// no request.
    pub(super) fn withdraw(&mut self, token: &LeaseToken, number: u64) {
        if self.take_if(token, number).is_some() {
            self.bell.notify_one();
        }
    }

    /// Takes the work of the next round, with at most `at_most` joins; rings for the rest.
    /// Departures are taken only if `due`.
    pub(super) fn take_work(&mut self, at_most: usize, due: bool) -> Work {
        let mut work = Work::default();
        for (token, stop) in take(&mut self.stopping) {
            match stop {
                Stop::LastQuestion(number) => {
                    let waiting = self.claims.get_mut(&token);
                    if let Some(waiting) = waiting.filter(|one| one.request.number == number) {
                        waiting.stops = true;
                        work.asking.push(waiting.question(Ask::Once));
                    }
                }
                Stop::Draining(number) => {
                    if let Some(request) = self.take_if(&token, number) {
                        request.tell(None);
                    }
                }
                Stop::Released(keep, released) => {
                    // No question that is asked from now on may grant it again.
                    work.asking.retain(|question| question.claim.token != token);
                    // If the releasing call is gone, the request is told by being dropped.
                    let request = self.take_request(&token);
                    drop(request.map(|request| released.send(request)));
                    if let Some(leaving) = self.leaving.get_mut(&token) {
                        *leaving = keep;
                    }
                }
            }
        }
        let mut joins = 0;
        while joins < at_most
            && let Some(token) = self.joining.pop_front()
        {
            let Some(waiting) = self.claims.get_mut(&token) else { continue };
            // A claim that stops before it has joined need not join.
            if take(&mut waiting.queued) && waiting.place.is_none() && !waiting.stops {
                waiting.asked = true;
                work.asking.push(waiting.question(Ask::InLine));
                joins += 1;
            }
        }
        if due {
            work.leaving = take(&mut self.leaving).into_iter().collect();
        }
        if !self.joining.is_empty() {
            self.bell.notify_one();
        }
        work
    }

    /// Repeats the departure of these claims, which the store did not hear.
    pub(super) fn leave_again(&mut self, claims: Vec<(LeaseToken, Keep)>) {
        for (token, keep) in claims {
            match self.claims.get_mut(&token) {
                // It is back, and leaves when it stops waiting.
                Some(waiting) => waiting.asked = true,
                None => _ = self.leaving.insert(token, keep),
            }
        }
    }

    /// Notes the departure of a claim that was handed the key. Its place is kept because the client
    /// may be back in a moment.
    pub(super) fn leave_handed(&mut self, token: LeaseToken) {
        self.leaving.entry(token).or_insert(Keep::Place);
    }

    /// The questions of the claims with the first places.
    pub(super) fn first(&self, most: usize) -> Vec<Question> {
        self.order.values().filter_map(|token| self.question(token)).take(most).collect()
    }

    /// The question of a waiting claim.
    pub(super) fn question(&self, token: &LeaseToken) -> Option<Question> {
        self.claims.get(token).map(|waiting| waiting.question(Ask::InLine))
    }

    /// The questions of the claims that ended elsewhere.
    pub(super) fn ended(&mut self, ends: &[EndElsewhere]) -> Vec<Question> {
        let mut asking = Vec::new();
        for end in ends {
            let waiting = self.order.get(&end.place).and_then(|token| self.claims.get_mut(token));
            if let Some(waiting) = waiting {
                waiting.released |= end.released;
                asking.push(waiting.question(Ask::InLine));
            }
        }
        asking
    }

    /// The number of claims ahead, as far as this instance knows; `None` before the store has told
    /// the claim's place.
    pub(super) fn ahead(&self, token: &LeaseToken) -> Option<u64> {
        let waiting = self.claims.get(token)?;
        let (first, _) = self.order.first_key_value()?;
        Some(waiting.ahead.min(waiting.place?.saturating_sub(*first) + self.before_head))
    }

    /// Notes the answer to a claim's question. It is for the request that asked, but a newer one that
    /// asks for the same gets the grant.
    pub(super) fn answered(
        &mut self,
        question: &Question,
        answer: &mut Result<Answer, StoreError>,
    ) -> Fate {
        let token = &question.claim.token;
        if let Ok(Answer::Waiting(waiting)) = answer {
            self.note(token, waiting);
            return Fate::Stays;
        }
        let Some(waiting) = self.claims.get_mut(token) else { return Fate::Untold };
        waiting.unsure |= answer.is_err();
        // A join that was refused leaves nothing. A claim that joined by an earlier request is handed the
        // key, and leaves then.
        let is_join = matches!(question.ask, Ask::InLine(None));
        let is_refused = matches!(answer, Err(error) if error.effect == Effect::None);
        waiting.asked &= waiting.joined || !(is_join && is_refused);
        let is_its = waiting.request.number == question.number;
        let (stood, joined, stops) = (waiting.place.is_some(), waiting.joined, waiting.stops);
        let over = match (&*answer, question.ask) {
            (Ok(Answer::Won(_)), _) => is_its || question.claim.asks_the_same(&waiting.claim),
            (Ok(Answer::Held(_)) | Err(_), Ask::Once(_)) => is_its && stops,
            // A claim with a place keeps waiting, and joins again if the store lost its data. One
            // that could not join leaves in the next round: it may have joined, or may still.
            (Err(_), Ask::InLine(_)) => is_its && !joined,
            (Ok(_), _) => is_its,
        };
        if matches!(answer, Ok(Answer::Superseded)) && waiting.released {
            *answer = Ok(Answer::Cancelled);
        }
        if !over {
            self.join(token);
            let is_grant = matches!(answer, Ok(Answer::Won(_)));
            return if is_grant { Fate::Untold } else { Fate::Stays };
        }
        let Some(request) = self.take_request(token) else { return Fate::Untold };
        match (answer, question.ask) {
            (Ok(Answer::Held(status)), Ask::Once(_)) if stood => {
                // The store still counts the claim that is about to leave.
                status.waiters = status.waiters.saturating_sub(1);
            }
            (Ok(Answer::Held(_)) | Err(_), _) => (),
            (Ok(_), _) => _ = self.leaving.remove(token), // It is in no line of this instance.
        }
        Fate::Over(request)
    }

    /// Makes a claim without a place join in the next round.
    fn join(&mut self, token: &LeaseToken) {
        let without = |one: &&mut WaitingClaim| one.place.is_none() && !one.queued;
        if let Some(waiting) = self.claims.get_mut(token).filter(without) {
            waiting.queued = true;
            self.joining.push_back(token.clone());
            self.bell.notify_one();
        }
    }

    /// Notes the place of a claim. If the store did not know a claim that was in line, it has lost
    /// its data, and all other claims of this instance join again.
    fn note(&mut self, token: &LeaseToken, answer: &Waiting) {
        let Some(waiting) = self.claims.get_mut(token) else { return };
        let before = waiting.place.replace(answer.place);
        (waiting.joined, waiting.unsure, waiting.ahead) = (true, false, answer.ahead);
        if let Some(before) = before {
            self.forget_place(before, token);
        }
        let shadowed = self.order.insert(answer.place, token.clone());
        if before.is_some() && answer.new || shadowed.is_some_and(|other| other != *token) {
            self.rejoin_but(token);
        }
        if self.order.first_key_value().is_some_and(|(_, head)| head == token) {
            self.before_head = answer.ahead;
        }
    }

    /// Takes out a claim. Returns its request.
    fn take_request(&mut self, token: &LeaseToken) -> Option<WaitingRequest> {
        let waiting = self.claims.remove(token)?;
        if let Some(place) = waiting.place {
            self.forget_place(place, token);
        }
        if waiting.asked {
            self.leaving.insert(token.clone(), Keep::of(waiting.claim.origin));
        }
        Some(waiting.request)
    }

    /// The same, if this is its request.
    fn take_if(&mut self, token: &LeaseToken, number: u64) -> Option<WaitingRequest> {
        let is_its = self.claims.get(token).is_some_and(|one| one.request.number == number);
        is_its.then(|| self.take_request(token)).flatten()
    }

    /// Forgets the claim's place; another claim that has it by now keeps it.
    fn forget_place(&mut self, place: u64, token: &LeaseToken) {
        if self.order.get(&place).is_some_and(|there| there == token) {
            self.order.remove(&place);
        }
    }

    /// Makes all claims but one join again, in the order of their old places. These are void: the
    /// store may give the same number to another claim.
    fn rejoin_but(&mut self, token: &LeaseToken) {
        let others = self.claims.iter_mut().filter(|(other, _)| *other != token);
        let mut again: Vec<_> = others
            .filter_map(|(other, waiting)| {
                let place = waiting.place.take()?;
                waiting.queued = true;
                Some((place, other.clone()))
            })
            .collect();
        again.sort_unstable_by_key(|(place, _)| *place);
        self.order.retain(|_, there| there == token);
        for (_, other) in again.into_iter().rev() {
            self.joining.push_front(other);
        }
        self.bell.notify_one();
    }
}

impl WaitingClaim {
    fn question(&self, ask: fn(Option<u64>) -> Ask) -> Question {
        let place = self.place.filter(|_| !self.unsure);
        Question { claim: self.claim.clone(), ask: ask(place), number: self.request.number }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::{Notify, Semaphore, oneshot};

    use crate::lock::error::{Effect, StoreError, Verb};
    use crate::lock::key_line::{Fate, KeyLine, Stop, WaitingRequest};
    use crate::lock::lease::Claim;
    use crate::lock::next::Question;
    use crate::lock::sample;
    use crate::lock::store::{Answer, Ask, Keep};

    fn claim() -> Claim {
        sample::claim("key", "one", 1_000)
    }

    fn enter(line: &mut KeyLine, number: u64) {
        let room = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        line.enter(claim(), WaitingRequest { number, tell: oneshot::channel().0, _room: room });
    }

    /// The questions of the next round.
    fn asks(line: &mut KeyLine, due: bool) -> Vec<Ask> {
        line.take_work(10, due).asking.into_iter().map(|question| question.ask).collect()
    }

    /// A claim that the store has in line, and whose client is gone.
    fn left() -> KeyLine {
        let mut line = KeyLine::new(Arc::new(Notify::new()));
        enter(&mut line, 1);
        assert_eq!(asks(&mut line, true), [Ask::InLine(None)]);
        line.withdraw(&claim().token, 1);
        line
    }

    /// A question of a request fails.
    fn fails(line: &mut KeyLine, number: u64, ask: Ask, effect: Effect) -> Fate {
        let (fault, reason) = ("the store failed", "on purpose".into());
        let mut failed = Err(StoreError { verb: Verb::TryAcquire, effect, fault, reason });
        line.answered(&Question { claim: claim(), ask, number }, &mut failed)
    }

    /// The last question of a request fails.
    fn last_answer(line: &mut KeyLine, number: u64) -> Fate {
        fails(line, number, Ask::Once(None), Effect::None)
    }

    #[test]
    fn a_claim_whose_join_was_refused_need_not_leave() {
        for (effect, leaves) in [(Effect::None, 0), (Effect::Unknown, 1)] {
            let mut line = KeyLine::new(Arc::new(Notify::new()));
            enter(&mut line, 1);
            assert_eq!(asks(&mut line, true), [Ask::InLine(None)]);
            let fate = fails(&mut line, 1, Ask::InLine(None), effect);
            assert!(matches!(fate, Fate::Over(_)));
            assert_eq!(line.take_work(10, true).leaving.len(), leaves, "{effect:?}");
        }
    }

    /// Its client waits again, and stops before the claim joins.
    fn waits_shortly(line: &mut KeyLine) {
        enter(line, 2);
        line.stop(&claim().token, Stop::LastQuestion(2));
        assert_eq!(asks(line, false), [Ask::Once(None)], "it does not join");
        assert!(matches!(last_answer(line, 2), Fate::Over(_)));
    }

    #[test]
    fn a_claim_that_is_back_for_a_moment_still_leaves() {
        let mut line = left();
        waits_shortly(&mut line);
        assert_eq!(line.take_work(10, true).leaving.len(), 1);
    }

    #[test]
    fn a_claim_that_is_back_for_a_moment_while_its_departure_fails_still_leaves() {
        for back_first in [true, false] {
            let mut line = left();
            let leaving = line.take_work(10, true).leaving;
            if back_first {
                enter(&mut line, 2);
                line.leave_again(leaving);
                line.withdraw(&claim().token, 2);
            } else {
                waits_shortly(&mut line);
                line.leave_again(leaving);
            }
            assert_eq!(line.take_work(10, true).leaving.len(), 1);
        }
    }

    #[test]
    fn a_request_that_comes_during_the_last_question_of_its_claim_joins() {
        let mut line = KeyLine::new(Arc::new(Notify::new()));
        enter(&mut line, 1);
        line.stop(&claim().token, Stop::LastQuestion(1));
        assert_eq!(asks(&mut line, true), [Ask::Once(None)]);
        line.supersede(&claim().token);
        enter(&mut line, 2);
        assert!(matches!(last_answer(&mut line, 1), Fate::Stays));
        assert_eq!(asks(&mut line, true), [Ask::InLine(None)]);
    }

    #[test]
    fn a_grant_is_for_a_newer_request_only_if_that_asks_for_the_same() {
        for kept in [false, true] {
            let mut line = KeyLine::new(Arc::new(Notify::new()));
            enter(&mut line, 1);
            let question = line.take_work(10, true).asking.remove(0);
            line.supersede(&claim().token);
            let room = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
            let request = WaitingRequest { number: 2, tell: oneshot::channel().0, _room: room };
            line.enter(Claim { kept, ..claim() }, request);
            let fate = line.answered(&question, &mut Ok(Answer::Won(sample::win("key", 1))));
            assert!(matches!((fate, kept), (Fate::Over(_), false) | (Fate::Untold, true)));
            let next = if kept { vec![Ask::InLine(None)] } else { vec![] };
            assert_eq!(asks(&mut line, true), next);
        }
    }

    #[test]
    fn a_claim_that_is_released_as_its_wait_ends_asks_no_last_question() {
        let mut line = KeyLine::new(Arc::new(Notify::new()));
        enter(&mut line, 1);
        line.stop(&claim().token, Stop::LastQuestion(1));
        line.stop(&claim().token, Stop::Released(Keep::Place, oneshot::channel().0));
        assert_eq!(asks(&mut line, true), []);
    }

    #[test]
    fn a_claim_whose_client_went_and_came_back_joins_once() {
        let mut line = KeyLine::new(Arc::new(Notify::new()));
        enter(&mut line, 1);
        line.withdraw(&claim().token, 1);
        enter(&mut line, 2);
        assert_eq!(asks(&mut line, true), [Ask::InLine(None)]);
    }
}
