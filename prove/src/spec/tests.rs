//! Each rule of the contract with an answer that it allows and one that it does not.

use super::*;

const MS: Nanos = 1_000_000;

fn acquire(token: Token, ttl: u64, wait: u64) -> Question {
    Question::Acquire { token, chosen: true, ttl: ttl * MS, wait: wait * MS }
}

fn granted(fence: u64, new: bool) -> Answer {
    Answer::Granted { fence, new }
}

fn release(token: Token) -> Question {
    Question::Release { token, fence: None }
}

/// A history of questions at these milliseconds, each of which takes one.
struct Told(State);

impl Told {
    fn new() -> Self {
        Self(State::new(Settings::default()))
    }

    fn yes(&mut self, at: u64, question: Question, answer: Answer) -> &mut Self {
        self.0.may(question, answer, at * MS, (at + 1) * MS).unwrap();
        self
    }

    fn never(&mut self, at: u64, question: Question, answers: &[Answer]) -> &mut Self {
        for &answer in answers {
            let mut state = self.0.clone();
            let told = state.may(question, answer, at * MS, (at + 1) * MS);
            assert!(told.is_err(), "{question:?} at {at} ms is told {answer:?}");
        }
        self
    }

    fn waits(&mut self, at: u64, token: Token) -> &mut Self {
        self.0.may_wait((token, true), 1_000 * MS, at * MS, (at + 1) * MS).unwrap();
        self
    }

    fn ends(&mut self, at: u64, token: Token, answer: Answer) -> &mut Self {
        self.0.may_end(token, answer, at * MS, (at + 1) * MS).unwrap();
        self
    }

    fn never_ends(&mut self, at: u64, token: Token, answer: Answer) -> &mut Self {
        let told = self.0.clone().may_end(token, answer, at * MS, (at + 1) * MS);
        assert!(told.is_err(), "token {token} is told {answer:?} at {at} ms");
        self
    }
}

#[test]
fn one_holds_until_its_lease_is_over() {
    let mut told = Told::new();
    told.never(0, acquire(1, 1_000, 0), &[Answer::Held, granted(10, false), Answer::Lost])
        .yes(0, acquire(1, 1_000, 0), granted(10, true))
        .never(900, acquire(2, 1_000, 0), &[granted(11, true), granted(10, false)])
        .yes(900, acquire(2, 1_000, 0), Answer::Held)
        // The lease may be over here, and may not.
        .0
        .clone()
        .may(acquire(2, 9, 0), Answer::Held, 1_000 * MS, 1_002 * MS)
        .unwrap();
    told.yes(1_000, acquire(2, 1_000, 0), granted(11, true));
    told.never(1_100, acquire(1, 1_000, 0), &[granted(12, true), granted(10, false)]);
    told.never(2_400, acquire(1, 1_000, 0), &[Answer::Held, granted(11, true), granted(5, true)]);
}

#[test]
fn a_repeat_is_the_same_lease_anew() {
    let mut told = Told::new();
    told.yes(0, acquire(1, 1_000, 0), granted(10, true))
        .never(500, acquire(1, 1_000, 0), &[granted(11, true), granted(10, true), Answer::Held])
        .yes(500, acquire(1, 1_000, 0), granted(10, false))
        .never(1_400, acquire(2, 1_000, 0), &[granted(11, true)])
        .yes(1_500, acquire(2, 1_000, 0), granted(11, true));
}

#[test]
fn a_refresh_needs_the_lease_that_it_means_and_revives_none() {
    let refresh = |fence| Question::Refresh { token: 1, fence, ttl: Some(300 * MS) };
    let mut told = Told::new();
    told.never(0, refresh(None), &[granted(1, false)])
        .yes(0, acquire(1, 1_000, 0), granted(10, true))
        .never(10, refresh(Some(9)), &[granted(10, false)])
        .yes(10, refresh(Some(9)), Answer::Lost)
        .never(20, refresh(None), &[Answer::Lost, granted(11, false)])
        .yes(20, refresh(Some(10)), granted(10, false))
        // It replaces what was left.
        .yes(700, acquire(2, 100, 0), granted(11, true))
        .never(1_200, refresh(None), &[granted(10, false), granted(12, false)])
        .yes(1_200, refresh(None), Answer::Lost);
}

#[test]
fn a_refresh_without_a_ttl_has_the_last_one() {
    let refresh = Question::Refresh { token: 1, fence: None, ttl: None };
    let mut told = Told::new();
    told.yes(0, acquire(1, 1_000, 0), granted(10, true))
        .yes(900, refresh, granted(10, false))
        .never(1_800, acquire(2, 1, 0), &[granted(11, true)])
        .yes(1_950, acquire(2, 1, 0), granted(11, true));
}

#[test]
fn a_release_ends_its_own_lease_only() {
    let mut told = Told::new();
    told.yes(0, acquire(1, 1_000, 0), granted(10, true))
        .never(10, release(2), &[Answer::Ended])
        .yes(10, release(2), Answer::Lost)
        .never(20, Question::Release { token: 1, fence: Some(9) }, &[Answer::Ended])
        .yes(30, release(1), Answer::Ended)
        .never(40, release(1), &[Answer::Ended])
        .never(40, acquire(2, 1_000, 0), &[Answer::Held, granted(10, true)])
        .yes(40, acquire(2, 1_000, 0), granted(11, true));
}

#[test]
fn a_release_gives_up_a_place_that_is_kept() {
    let mut told = Told::new();
    told.yes(0, acquire(1, 60_000, 0), granted(10, true));
    told.0.may(acquire(2, 1_000, 50), Answer::Held, 10 * MS, 61 * MS).unwrap();
    let mut early = told.0.clone();
    assert!(
        early.may(acquire(3, 1_000, 50), Answer::Held, 100 * MS, 120 * MS).is_err(),
        "too early"
    );
    told.never(100, release(2), &[Answer::Lost]).yes(100, release(2), Answer::Ended);
    told.never(110, release(2), &[Answer::Ended]);
    // After five seconds the place is forgotten.
    told.0.may(acquire(3, 1_000, 50), Answer::Held, 200 * MS, 251 * MS).unwrap();
    told.never(6_000, release(3), &[Answer::Ended]).yes(6_000, release(3), Answer::Lost);
}

#[test]
fn the_first_in_line_is_served_first() {
    let mut told = Told::new();
    told.yes(0, acquire(1, 1_000, 0), granted(10, true))
        .waits(10, 2)
        .waits(20, 3)
        .yes(30, release(1), Answer::Ended)
        .never_ends(31, 3, granted(11, true))
        .ends(31, 2, granted(11, true))
        .never_ends(40, 3, granted(12, true))
        .never(50, acquire(4, 1_000, 0), &[granted(12, true)])
        .yes(60, release(2), Answer::Ended)
        .never_ends(61, 3, granted(11, true))
        .ends(61, 3, granted(12, true));
}

#[test]
fn a_claim_that_is_away_is_passed_over_and_keeps_its_place() {
    let mut told = Told::new();
    told.yes(0, acquire(1, 10_000, 0), granted(10, true))
        .waits(10, 2)
        .waits(20, 3)
        .ends(30, 2, Answer::Held)
        .yes(40, Question::Look { token: None }, seen(Some(10), None, 1))
        .never(40, Question::Look { token: None }, &[seen(Some(10), None, 2)])
        .waits(50, 2)
        .yes(60, release(1), Answer::Ended)
        .never_ends(61, 3, granted(11, true))
        .ends(61, 2, granted(11, true));
    let mut told = Told::new();
    told.yes(0, acquire(1, 10_000, 0), granted(10, true))
        .waits(10, 2)
        .waits(20, 3)
        .ends(30, 2, Answer::Held)
        .yes(60, release(1), Answer::Ended)
        .ends(61, 3, granted(11, true));
}

#[test]
fn all_requests_of_a_claim_are_granted_and_one_is_new() {
    let mut told = Told::new();
    told.yes(0, acquire(1, 1_000, 0), granted(10, true))
        .waits(10, 2)
        .waits(20, 2)
        .yes(30, release(1), Answer::Ended)
        .ends(31, 2, granted(11, true))
        .never_ends(32, 2, granted(11, true))
        .never_ends(32, 2, granted(12, false))
        .never_ends(32, 2, Answer::Held)
        .ends(32, 2, granted(11, false));
}

#[test]
fn a_claim_that_is_released_is_cancelled_and_never_granted() {
    let mut told = Told::new();
    told.yes(0, acquire(1, 1_000, 0), granted(10, true))
        .waits(10, 2)
        .yes(20, release(2), Answer::Ended)
        .never_ends(21, 2, Answer::Held)
        .ends(21, 2, Answer::Cancelled)
        .yes(30, release(1), Answer::Ended)
        .yes(40, Question::Look { token: Some(2) }, seen(None, Some(false), 0));
}

#[test]
fn a_look_shows_what_there_is() {
    let look = Question::Look { token: Some(1) };
    let mut told = Told::new();
    told.yes(0, look, seen(None, Some(false), 0))
        .yes(0, acquire(1, 1_000, 0), granted(10, true))
        .never(10, look, &[seen(None, Some(false), 0), seen(Some(10), Some(false), 0)])
        .never(10, look, &[seen(Some(11), Some(true), 0), seen(Some(10), Some(true), 1)])
        .yes(10, look, seen(Some(10), Some(true), 0))
        .never(2_000, look, &[seen(Some(10), Some(true), 0)]);
}

#[test]
fn a_forced_release_ends_whatever_there_is() {
    let mut told = Told::new();
    told.never(0, Question::ForceRelease, &[Answer::Ended])
        .yes(0, acquire(1, 1_000, 0), granted(10, true))
        .never(10, Question::ForceRelease, &[Answer::Lost])
        .yes(10, Question::ForceRelease, Answer::Ended)
        .yes(20, release(1), Answer::Lost)
        .yes(30, acquire(2, 1_000, 0), granted(11, true));
}

#[test]
fn a_question_without_an_answer_leaves_both_open() {
    let mut told = Told::new();
    told.yes(0, acquire(1, 1_000, 0), Answer::Unknown);
    let mut other = told.0.clone();
    other.may(acquire(2, 1_000, 0), Answer::Held, 10 * MS, 11 * MS).unwrap();
    let held = other.may(acquire(2, 1_000, 0), granted(12, true), 20 * MS, 21 * MS);
    assert!(held.is_err(), "it is known by now");
    other.may(acquire(1, 1_000, 0), granted(12, false), 30 * MS, 31 * MS).unwrap();
    told.yes(10, acquire(2, 1_000, 0), granted(11, true));
    told.never(20, acquire(1, 1_000, 0), &[granted(12, true), granted(11, false)]);
}

#[test]
fn the_next_in_line_has_the_key_when_a_lease_is_over() {
    let mut told = Told::new();
    told.yes(0, acquire(1, 1_000, 0), granted(10, true)).waits(10, 2);
    told.never_ends(500, 2, granted(11, true));
    told.never_ends(1_400, 2, Answer::Held);
    told.0.may_end(2, granted(11, true), 10 * MS, 1_100 * MS).unwrap();
    told.never(1_200, acquire(3, 1_000, 0), &[granted(12, true)]);
}

fn seen(fence: Option<u64>, mine: Option<bool>, waiters: u64) -> Answer {
    Answer::Seen { fence, mine, waiters }
}
