//! M1: of keys that only claims of several keys want, for a moment each, none is waited for in vain. It
//! would be if two claims waited for each other, or if one that has gone kept a key.

use super::{Court, SEVERAL};
use crate::check::context::{MS, SECOND};

/// A claim that waited so long and no longer may have been behind others.
const LONG: u64 = 2_500;

/// The longest lease of these keys, and a second: what a fault has left is over by then.
const AFTER: u64 = 9 * SECOND;

/// Where answers take longer, what was given up may be taken back as late.
const PROMPT: u64 = SECOND;

pub(super) fn judge(court: &mut Court<'_>) {
    let mut claims = court.operations().filter(|one| one.is_claim());
    if !claims.all(|one| one.asked.several && one.asked.slots.is_none()) {
        return;
    }
    let long = |ms: u64| ms >= LONG;
    if !court.operations().filter(|one| one.is_claim()).all(|one| long(one.asked.wait_ms)) {
        return; // A key that others want too.
    }
    for operation in court.operations() {
        let Some(answered) = operation.answered.filter(|_| operation.is_definite_no()) else {
            continue;
        };
        if operation.code != "lock_held" {
            continue;
        }
        let since = operation.sent.saturating_sub(AFTER);
        let promised = !court.context.delayed(since, answered)
            && court.context.slowest(since, answered) < PROMPT;
        let ms = (answered - operation.sent) / MS;
        let what = format!("token {} waited {ms} ms for keys that nobody kept", operation.token);
        court.find(SEVERAL, answered, promised, what);
    }
}
