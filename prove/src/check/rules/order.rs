//! I3: first in line, first served; on Redlock for each instance.

use std::collections::HashMap;

use super::{Court, ORDER};
use crate::check::context::{MS, PLACE_KEPT};
use crate::check::lease::Lease;
use crate::check::spans::Span;
use crate::history::{NO_TOKEN, Nanos, Operation, Outcome, Token};

/// A grant as the line saw it.
#[derive(Clone, Copy)]
struct Turn<'l> {
    lease: &'l Lease<'l>,
    /// Its claim was in line by then; the end of time if it did not wait, or nobody knows.
    in_line: Nanos,
    /// Its claim was not in line before then.
    not_before: Nanos,
}

pub(super) fn judge(court: &mut Court<'_>) {
    let mut had: HashMap<Token, Nanos> = HashMap::new();
    let mut turns = Vec::new();
    for lease in &court.leases.all {
        let before = had.insert(lease.token, lease.latest());
        // A lease in the place of another one of its token was not in line.
        if lease.first.replaces().is_none() && before.is_none_or(|latest| latest < lease.lo) {
            turns.push(turn(court, lease));
        }
    }
    let mut first: Option<Turn<'_>> = None;
    let mut first_here: HashMap<u16, Turn<'_>> = HashMap::new();
    for turn in turns.iter().rev() {
        let passed = |first: &&Turn<'_>| first.in_line < turn.not_before;
        let here = first_here.get(&turn.lease.first.instance);
        if let Some(first) = first.as_ref().filter(passed) {
            passes(court, turn, here.filter(passed).unwrap_or(first));
        }
        if turn.in_line == Nanos::MAX {
            continue;
        }
        if here.is_none_or(|here| turn.in_line < here.in_line) {
            first_here.insert(turn.lease.first.instance, *turn);
        }
        if first.is_none_or(|first| turn.in_line < first.in_line) {
            first = Some(*turn);
        }
    }
}

fn passes(court: &mut Court<'_>, turn: &Turn<'_>, passed: &Turn<'_>) {
    let (context, lease, since) = (court.context, turn.lease, passed.in_line);
    // On Redlock each instance has a line, and a token may be asked for on several of them.
    let here = |other: &Operation| other.instance == lease.first.instance;
    let asked = court.key.near(lease.token, lease.first.sent, lease.hi).map(|near| near.of);
    let one_line = lease.first.may_wait()
        && here(passed.lease.first)
        && asked.filter(|other| other.is_claim()).all(here);
    let ordered = !context.redlock() || one_line;
    // A lease that is shorter than the store's answer is lost, and with it the place.
    let lost = 2 * context.slowest(since, lease.hi) > passed.lease.ttl;
    let promised = ordered && !lost && context.promises_order(since, lease.hi);
    let what = format!(
        "lease {} passed lease {}, which was in line {} ms before",
        lease.fence,
        passed.lease.fence,
        (turn.not_before - since) / MS
    );
    court.find(ORDER, lease.hi, promised, what);
}

fn turn<'l>(court: &Court<'_>, lease: &'l Lease<'l>) -> Turn<'l> {
    let first = lease.first;
    let arrived = || {
        let arrival = court.context.arrival(first.sent)?;
        // On a shared key the rounds of those who are there come before its first question.
        Some(first.sent + if court.key.shared { 2 * arrival } else { arrival })
    };
    let in_line = first.said.queued_at.or_else(arrived).filter(|_| first.may_wait());
    // One of several keys is in line for this one later.
    let in_line = in_line.filter(|_| !first.asked.several);
    // A place that was given up meanwhile is another one from then on.
    let mut near = court.key.near(lease.token, first.sent, lease.hi);
    let in_line = in_line.filter(|_| !near.any(|near| near.of.is_release()));
    let not_before = first_asked(court, lease);
    Turn { lease, in_line: in_line.unwrap_or(Nanos::MAX), not_before }
}

/// Returns when the claim of a lease can have come into line: with its first question since the token had
/// something else, or since its place was forgotten.
fn first_asked(court: &Court<'_>, lease: &Lease<'_>) -> Nanos {
    let operation = lease.first;
    let mut first = operation.sent;
    if lease.token == NO_TOKEN || !operation.chosen || !operation.is_claim() {
        return if operation.is_claim() { first } else { 0 };
    }
    let mut since = 0;
    for Span { until, of: other, .. } in court.key.near(lease.token, 0, lease.hi) {
        if !other.is_claim() || until < since || until.saturating_add(PLACE_KEPT) < first {
            continue;
        }
        let ended = other.is_definite_no() && other.code != "lock_held" && other.asked.wait_ms == 0;
        let earlier = other.outcome == Outcome::Yes
            && other.said.fencing_token.is_some_and(|said| said != lease.fence);
        if let Some(answered) = other.answered.filter(|at| earlier && *at < first) {
            // A late request may have come after it.
            since = answered.max(since);
        } else if !ended {
            first = first.min(other.sent);
        }
    }
    first
}
