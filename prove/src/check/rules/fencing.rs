//! I2, of shared keys S3: numbers of leases are unique, rise in time and do not change.

use super::Court;
use crate::check::lease::Lease;
use crate::history::{Kind, NO_TOKEN, Nanos, Outcome};

pub(super) fn judge(court: &mut Court<'_>) {
    for &(fence, at) in &court.key.clashes {
        let promised = court.context.promises_fencing(at);
        court.find(rule(court), at, promised, format!("two tokens have a lease {fence}"));
    }
    rising(court);
    // Of a shared key each token sees the number of its own lease, see `shared`.
    if !court.key.shared {
        unchanged(court);
    }
}

fn rule(court: &Court<'_>) -> &'static str {
    if court.key.shared { "S3" } else { "I2" }
}

/// A lease that was answered before another one can have begun has the lower number.
fn rising(court: &mut Court<'_>) {
    let leases = &court.key.leases;
    let mut by_start: Vec<&Lease> = leases.iter().collect();
    by_start.sort_unstable_by_key(|lease| lease.lo);
    let mut by_answer: Vec<&Lease> = leases.iter().collect();
    by_answer.sort_unstable_by_key(|lease| lease.hi);
    let mut answered = by_answer.into_iter().peekable();
    let mut highest: Option<&Lease> = None;
    let mut found = Vec::new();
    for lease in by_start {
        while let Some(before) = answered.next_if(|before| before.hi < lease.lo) {
            if highest.is_none_or(|highest| highest.fence < before.fence) {
                highest = Some(before);
            }
        }
        if let Some(before) = highest
            && before.fence >= lease.fence
        {
            found.push((before, lease));
        }
    }
    for (before, lease) in found {
        let promised = court.context.promises_fencing(lease.hi);
        let what = format!("lease {} began after lease {} was answered", lease.fence, before.fence);
        court.find(rule(court), lease.hi, promised, what);
    }
}

/// Whoever looks, repeats or refreshes while a lease is there is shown its number.
fn unchanged(court: &mut Court<'_>) {
    let key = court.key;
    let mut by_time: Vec<&Lease> = key.leases.iter().collect();
    by_time.sort_unstable_by_key(|lease| lease.hi);
    let mut found = Vec::new();
    let mut current: Option<&Lease> = None;
    let mut next = by_time.into_iter().peekable();
    for operation in &key.operations {
        while let Some(lease) = next.next_if(|lease| lease.hi <= operation.sent) {
            if current.is_none_or(|current| current.sure <= lease.sure) {
                current = Some(lease);
            }
        }
        let (Some(answered), Some(lease)) = (operation.answered, current) else { continue };
        let shows = operation.kind == Kind::Look
            || operation.token == lease.token && operation.token != NO_TOKEN;
        let shows = shows && operation.kind != Kind::ForceRelease;
        let Some(said) = operation.said.fencing_token.filter(|_| shows) else { continue };
        if operation.outcome == Outcome::Yes
            && lease.covers(operation.sent, answered)
            && lease.fence != said
        {
            let is_look = operation.kind == Kind::Look;
            found.push((lease.fence, said, lease.lo, answered, is_look));
        }
    }
    for (fence, said, lo, answered, is_look) in found {
        // While a node of the lease is silent, a look on Redlock may take the vote of a rival for it.
        let may_be_a_vote = is_look && said > fence && court.context.redlock();
        let promised = !may_be_a_vote && court.context.promises_exclusion(lo, answered);
        court.find("I2", answered, promised, format!("lease {fence} was shown as lease {said}"));
    }
}

/// Returns the length of a time in whole milliseconds, for people.
pub(super) fn ms(time: Nanos) -> u64 {
    time / 1_000_000
}
