//! What a token is told. I6: a release needs a lease. I8 and I9: a token is not refused its own lease.
//! A definite no is one. I12: nothing without the right.

use std::collections::HashMap;

use super::{CHANGE, Court, DEFINITE, END, RELEASE, REPEAT, RIGHTS};
use crate::check::context::{Context, MS, PLACE_KEPT, ROLLED_BACK};
use crate::check::key::in_line_until;
use crate::check::lease::Lease;
use crate::history::{Kind, Nanos, Operation, Outcome, Token};

pub(super) fn judge(court: &mut Court<'_>) {
    let (key, leases) = (court.key, court.leases);
    let mut of_token: HashMap<Token, Vec<&Lease<'_>>> = HashMap::new();
    for lease in &leases.all {
        of_token.entry(lease.token).or_default().push(lease);
    }
    for (token, spans) in &key.tokens {
        let own = of_token.remove(token).unwrap_or_default();
        // The last definite no.
        let mut no: Option<&Operation> = None;
        for operation in spans.all().map(|span| span.of) {
            let Some(answered) = operation.answered else { continue };
            if operation.is_release() {
                released(court, &own, operation);
            }
            if operation.is_lost() || operation.is_definite_no() || operation.is_mine() {
                refused(court, during(&own, operation.sent, answered), operation);
            }
            if let Some(no) = no.filter(|no| no.answered < Some(operation.sent)) {
                after_no(court, no, operation);
            }
            says_mine(court, &own, operation);
            if operation.is_definite_no() && no.is_none_or(|no| no.answered < operation.answered) {
                no = Some(operation);
            }
        }
    }
    for operation in court.operations() {
        secrets(court, operation);
    }
}

/// Returns the latest lease of one token that existed all through that time.
fn during<'l>(own: &[&'l Lease<'l>], from: Nanos, until: Nanos) -> Option<&'l Lease<'l>> {
    own.iter().rev().copied().find(|lease| lease.covers(from, until))
}

/// Returns whether one token may have had a lease at some time between these, of that number if given.
fn perhaps(
    context: &Context<'_>,
    own: &[&Lease<'_>],
    (from, until): (Nanos, Nanos),
    fence: Option<u64>,
) -> bool {
    // The allowance is for leases that end by themselves.
    let since = from.saturating_sub(context.late(from));
    own.iter().any(|lease| {
        let meant = fence.is_none_or(|fence| lease.fence == fence);
        meant && lease.lo <= until && lease.over >= from && lease.by_ttl >= since
    })
}

/// I6: a release that went well has released something.
fn released(court: &mut Court<'_>, own: &[&Lease<'_>], release: &Operation) {
    let (key, sent) = (court.key, release.sent);
    let answered = release.answered.unwrap_or(sent);
    let fence = release.asked.fencing_token;
    if let Some(lease) = during(own, sent, answered)
        && let Some(named) = fence
        && lease.fence != named
    {
        let promised = court.context.promises_keeping(lease.lo, answered);
        let what = format!("a release of lease {named} went well during lease {}", lease.fence);
        return court.find(RELEASE, answered, promised, what);
    }
    let (token, time) = (release.token, (sent, answered));
    let alive = perhaps(court.context, own, time, fence);
    if alive || waits(court, token, time) || unknown_lease(court, token, time) {
        return;
    }
    let never = own.is_empty() && key.near(token, 0, answered).count() <= 1;
    let had = if never { "never had anything" } else { "had nothing any more" };
    // A store that was set back may have an earlier lease again.
    let lost = own.iter().filter(|lease| lease.lo <= sent).map(|lease| lease.latest()).min();
    let promised = court.context.promises_loss(lost.unwrap_or(sent).min(sent), answered);
    let what = format!("token {token} released the key and {had}");
    court.find(RELEASE, answered, promised, what);
}

/// I8 and I9: whoever holds the key is not told that it does not.
fn refused(court: &mut Court<'_>, own: Option<&Lease<'_>>, operation: &Operation) {
    let Some(lease) = own.filter(|lease| !operation.means_another(lease.fence)) else { return };
    let answered = operation.answered.unwrap_or(operation.sent);
    let (token, code) = (lease.token, &operation.code);
    if operation.code == "lock_held" {
        // `holders` judges those who name it.
        let told = operation.replaces().is_some()
            || operation.is_mine() && operation.said.fencing_token.is_some();
        let repeats = operation.kind == Kind::Acquire
            && operation.asked.slots.is_none_or(|_| operation.asked_slots() == lease.slots)
            && operation.asked.units.is_none_or(|units| units == lease.units);
        let repeats = repeats && operation.asked.fencing_token.is_none();
        let is_plain = lease.plain_since() < operation.sent;
        if told && !(is_plain && (repeats || operation.kind == Kind::Refresh)) {
            return;
        }
    }
    let promised = court.context.promises_keeping(lease.lo, answered);
    let what = format!("token {token} holds lease {} and was told {code}", lease.fence);
    court.find(if operation.is_claim() { REPEAT } else { END }, answered, promised, what);
}

/// I9 and I12: a look with a token tells whether it holds the key, and so does a refusal.
fn says_mine(court: &mut Court<'_>, own: &[&Lease<'_>], operation: &Operation) {
    let (Some(mine), Some(answered)) = (operation.said.mine, operation.answered) else { return };
    let (token, sent) = (operation.token, operation.sent);
    let held = during(own, sent, answered);
    if let Some(lease) = held.filter(|_| !mine && operation.kind == Kind::Look) {
        let promised = court.context.promises_keeping(lease.lo, answered);
        let what = format!("token {token} holds lease {} and sees another one", lease.fence);
        court.find(END, answered, promised, what);
    }
    let (time, claims) = ((sent, answered), operation.is_claim());
    if mine
        && !perhaps(court.context, own, time, None)
        && !unknown_lease(court, token, time)
        && (claims || !waits(court, token, time))
    {
        // An old copy of the data brings leases back, for what was left of them.
        let before = sent.saturating_sub(ROLLED_BACK);
        let promised = court.context.promises_loss(before, answered);
        let what = format!("token {token} has nothing, and is told that it holds the key");
        court.find(if claims { CHANGE } else { RIGHTS }, answered, promised, what);
    }
}

/// Returns whether a question of a token may have brought it a lease or a place that it has in that time.
fn waits(court: &Court<'_>, token: Token, (from, until): (Nanos, Nanos)) -> bool {
    let mut near = court.key.near(token, from.saturating_sub(PLACE_KEPT), until);
    near.any(|span| match span.of.outcome {
        Outcome::Yes => span.of.is_claim() && span.until >= from,
        _ => span.of.may_wait() && in_line_until(span) >= from,
    })
}

/// Returns whether a question of a token that came to an unknown end may have brought it a lease.
fn unknown_lease(court: &Court<'_>, token: Token, (from, until): (Nanos, Nanos)) -> bool {
    // Leases of which nobody was told last as long as was asked for, a day at most.
    court
        .key
        .near(token, 0, until)
        .any(|span| span.of.is_unknown() && span.of.prolongs() && court.perhaps(span).until >= from)
}

/// After a definite no its token has nothing, unless another question with it was under way.
fn after_no(court: &mut Court<'_>, no: &Operation, operation: &Operation) {
    let has = match operation.kind {
        Kind::Look => operation.said.mine == Some(true),
        Kind::Refresh => operation.outcome == Outcome::Yes,
        // An event of a stream may have been kept back until after the no.
        _ => false,
    };
    let Some(answered) = operation.answered.filter(|_| has) else { return };
    let mut others = court.key.near(no.token, no.sent, answered).map(|near| near.of);
    if others.any(|other| other.is_claim() && !std::ptr::eq(other, no)) {
        return;
    }
    let no_at = no.answered.unwrap_or(no.sent);
    let promised = court.context.promises_loss(no.sent, answered);
    let what = format!(
        "token {} was told {} and held the key {} ms later",
        no.token,
        no.code,
        (operation.sent - no_at) / MS
    );
    court.find(DEFINITE, answered, promised, what);
}

/// I12: whoever has no right gets nothing, and no answer shows another's token.
fn secrets(court: &mut Court<'_>, operation: &Operation) {
    let at = operation.answered.unwrap_or(operation.sent);
    if operation.asked.unauthorized && operation.outcome == Outcome::Yes {
        let what = format!("{:?} went well without the right API key", operation.kind);
        court.find(RIGHTS, at, true, what);
    }
    if operation.said.leaked {
        let what = format!("an answer to {:?} showed another's token", operation.kind);
        court.find(RIGHTS, at, true, what);
    }
}
