//! I10: a no, or a look that says `held`, has a holder or a waiter behind it; I9: a held key looks held.

use super::Court;
use super::wakeup::Coverage;
use crate::check::key::{Number, is_claim};
use crate::check::lease::Lease;
use crate::history::{Kind, Nanos, Operation, Outcome};

pub(super) fn judge(court: &mut Court<'_>, held: &Coverage) {
    let in_line = in_line(court);
    let mut found = Vec::new();
    for operation in &court.key.operations {
        let Some(answered) = operation.answered else { continue };
        let refused = is_claim(operation)
            && operation.outcome == Outcome::No
            && operation.code == "lock_held"
            && operation.asked.wait_ms == 0;
        let seen = operation.kind == Kind::Look && operation.said.held == Some(true);
        if !(refused || seen) {
            continue;
        }
        let sent = operation.sent.saturating_sub(court.context.late(operation.sent));
        if !held.meets(sent, answered) && !others(court, &in_line, operation, answered) {
            found.push((answered, seen, court.context.disturbed(operation.sent, answered)));
        }
    }
    for (at, seen, disturbed) in found {
        let promised = !(court.context.redlock() && disturbed);
        let told = if seen { "a look says held" } else { "409" };
        court.find("I10", at, promised, format!("{told}, and nobody holds the key or waits"));
    }
    free_looks(court);
}

/// Returns the claims that may stand in line, or on Redlock have votes, as they came; each with the
/// longest stay so far.
fn in_line(court: &Court<'_>) -> Vec<(Nanos, Nanos, Number)> {
    let key = court.key;
    let mut claims = Vec::new();
    let mut longest = 0;
    for (number, operation) in (0..).zip(&key.operations) {
        if is_claim(operation) && (operation.asked.wait_ms > 0 || court.context.redlock()) {
            longest = key.in_line(number).max(longest);
            claims.push((operation.sent, longest, number));
        }
    }
    claims
}

fn others(
    court: &Court<'_>,
    in_line: &[(Nanos, Nanos, Number)],
    operation: &Operation,
    answered: Nanos,
) -> bool {
    let end = in_line.partition_point(|claim| claim.0 <= answered);
    let near = in_line[..end].iter().rev().take_while(|claim| claim.1 >= operation.sent);
    near.into_iter().any(|claim| {
        let other = court.key.operation(claim.2);
        !std::ptr::eq(other, operation) && court.key.in_line(claim.2) >= operation.sent
    })
}

/// I9: nobody sees a free key while a lease is there.
fn free_looks(court: &mut Court<'_>) {
    let key = court.key;
    let mut by_time: Vec<&Lease> = key.leases.iter().collect();
    by_time.sort_unstable_by_key(|lease| lease.hi);
    let mut next = by_time.into_iter().peekable();
    let mut current: Option<&Lease> = None;
    let mut found = Vec::new();
    for operation in &key.operations {
        while let Some(lease) = next.next_if(|lease| lease.hi <= operation.sent) {
            if current.is_none_or(|current| current.sure <= lease.sure) {
                current = Some(lease);
            }
        }
        let free = operation.kind == Kind::Look && operation.said.held == Some(false);
        let (Some(answered), Some(lease), true) = (operation.answered, current, free) else {
            continue;
        };
        if lease.covers(operation.sent, answered) {
            found.push((lease.fence, lease.lo, answered, operation.sent));
        }
    }
    for (fence, lo, answered, sent) in found {
        // On Redlock a lease that has just ended may go on by a renewal that is under way.
        let renewed = key.operations.iter().any(|one| {
            let is_renewal = matches!(one.kind, Kind::Acquire | Kind::Refresh);
            let crosses = one.sent <= answered && one.answered.is_some_and(|at| at >= sent);
            is_renewal && crosses && one.said.fencing_token == Some(fence)
        });
        let disturbed =
            court.context.redlock() && (renewed || court.context.disturbed(sent, answered));
        let promised = !disturbed && court.context.promises_keeping(lo, answered);
        court.find(
            "I9",
            answered,
            promised,
            format!("lease {fence} is there and a look says free"),
        );
    }
}
