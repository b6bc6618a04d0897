//! The share of each lease. S1 and S2: it is what was asked for. S2: a lease keeps its slot. S3: one that
//! becomes exclusive, or a reader that gets a slot, has another number. S4: what a token is refused.

use super::{CHANGE, Court, SHARE, SHARED_NUMBERS, SLOT};
use crate::check::lease::{Lease, Share};
use crate::check::share::{bounds, successors};
use crate::history::{MOST_SLOTS, Operation, Outcome, SHARED};

pub(super) fn judge(court: &mut Court<'_>) {
    let (key, leases) = (court.key, court.leases);
    for lease in &leases.all {
        let told: Vec<&Share> = lease.shares.iter().filter(|share| share.told).collect();
        let changed = told.windows(2).filter(|pair| pair[0].slots != pair[1].slots);
        court.report.count("shared_changes", changed.count());
        let mut anew = successors(key, lease, lease.latest()).into_iter();
        let anew = anew.any(|span| span.of.outcome == Outcome::Yes);
        court.report.count("shared_anew", usize::from(anew));
        within_a_lease(court, lease, &told);
    }
    for operation in court.operations() {
        as_asked(court, operation);
    }
}

/// S3: a lease that becomes exclusive, or a reader that gets a slot, has another number from then on;
/// S2: a lease keeps its slot.
fn within_a_lease(court: &mut Court<'_>, lease: &Lease<'_>, told: &[&Share]) {
    for (number, later) in told.iter().enumerate() {
        for earlier in told[..number].iter().filter(|earlier| earlier.to <= later.from) {
            let promised = court.context.promises_keeping(lease.lo, later.to);
            let (before, after) = (earlier.slots, later.slots);
            if kind(after) < kind(before) {
                let what = format!(
                    "lease {} had {before} slots and then {after} under the same number",
                    lease.fence
                );
                return court.find(SHARED_NUMBERS, later.to, promised, what);
            }
            if kind(before) == kind(after) && earlier.slot != later.slot {
                let (before, after) = (earlier.slot, later.slot);
                let what = format!("lease {} changed its slot: {before:?}, {after:?}", lease.fence);
                return court.find(SLOT, later.to, promised, what);
            }
        }
    }
}

/// Exclusive, with a slot, or a reader: a number of a lease goes up this list only.
fn kind(slots: u16) -> u16 {
    match slots {
        1 => 0,
        MOST_SLOTS => 2,
        _ => 1,
    }
}

/// S1: a grant has the slots that its question named; S2: it has a slot that fits them.
fn as_asked(court: &mut Court<'_>, operation: &Operation) {
    let (true, Outcome::Yes, Some(answered)) =
        (operation.prolongs(), operation.outcome, operation.answered)
    else {
        return;
    };
    let slots = operation.told_slots();
    // One of 1000 has a slot, and a reader, of which the same is told, has none.
    let numbered = slots != 1 && operation.asked.slots != Some(SHARED);
    let fits = match operation.said.slot {
        Some(slot) => numbered && slot > 0 && (operation.status != 201 || slot <= slots),
        None => !numbered || slots == MOST_SLOTS,
    };
    if !fits {
        let what = format!("{slots} slots, and slot {:?}", operation.said.slot);
        court.find(SLOT, answered, true, what);
    }
    if operation.asked.slots.is_none() || operation.asked_slots() == slots {
        return;
    }
    let mut near = court.key.near(operation.token, operation.sent, answered);
    // Two requests of one token that are open at once have no order.
    if !near.any(|near| near.of.is_claim() && !std::ptr::eq(near.of, operation)) {
        let asked = operation.asked_slots();
        let what = format!("{asked} slots were asked for, and {slots} were granted");
        court.find(SHARE, answered, true, what);
    }
}

/// S4: a repeat that asks for another share is told that its token has the lease, and every other repeat
/// is granted. One that names the lease is refused only what the others may not allow.
pub(super) fn refused_its_own(court: &mut Court<'_>, lease: &Lease<'_>, operation: &Operation) {
    let answered = operation.answered.unwrap_or(operation.sent);
    let Some(has) = bounds(&lease.shares, operation.sent, answered) else { return };
    let asked = operation.asked.slots.map(|_| operation.asked_slots());
    let named = operation.asked.fencing_token.is_some();
    let changes = asked.is_some_and(|asked| asked != has.least || asked != has.most);
    let may_be_refused = asked.is_some_and(|asked| asked < has.most) || changes && !named;
    let why = match (may_be_refused, operation.is_refused_change()) {
        (true, true) => return,
        (true, false) => "is not told that it has it",
        (false, _) => "is refused it",
    };
    let promised = court.context.promises_keeping(lease.lo, answered);
    let what = format!(
        "token {} has lease {} of {} slots, asks for {:?} and {why}",
        lease.token, lease.fence, has.most, operation.asked.slots
    );
    court.find(CHANGE, answered, promised, what);
}
