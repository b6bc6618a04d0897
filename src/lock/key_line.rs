//! The claims of one key in this instance, with their requests and places. The task of the key
//! takes its work between two rounds, so no question for a claim is under way when the claim is
//! taken out.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::mem::take;
use std::sync::Arc;

use tokio::sync::{Notify, OwnedSemaphorePermit, oneshot};

use crate::lock::error::StoreError;
use crate::lock::lease::Claim;
use crate::lock::owed::Delivery;
use crate::lock::store::{Answer, Ask, Keep, Waiting};
use crate::lock::token::LeaseToken;

/// The claims of one key in this instance.
#[derive(Default)]
pub(super) struct KeyLine {
    claims: HashMap<LeaseToken, WaitingClaim>,
    /// The claims with a known place.
    order: BTreeMap<u64, LeaseToken>,
    /// The claims to join; claims that are gone or have joined by now are skipped.
    joining: VecDeque<LeaseToken>,
    /// The claims of which requests stop waiting.
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
    requests: Vec<WaitingRequest>,
}

/// A waiting request.
pub(crate) struct WaitingRequest {
    pub(super) number: u64,
    /// True once it is to be told the answer to the last question.
    pub(super) stops: bool,
    pub(super) tell: oneshot::Sender<Option<Delivery>>,
    pub(super) _room: OwnedSemaphorePermit,
}

/// The way in which requests of a claim stop waiting.
pub(super) enum Stop {
    /// The request of this number, with a last question to the store.
    LastQuestion(u64),
    /// The same without a question, because the instance is shutting down.
    Draining(u64),
    /// All of them, because the claim is released. The releasing call gets them; `Keep` says
    /// whether the place is kept for the store's release.
    Released(Keep, oneshot::Sender<Vec<WaitingRequest>>),
}

/// The work of one round.
#[derive(Default)]
pub(super) struct Work {
    pub(super) leaving: Vec<(LeaseToken, Keep)>,
    /// The claims that join, and those that ask for the last time.
    pub(super) asking: Vec<(Claim, Ask)>,
}

impl KeyLine {
    pub(super) fn new(bell: Arc<Notify>) -> Self {
        Self { bell, ..Self::default() }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.claims.is_empty()
    }

    /// Returns true if a request with this token may wait where `most` claims may: its claim is one
    /// of them, or there is room for another.
    pub(super) fn has_room_for(&self, token: &LeaseToken, most: usize) -> bool {
        self.claims.contains_key(token) || self.claims.len() < most
    }

    /// Returns true if claims are gone that the store may still have in line, or none waits.
    pub(super) fn departs(&self) -> bool {
        self.claims.is_empty() || !self.leaving.is_empty()
    }

    /// Returns true if no claim waits and the store knows it.
    pub(super) fn is_over(&self) -> bool {
        self.claims.is_empty() && self.leaving.is_empty()
    }

    /// Adds a request behind its claim, which joins the line if it is new.
    pub(super) fn enter(&mut self, claim: Claim, request: WaitingRequest) {
        let token = claim.token.clone();
        // The claim is back before the store was told that it left, so it never did.
        let stands = self.leaving.remove(&token).is_some();
        let waiting = self.claims.entry(token.clone()).or_insert_with(|| {
            self.joining.push_back(token);
            WaitingClaim {
                claim: claim.clone(),
                asked: stands,
                queued: true,
                joined: false,
                place: None,
                ahead: 0,
                requests: Vec::new(),
            }
        });
        // The newest request sets TTL and owner, and the slots if it names some.
        waiting.claim = Claim { slots: claim.slots.or(waiting.claim.slots), ..claim };
        waiting.requests.push(request);
        self.bell.notify_one();
    }

    /// Makes requests of a claim, if it waits, stop waiting in the next round.
    pub(super) fn stop(&mut self, token: &LeaseToken, stop: Stop) {
        if self.claims.contains_key(token) {
            self.stopping.push((token.clone(), stop));
            self.bell.notify_one();
        }
    }

    /// Takes out a request whose client is gone, and its claim with the last one. An answer under
    /// way then finds no request.
    pub(super) fn withdraw(&mut self, token: &LeaseToken, number: u64) {
        if !self.take_requests(token, |request| request.number == number).is_empty() {
            self.bell.notify_one();
        }
    }

    /// Takes the work of the next round, with at most `at_most` joins; rings for the rest.
    /// Departures are taken only if `due`.
    pub(super) fn take_work(&mut self, at_most: usize, due: bool) -> Work {
        let mut work = Work::default();
        for (token, stop) in take(&mut self.stopping) {
            let Some(waiting) = self.claims.get_mut(&token) else { continue };
            match stop {
                Stop::LastQuestion(number) => {
                    let mut requests = waiting.requests.iter_mut();
                    if let Some(request) = requests.find(|request| request.number == number) {
                        request.stops = true;
                        work.asking.push((waiting.claim.clone(), Ask::Once(waiting.place)));
                    }
                }
                Stop::Draining(number) => {
                    let stopping = self.take_requests(&token, |one| one.number == number);
                    stopping.into_iter().for_each(|request| request.tell(None));
                }
                Stop::Released(keep, released) => {
                    // No question that is asked from now on may grant it again.
                    work.asking.retain(|(claim, _)| claim.token != token);
                    // If the releasing call is gone, the requests are told by being dropped.
                    drop(released.send(self.take_requests(&token, |_| true)));
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
            if take(&mut waiting.queued) && waiting.place.is_none() && !waiting.stops() {
                waiting.asked = true;
                work.asking.push((waiting.claim.clone(), Ask::InLine(None)));
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
    pub(super) fn first(&self, most: usize) -> Vec<(Claim, Ask)> {
        self.order.values().filter_map(|token| self.claim(token)).take(most).collect()
    }

    /// The question of a waiting claim.
    pub(super) fn claim(&self, token: &LeaseToken) -> Option<(Claim, Ask)> {
        self.claims.get(token).map(|waiting| (waiting.claim.clone(), Ask::InLine(waiting.place)))
    }

    /// The questions of the claims at these places.
    pub(super) fn at(&self, places: &[u64]) -> Vec<(Claim, Ask)> {
        let there = places.iter().filter_map(|place| self.order.get(place));
        there.filter_map(|token| self.claim(token)).collect()
    }

    /// The number of claims ahead, as far as this instance knows; `None` before the store has told
    /// the claim's place.
    pub(super) fn ahead(&self, token: &LeaseToken) -> Option<u64> {
        let waiting = self.claims.get(token)?;
        let (first, _) = self.order.first_key_value()?;
        Some(waiting.ahead.min(waiting.place?.saturating_sub(*first) + self.before_head))
    }

    /// Notes the answer to a claim's question. Returns the requests that are to be told, which are
    /// taken out, and their claim with the last one; `None` while the claim keeps waiting.
    pub(super) fn answered(
        &mut self,
        token: &LeaseToken,
        ask: Ask,
        answer: &mut Result<Answer, StoreError>,
    ) -> Option<Vec<WaitingRequest>> {
        let is = |what: fn(&WaitingClaim) -> bool| self.claims.get(token).is_some_and(what);
        match (&mut *answer, ask) {
            (Ok(Answer::Waiting(waiting)), _) => {
                self.note(token, waiting);
                None
            }
            (Ok(Answer::Held(_)) | Err(_), Ask::Once(_)) => {
                let stood = is(|waiting| waiting.place.is_some());
                let requests = self.take_requests(token, |request| request.stops);
                // A request that came during the last question still has to join.
                self.join(token);
                if let Ok(Answer::Held(status)) = answer
                    && stood
                    && !self.claims.contains_key(token)
                {
                    // The store still counts the claim that is about to leave.
                    status.waiters = status.waiters.saturating_sub(1);
                }
                Some(requests)
            }
            (Ok(_), _) => {
                let requests = self.take_requests(token, |_| true);
                self.leaving.remove(token); // It is in no line any more.
                Some(requests)
            }
            // A claim that had a place keeps waiting, and joins again if it lost the place with the
            // store's data.
            (Err(_), Ask::InLine(_)) if is(|waiting| waiting.joined) => {
                self.join(token);
                None
            }
            // One that could not join leaves in the next round: it may have joined, or may still.
            (Err(_), Ask::InLine(_)) => Some(self.take_requests(token, |_| true)),
        }
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
        (waiting.joined, waiting.ahead) = (true, answer.ahead);
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

    /// Takes out some requests of a claim, and the claim with the last one.
    fn take_requests(
        &mut self,
        token: &LeaseToken,
        which: impl FnMut(&mut WaitingRequest) -> bool,
    ) -> Vec<WaitingRequest> {
        let Some(waiting) = self.claims.get_mut(token) else { return Vec::new() };
        let taken: Vec<_> = waiting.requests.extract_if(.., which).collect();
        if waiting.requests.is_empty()
            && let Some(waiting) = self.claims.remove(token)
        {
            if let Some(place) = waiting.place {
                self.forget_place(place, token);
            }
            if waiting.asked {
                self.leaving.insert(token.clone(), Keep::of(waiting.claim.origin));
            }
        }
        taken
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
    fn stops(&self) -> bool {
        self.requests.iter().all(|request| request.stops)
    }
}

impl WaitingRequest {
    /// Tells the request. If it is gone, its part of the answer's guard is dropped.
    pub(super) fn tell(self, told: Option<Delivery>) {
        drop(self.tell.send(told));
    }

    /// Tells the request that its claim was released.
    pub(crate) fn cancel(self) {
        self.tell(Some(Delivery::gone()));
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::sync::{Notify, Semaphore, oneshot};

    use crate::lock::error::{Effect, StoreError, Verb};
    use crate::lock::key_line::{KeyLine, Stop, WaitingRequest};
    use crate::lock::lease::Claim;
    use crate::lock::sample;
    use crate::lock::store::{Ask, Keep};

    fn claim() -> Claim {
        sample::claim("key", "one", 1_000)
    }

    fn enter(line: &mut KeyLine, number: u64) {
        let room = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
        line.enter(
            claim(),
            WaitingRequest { number, stops: false, tell: oneshot::channel().0, _room: room },
        );
    }

    /// The questions of the next round.
    fn asks(line: &mut KeyLine, due: bool) -> Vec<Ask> {
        line.take_work(10, due).asking.into_iter().map(|(_, ask)| ask).collect()
    }

    /// A claim that the store has in line, and whose client is gone.
    fn left() -> KeyLine {
        let mut line = KeyLine::new(Arc::new(Notify::new()));
        enter(&mut line, 1);
        assert_eq!(asks(&mut line, true), [Ask::InLine(None)]);
        line.withdraw(&claim().token, 1);
        line
    }

    /// The last question of the claim fails, which one request is told.
    fn last_answer(line: &mut KeyLine) {
        let (verb, effect, reason) = (Verb::TryAcquire, Effect::None, "on purpose".into());
        let mut failed = Err(StoreError { verb, effect, reason });
        let told = line.answered(&claim().token, Ask::Once(None), &mut failed).unwrap();
        assert_eq!(told.len(), 1);
    }

    /// Its client waits again, and stops before the claim joins.
    fn waits_shortly(line: &mut KeyLine) {
        enter(line, 2);
        line.stop(&claim().token, Stop::LastQuestion(2));
        assert_eq!(asks(line, false), [Ask::Once(None)], "it does not join");
        last_answer(line);
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
        enter(&mut line, 2);
        last_answer(&mut line);
        assert_eq!(asks(&mut line, true), [Ask::InLine(None)]);
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
