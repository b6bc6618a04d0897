//! I2, of shared keys S3: numbers of leases are unique, rise in time and do not change.

use super::{Court, NUMBERS, SHARED_NUMBERS};
use crate::check::lease::Lease;
use crate::history::{Kind, Outcome};

pub(super) fn judge(court: &mut Court<'_>) {
    let rule = court.either(NUMBERS, SHARED_NUMBERS);
    let leases = &court.leases.all;
    for pair in leases.windows(2).filter(|pair| pair[0].fence == pair[1].fence) {
        let promised = court.context.promises_fencing(pair[1].hi);
        let what = format!("two tokens have a lease {}", pair[1].fence);
        court.find(rule, pair[1].hi, promised, what);
    }
    for (lease, above) in court.leases.followed().filter(|(lease, above)| above.hi < lease.lo) {
        let promised = court.context.promises_fencing(lease.hi);
        let what = format!("lease {} began after lease {} was answered", lease.fence, above.fence);
        court.find(rule, lease.hi, promised, what);
    }
    shown(court, rule);
}

/// A token is shown the number of its lease, and a look at an exclusive key that of the lease that is
/// there.
fn shown(court: &mut Court<'_>, rule: &'static str) {
    for one in court.operations() {
        let (Some(answered), said) = (one.answered, one.said.fencing_token) else { continue };
        // A request that names another lease is told which one its token has.
        if said.is_none() && !(one.is_lost() && one.asked.fencing_token.is_some()) {
            continue;
        }
        let (looks, mine) = (one.kind == Kind::Look, one.said.mine == Some(true));
        let meant = |lease: &&Lease<'_>| {
            let tells = one.outcome == Outcome::Yes && one.prolongs() || one.is_lost() || mine;
            lease.token == one.token && tells || looks && !court.key.shared
        };
        let mut leases = court.leases.during(one.sent, answered).filter(meant);
        let Some(lease) = leases.next().filter(|lease| Some(lease.fence) != said) else { continue };
        // While a node of the lease is silent, a look on Redlock may take the vote of a rival for it.
        let may_be_a_vote = looks && !mine && said > Some(lease.fence) && court.context.redlock();
        // What Redlock's nodes lost is not granted to others, but it is gone.
        let may_be_gone = said.is_none() && !court.context.promises_keeping(lease.lo, answered);
        // With a node of Redlock out of reach no majority may have been seen to have a lease.
        let unsure = court.context.redlock() && court.context.loses_answers(lease.lo, answered);
        let may_be = may_be_a_vote || may_be_gone || said.is_none() && unsure;
        let promised = !may_be && court.context.promises_exclusion(lease.lo, answered);
        let what = format!("lease {} was shown as {said:?}", lease.fence);
        court.find(rule, answered, promised, what);
    }
}
