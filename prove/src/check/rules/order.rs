//! I3: first in line, first served; on Redlock for each instance.

use std::collections::HashMap;

use super::{Court, ORDER};
use crate::check::context::{MS, PLACE_KEPT};
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
    for lease in &court.leases.all {
        let before = had.insert(lease.token, lease.latest());
        // Who holds the key and shares it otherwise from now on was not in line.
        let changed = court.key.shared && before.is_some_and(|latest| latest >= lease.lo);
        let turn = turn(court, lease);
        let passed_by = Turn { in_line: Nanos::MAX, not_before: 0, ..turn };
        turns.push(if changed { passed_by } else { turn });
    }
    for pair in turns.windows(2) {
        let unordered = pair[1].waited && pair[1].in_line >= pair[0].not_before;
        let behind = pair[0].in_line <= pair[1].not_before;
        court.report.count("unordered_waiters", usize::from(unordered && !behind));
    }
    let mut first: Option<Turn> = None;
    let mut first_here: HashMap<u16, Turn> = HashMap::new();
    for turn in turns.iter().rev() {
        let passed = |first: &&Turn| first.in_line < turn.not_before;
        let here = first_here.get(&turn.instance);
        if let Some(first) = first.as_ref().filter(passed) {
            passes(court, turn, here.filter(passed).unwrap_or(first));
        }
        if turn.in_line == Nanos::MAX {
            continue;
        }
        if here.is_none_or(|here| turn.in_line < here.in_line) {
            first_here.insert(turn.instance, *turn);
        }
        if first.is_none_or(|first| turn.in_line < first.in_line) {
            first = Some(*turn);
        }
    }
}

fn passes(court: &mut Court<'_>, turn: &Turn, passed: &Turn) {
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
    court.find(ORDER, turn.hi, promised, what);
}

fn turn(court: &Court<'_>, lease: &Lease) -> Turn {
    let operation = court.key.operation(lease.first);
    let waited = operation.is_claim() && operation.asked.wait_ms > 0;
    let arrived = || {
        let arrival = court.context.arrival(operation.sent)?;
        // On a shared key the rounds of those who are there come before its first question.
        Some(operation.sent + if court.key.shared { 2 * arrival } else { arrival })
    };
    let in_line = operation.said.queued_at.or_else(arrived);
    let near = || court.key.near(lease.token, operation.sent, lease.hi).map(|near| near.1);
    // A place that was given up meanwhile is another one from then on.
    let in_line = in_line.filter(|_| waited && !near().any(Operation::is_release));
    Turn {
        fence: lease.fence,
        instance: operation.instance,
        in_line: in_line.unwrap_or(Nanos::MAX),
        not_before: first_asked(court, lease),
        hi: lease.hi,
        waited,
        elsewhere: near().any(|other| other.is_claim() && other.instance != operation.instance),
        ttl: lease.ttl,
    }
}

/// Returns when the claim of a lease can have come into line: with its first question since the token had
/// something else, or since its place was forgotten.
fn first_asked(court: &Court<'_>, lease: &Lease) -> Nanos {
    let operation = court.key.operation(lease.first);
    let mut first = operation.sent;
    if lease.token == NO_TOKEN || !operation.chosen || !operation.is_claim() {
        return if operation.is_claim() { first } else { 0 };
    }
    for (number, other) in court.key.near(lease.token, 0, lease.hi) {
        if !other.is_claim() {
            continue;
        }
        if court.key.settled(number).saturating_add(PLACE_KEPT) < first {
            break;
        }
        let ended = other.is_definite_no() && other.code != "lock_held" && other.asked.wait_ms == 0;
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
