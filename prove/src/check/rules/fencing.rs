//! I2, of shared keys S3: numbers of leases are unique, rise in time and do not change.

use super::{Court, NUMBERS, SHARED_NUMBERS};
use crate::check::lease::Lease;
use crate::history::{Kind, Operation, Outcome};

pub(super) fn judge(court: &mut Court<'_>) {
    let rule = court.either(NUMBERS, SHARED_NUMBERS);
    for &(fence, at) in &court.leases.clashes {
        let promised = court.context.promises_fencing(at);
        court.find(rule, at, promised, format!("two tokens have a lease {fence}"));
    }
    rising(court, rule);
    unchanged(court);
}

/// A lease that was answered before another one can have begun has the lower number.
fn rising(court: &mut Court<'_>, rule: &'static str) {
    let mut by_start: Vec<&Lease> = court.leases.all.iter().collect();
    let mut by_answer = by_start.clone();
    by_start.sort_unstable_by_key(|lease| lease.lo);
    by_answer.sort_unstable_by_key(|lease| lease.hi);
    let mut answered = by_answer.into_iter().peekable();
    let mut highest: Option<&Lease> = None;
    for lease in by_start {
        while let Some(before) = answered.next_if(|before| before.hi < lease.lo) {
            if highest.is_none_or(|highest| highest.fence < before.fence) {
                highest = Some(before);
            }
        }
        let Some(before) = highest.filter(|before| before.fence >= lease.fence) else { continue };
        let promised = court.context.promises_fencing(lease.hi);
        let what = format!("lease {} began after lease {} was answered", lease.fence, before.fence);
        court.find(rule, lease.hi, promised, what);
    }
}

/// A look at an exclusive key shows the number of the lease that is there.
fn unchanged(court: &mut Court<'_>) {
    let leases = court.leases;
    let is_look = |one: &&&Operation| one.kind == Kind::Look && one.outcome == Outcome::Yes;
    for look in court.key.operations.iter().filter(|_| !court.key.shared).filter(is_look) {
        let (Some(answered), Some(said)) = (look.answered, look.said.fencing_token) else {
            continue;
        };
        let lease = leases.during(look.sent, answered).filter(|lease| lease.fence != said);
        let Some(lease) = lease else { continue };
        // While a node of the lease is silent, a look on Redlock may take the vote of a rival for it.
        let may_be_a_vote = said > lease.fence && court.context.redlock();
        let promised = !may_be_a_vote && court.context.promises_exclusion(lease.lo, answered);
        let what = format!("lease {} was shown as lease {said}", lease.fence);
        court.find(NUMBERS, answered, promised, what);
    }
}
