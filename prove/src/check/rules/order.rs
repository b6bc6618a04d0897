//! I3: first in line, first served; on Redlock for each instance.

use std::collections::HashMap;

use super::Court;
use crate::check::context::{MS, PLACE_KEPT};
use crate::check::key::{is_claim, is_definite_no, is_release};
use crate::check::lease::Lease;
use crate::history::{NO_TOKEN, Nanos, Operation, Outcome, Token};

/// A grant as the line saw it.
#[derive(Clone, Copy)]
struct Turn {
    fence: u64,
    instance: u16,
    /// Its claim was in line by then; the end of time if it did not wait, or nobody knows.
    in_line: Nanos,
    /// Its claim was not in line before then.
    not_before: Nanos,
    hi: Nanos,
    waited: bool,
    /// Whether another instance was asked with its token at that time.
    elsewhere: bool,
    ttl: Nanos,
}

pub(super) fn judge(court: &mut Court<'_>) {
    let mut had: HashMap<Token, Nanos> = HashMap::new();
    let mut turns = Vec::new();
    for lease in &court.key.leases {
        let before = had.insert(lease.token, lease.latest());
        // Who holds the key and shares it otherwise from now on was not in line.
        let changed = court.key.shared && before.is_some_and(|latest| latest >= lease.lo);
        let turn = turn(court, lease);
        turns.push(if changed {
            Turn { in_line: Nanos::MAX, not_before: 0, ..turn }
        } else {
            turn
        });
    }
    for pair in turns.windows(2) {
        let unordered = pair[1].waited && pair[1].in_line >= pair[0].not_before;
        let behind = pair[0].in_line <= pair[1].not_before;
        court.report.count("unordered_waiters", usize::from(unordered && !behind));
    }
    let mut found: Vec<(Turn, Turn)> = Vec::new();
    let mut first: Option<Turn> = None;
    let mut first_here: Vec<(u16, Turn)> = Vec::new();
    for turn in turns.iter().rev() {
        if let Some(passed) = first.filter(|passed| passed.in_line < turn.not_before) {
            let here = first_here.iter().find(|here| here.0 == turn.instance);
            let here = here.map(|here| here.1);
            let here = here.filter(|passed| passed.in_line < turn.not_before);
            found.push((here.unwrap_or(passed), *turn));
        }
        if turn.in_line == Nanos::MAX {
            continue;
        }
        if first.is_none_or(|first| turn.in_line < first.in_line) {
            first = Some(*turn);
        }
        match first_here.iter_mut().find(|here| here.0 == turn.instance) {
            Some(here) if turn.in_line < here.1.in_line => here.1 = *turn,
            Some(_) => (),
            None => first_here.push((turn.instance, *turn)),
        }
    }
    for (passed, turn) in found {
        let context = court.context;
        let here = passed.instance == turn.instance && turn.waited && !turn.elsewhere;
        let ordered = !context.redlock() || here;
        // A lease that is shorter than the store's answer is lost, and with it the place.
        let lost = 2 * context.slowest(passed.in_line, turn.hi) > passed.ttl;
        let promised = ordered && !lost && context.promises_order(passed.in_line, turn.hi);
        let what = format!(
            "lease {} passed lease {}, which was in line {} ms before",
            turn.fence,
            passed.fence,
            (turn.not_before - passed.in_line) / MS
        );
        court.find("I3", turn.hi, promised, what);
    }
}

fn turn(court: &Court<'_>, lease: &Lease) -> Turn {
    let operation = court.key.operation(lease.first);
    let waited = is_claim(operation) && operation.asked.wait_ms > 0;
    let arrived = || {
        let arrival = court.context.arrival(operation.sent)?;
        // On a shared key the rounds of those who are there come before its first question.
        Some(operation.sent + if court.key.shared { 2 * arrival } else { arrival })
    };
    let in_line = operation.said.queued_at.or_else(arrived);
    let near = || {
        let near = court.key.near(lease.token, operation.sent, lease.hi);
        near.map(|number| court.key.operation(number))
    };
    let gives_up = |other: &Operation| court.key.shared && is_release(other);
    // A place that was given up meanwhile is another one from then on.
    let in_line = in_line.filter(|_| waited && !near().any(gives_up));
    Turn {
        fence: lease.fence,
        instance: operation.instance,
        in_line: in_line.unwrap_or(Nanos::MAX),
        not_before: first_asked(court, lease),
        hi: lease.hi,
        waited,
        elsewhere: near().any(|other| is_claim(other) && other.instance != operation.instance),
        ttl: lease.ttl,
    }
}

/// Returns when the claim of a lease can have come into line: with its first question since the token had
/// something else, or since its place was forgotten.
fn first_asked(court: &Court<'_>, lease: &Lease) -> Nanos {
    let operation = court.key.operation(lease.first);
    let mut first = operation.sent;
    if lease.token == NO_TOKEN || !operation.chosen || !is_claim(operation) {
        return if is_claim(operation) { first } else { 0 };
    }
    for number in court.key.near(lease.token, 0, lease.hi) {
        let other = court.key.operation(number);
        if !is_claim(other) {
            continue;
        }
        if court.key.settled(number).saturating_add(PLACE_KEPT) < first {
            break;
        }
        let ended = is_definite_no(other) && other.code != "lock_held" && other.asked.wait_ms == 0;
        let earlier = other.outcome == Outcome::Yes
            && other.said.fencing_token.is_some_and(|said| said != lease.fence);
        if earlier && other.answered.is_some_and(|answered| answered < first) {
            break;
        }
        if !ended {
            first = first.min(other.sent);
        }
    }
    first
}
