//! What answers say of others. I10: a refusal, or a look that says `held`, has a holder or a waiter behind it.
//! I9: a held key looks held. I5: a look counts no claim that nobody waits with.

use super::{Court, END, GHOST, REFUSAL};
use crate::check::key::in_line_until;
use crate::check::rules::waiting::{Stretch, in_line, is_held};
use crate::check::spans::{Span, Spans};
use crate::history::{Kind, Nanos, Operation, Outcome};

pub(super) fn judge(court: &mut Court<'_>, stretches: &[Stretch]) {
    let claims = court.key.operations.all().filter(|span| {
        // On Redlock a claim has votes before it has a lease.
        span.of.may_wait() || span.of.is_claim() && court.context.redlock()
    });
    let claims = claims.map(|span| Span { until: in_line_until(span), ..span });
    let claims: Spans<&Operation> = claims.collect();
    let line = in_line(court);
    for operation in court.operations() {
        let Some(answered) = operation.answered else { continue };
        let time = (operation.sent, answered);
        let refused = operation.is_claim()
            && operation.outcome == Outcome::No
            && operation.code == "lock_held"
            && operation.asked.wait_ms == 0
            && !operation.asked.several; // Another key may be the one that is held.
        let is_look = operation.kind == Kind::Look;
        if refused || is_look && operation.said.held == Some(true) {
            let since = time.0.saturating_sub(court.context.late(time.0));
            let mut others = claims.meeting(time.0, time.1);
            if !is_held(stretches, since, answered)
                && !others.any(|other| !std::ptr::eq(other.of, operation))
            {
                let told = if is_look { "a look says held" } else { "409" };
                let what = format!("{told}, and nobody holds the key or waits");
                court.find(REFUSAL, answered, true, what);
            }
        }
        if is_look && operation.said.held == Some(false) {
            looks_free(court, time);
        }
        if let Some(counted) = operation.said.waiters.filter(|_| is_look) {
            let waiting = line.meeting(time.0, time.1).count() as u64;
            if counted > waiting {
                let what = format!("a look counts {counted} waiters, and at most {waiting} wait");
                court.find(GHOST, answered, true, what);
            }
        }
    }
}

/// I9: nobody sees a free key while a lease is there.
fn looks_free(court: &mut Court<'_>, (sent, answered): (Nanos, Nanos)) {
    let Some(lease) = court.leases.during(sent, answered).next() else { return };
    let promised = court.context.promises_keeping(lease.lo, answered);
    let what = format!("lease {} is there and a look says free", lease.fence);
    court.find(END, answered, promised, what);
}
