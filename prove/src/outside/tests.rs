//! Little histories that an order explains, and others that none does.

use super::*;
use crate::check::little;
use crate::check::little::{MS, ask, no};
use crate::history::{Asked, NO_TOKEN, Outcome, Run, Said, Token};

fn grant(token: Token, number: u64, times: (u64, u64)) -> Operation {
    little::grant(token, number, times, 60_000)
}

fn refresh(token: Token, number: u64, times: (u64, u64)) -> Operation {
    let asked = Asked { fencing_token: Some(number), ..Asked::default() };
    Operation { kind: Kind::Refresh, asked, ..grant(token, number, times) }
}

fn release(token: Token, number: u64, times: (u64, u64)) -> Operation {
    let asked = Asked { fencing_token: Some(number), ..Asked::default() };
    Operation { asked, ..little::release(token, times.0, times.1) }
}

fn look(number: Option<u64>, times: (u64, u64)) -> Operation {
    little::look(NO_TOKEN, times, number, false)
}

fn lost(operation: Operation) -> Operation {
    let (answered, outcome, said) = (None, Outcome::Unknown, Said::default());
    let asked = Asked { ttl_ms: Some(60_000), ..operation.asked };
    Operation { answered, outcome, said, asked, ..operation }
}

fn judged_on(store: &str, operations: Vec<Operation>) -> Verdict {
    let (store, deadline) = (store.to_owned(), 1_000 * MS);
    let run = Run { store, seed: 0, deadline, drift_ppm: 0 };
    let operations = operations.into_iter().map(Line::Operation);
    let verdict = judge(&std::iter::once(Line::Run(run)).chain(operations).collect::<Vec<_>>());
    assert_eq!(verdict.too_large, 0, "{verdict}");
    verdict
}

fn accepted(operations: Vec<Operation>) {
    let all = operations.len() as u64;
    let verdict = judged_on("redis", operations);
    assert!(verdict.passed() && verdict.operations == all, "{verdict} {:?}", verdict.rejected);
}

fn rejected(operations: Vec<Operation>) {
    let verdict = judged_on("redis", operations);
    assert!(!verdict.rejected.is_empty() && !verdict.passed(), "{verdict}");
}

#[test]
fn a_good_history_is_accepted() {
    accepted(vec![
        grant(1, 10, (0, 10)),
        no(grant(2, 0, (5, 25)), "lock_held"),
        grant(1, 10, (20, 22)), // A repeat.
        refresh(1, 10, (30, 40)),
        look(Some(10), (35, 36)),
        release(1, 10, (50, 60)),
        grant(2, 11, (55, 70)), // Before the answer to the release.
        look(None, (54, 59)),
        no(refresh(1, 10, (80, 90)), "lock_lost"),
        no(release(1, 10, (80, 90)), "lock_lost"),
        release(2, 11, (100, 110)),
        look(None, (120, 130)),
    ]);
}

#[test]
fn two_holders_are_rejected() {
    rejected(vec![grant(1, 10, (0, 10)), grant(2, 11, (20, 30))]);
    // Also at once: one of them has to be first, and has not released.
    rejected(vec![grant(1, 10, (0, 10)), grant(2, 11, (5, 30))]);
    accepted(vec![grant(1, 10, (0, 10)), release(1, 10, (12, 40)), grant(2, 11, (20, 30))]);
}

#[test]
fn a_number_that_falls_or_changes_is_rejected() {
    let first = || vec![grant(1, 10, (0, 10)), release(1, 10, (12, 14))];
    rejected([first(), vec![grant(2, 9, (20, 30))]].concat());
    rejected([first(), vec![grant(2, 10, (20, 30))]].concat());
    rejected(vec![grant(1, 10, (0, 10)), grant(1, 11, (20, 30))]);
    // Long before, in another window.
    let between = vec![grant(3, 20, (30, 31)), release(3, 20, (40, 41)), look(None, (50, 51))];
    rejected([first(), between, vec![grant(2, 15, (60, 61))]].concat());
}

#[test]
fn a_refresh_after_the_release_is_rejected() {
    let first = || vec![grant(1, 10, (0, 10)), release(1, 10, (12, 20))];
    rejected([first(), vec![refresh(1, 10, (21, 30))]].concat());
    accepted([first(), vec![refresh(1, 10, (15, 30))]].concat());
    let next = || vec![grant(1, 12, (22, 23))];
    rejected([first(), next(), vec![refresh(1, 10, (25, 30))]].concat());
    rejected([first(), next(), vec![release(1, 10, (25, 30))]].concat());
    accepted([first(), next(), vec![refresh(1, 12, (25, 30))]].concat());
}

#[test]
fn a_look_that_says_free_while_the_key_is_held_is_rejected() {
    rejected(vec![grant(1, 10, (0, 10)), look(None, (11, 12))]);
    accepted(vec![grant(1, 10, (0, 10)), look(None, (9, 12))]);
    rejected(vec![grant(1, 10, (0, 10)), look(Some(11), (11, 12))]);
    let mut not_mine = ask(Kind::Look, 1, 11, 12);
    not_mine.said = Said { held: Some(true), mine: Some(false), ..Said::default() };
    rejected(vec![grant(1, 10, (0, 10)), not_mine]);
}

#[test]
fn a_refusal_without_another_holder_is_rejected() {
    rejected(vec![no(grant(1, 0, (0, 10)), "lock_held")]);
    rejected(vec![grant(1, 10, (0, 10)), no(grant(1, 0, (20, 21)), "lock_held")]);
    rejected(vec![grant(1, 10, (0, 10)), no(release(1, 10, (20, 21)), "lock_lost")]);
}

#[test]
fn on_redlock_votes_that_are_no_lease_may_be_told() {
    let at = |times| vec![grant(1, 10, (0, 10)), no(grant(2, 0, times), "lock_held")];
    let ended = |times| [at(times), vec![release(1, 10, (11, 12))]].concat();
    assert!(!judged_on("redlock", ended((14, 15))).passed());
    let other = grant(3, 11, (13, 14));
    let split = [ended((13, 13)), vec![other]].concat();
    assert!(judged_on("redlock", split).passed());
    // A repeat has a vote with a number that it will not get.
    let repeat = vec![grant(1, 10, (0, 10)), grant(1, 10, (20, 30)), look(Some(12), (22, 24))];
    assert!(judged_on("redlock", repeat).passed());
    assert!(!judged_on("redlock", vec![grant(1, 10, (0, 1)), look(Some(12), (2, 3))]).passed());
}

#[test]
fn a_question_without_an_answer_acts_at_any_time_or_never() {
    let asked = || vec![lost(grant(1, 0, (0, 0)))];
    accepted([asked(), vec![grant(2, 10, (10, 11))]].concat());
    // It had the key, and was taken back before anybody was told.
    accepted(
        [asked(), vec![no(grant(2, 0, (10, 11)), "lock_held"), look(None, (12, 13))]].concat(),
    );
    let told = || vec![grant(1, 10, (20, 21)), no(grant(2, 0, (22, 23)), "lock_held")];
    accepted([asked(), told()].concat());
    rejected([asked(), told(), vec![look(None, (24, 25))]].concat());
    rejected([asked(), told(), vec![grant(2, 11, (24, 25))]].concat());
    let ended = vec![lost(release(1, 10, (24, 24))), grant(2, 11, (26, 27))];
    accepted([asked(), told(), ended].concat());
    // Windows later it may still act, but not for ever.
    let later = |at| {
        let quiet = vec![look(None, (10, 11)), look(None, (20, 21)), look(None, (7_000, 7_001))];
        [asked(), quiet, vec![no(grant(2, 0, (at, at + 1)), "lock_held")]].concat()
    };
    accepted(later(3_000));
    rejected(later(8_000));
}

#[test]
fn what_comes_after_a_lease_may_have_expired_is_left_out() {
    let verdict = judged_on("redis", vec![grant(1, 10, (1, 10)), grant(2, 11, (60_002, 60_003))]);
    assert!(verdict.passed() && verdict.left_out == 1, "{verdict}");
    let late = |at| grant(2, 11, (at, at + 1));
    let most = vec![grant(1, 10, (1, 10)), late(60_002), late(60_004)];
    assert!(!judged_on("redis", most).passed(), "too little was searched");
}

#[test]
fn a_window_that_is_too_large_is_counted_and_not_judged() {
    let mut steps = vec![grant(1, 10, (1, 10))];
    steps.extend((0..LONGEST as u64).map(|at| look(Some(10), (20 + at, 1_000 - at))));
    steps.push(look(Some(10), (1_100, 1_101)));
    steps.push(look(None, (1_102, 1_103)));
    let verdict = judge(&steps.into_iter().map(Line::Operation).collect::<Vec<_>>());
    assert_eq!((verdict.too_large, verdict.left_out), (1, LONGEST as u64 + 1), "{verdict}");
    assert_eq!(verdict.rejected.len(), 1, "the search goes on after it");
}

#[test]
fn a_history_is_written_in_the_form_of_jepsen() {
    let again = Operation { status: 200, ..grant(1, 10, (12, 14)) };
    let mut other = no(grant(2, 0, (11, 22)), "lock_held");
    other.client = 7;
    let asked = vec![grant(1, 10, (0, 10)), other, again, lost(release(1, 10, (15, 15)))];
    let late = vec![release(1, 10, (20, 30)), look(None, (31, 32))];
    let lines: Vec<_> = [asked, late].concat().into_iter().map(Line::Operation).collect();
    let text = &edn::written(&lines)[&1];
    let told: Vec<_> = text.lines().map(|line| line.split(", :value").next().unwrap()).collect();
    assert_eq!(
        told,
        [
            "{:process 1, :type :invoke, :f :acquire",
            "{:process 1, :type :ok, :f :acquire",
            "{:process 7, :type :invoke, :f :acquire",
            "{:process 1, :type :invoke, :f :release",
            "{:process 1, :type :info, :f :release",
            "{:process 100001, :type :invoke, :f :release",
            "{:process 7, :type :fail, :f :acquire",
            "{:process 100001, :type :ok, :f :release",
        ]
    );
    assert!(
        text.starts_with("{:process 1, :type :invoke, :f :acquire, :value 1, :time 0, :index 0}\n")
    );
}
