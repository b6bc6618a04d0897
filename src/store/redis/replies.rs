//! The parsing of the scripts' replies.

use std::time::Duration;

use crate::lock::error::{Effect, StoreError, Verb};
use crate::lock::key::LockKey;
use crate::lock::lease::{Holder, Lease, LockStatus, Owner, Renewals, Waiter};
use crate::lock::slots::Share;
use crate::lock::store::Waiting;
use crate::lock::time::Ttl;
use crate::lock::token::{FencingToken, LeaseToken};
use crate::store::redis::node::failure;
use crate::store::redis::script::Reply;

/// The longest sleep of a waiter: a direct Redis client releases without a hint, a hint may be
/// lost, and a shortened lease ends sooner than told.
const ASK_EVERY: Duration = Duration::from_millis(210);

/// Added to the end of a lease, where a question would come a moment too early.
const PAST_THE_END: Duration = Duration::from_millis(2);

/// Added for instances without the head of the line, which asks first when a lease expires.
const BEHIND_THE_HEAD: Duration = Duration::from_millis(100);

pub(super) fn status(key: &LockKey, holder: Option<Holder>, waiters: i64) -> LockStatus {
    let waiters = u64::try_from(waiters).unwrap_or_default();
    LockStatus { key: key.clone(), holder, sharers: None, waiters, line: Vec::new(), mine: None }
}

/// Reads the owner and the milliseconds waited of each claim in line.
pub(super) fn line(reply: &mut Reply) -> Vec<Waiter> {
    let mut line = Vec::new();
    while let Some(text) = reply.text() {
        let owner = Owner::parse(&text).ok().flatten();
        line.push(Waiter { owner, waited: span(reply) });
    }
    line
}

/// Reads the place, a flag for a new claim, milliseconds left, the claims ahead, the handed token,
/// and a flag for a head of this instance.
pub(super) fn waiting(reply: &mut Reply) -> Option<Waiting> {
    let place = u64::try_from(reply.number()?).ok()?;
    let new = reply.number()? == 1;
    let left = u64::try_from(reply.number()?).ok().map(Duration::from_millis);
    let ahead = u64::try_from(reply.number()?).ok()?;
    let handed = reply.text()?;
    let margin = if reply.number()? == 1 { PAST_THE_END } else { BEHIND_THE_HEAD };
    let recheck_after = ASK_EVERY.min(left.unwrap_or(ASK_EVERY) + margin);
    Some(Waiting { place, ahead, new, recheck_after, handed: LeaseToken::parse(&handed).ok() })
}

/// Reads milliseconds left, fencing token, owner and milliseconds held.
pub(super) fn holder(reply: &mut Reply) -> Option<Holder> {
    // -1 left: a lock of a direct Redis client without a TTL.
    let left = u64::try_from(reply.number()?).ok().map(Duration::from_millis);
    let (fencing_token, owner) = (fencing_token(reply), owner(reply));
    Some(Holder { left, fencing_token, owner, held: span(reply), share: Share::ALONE })
}

/// Reads milliseconds; `None` for a negative number.
fn span(reply: &mut Reply) -> Option<Duration> {
    Some(Duration::from_millis(reply.number()?.try_into().ok()?))
}

pub(super) fn fencing_token(reply: &mut Reply) -> Option<FencingToken> {
    FencingToken::from_number(reply.number()?.try_into().ok()?)
}

pub(super) fn renewals(reply: &mut Reply) -> Option<Renewals> {
    Some(Renewals::from_number(reply.number()?.try_into().ok()?))
}

pub(super) fn ttl(reply: &mut Reply) -> Option<Ttl> {
    Some(Ttl::from_millis(reply.number()?.try_into().ok()?))
}

/// Reads TTL, owner, renewals, and a flag for a TTL that was shortened.
pub(super) fn refreshed(
    key: &LockKey,
    fencing_token: FencingToken,
    reply: &mut Reply,
) -> Option<Lease> {
    let (ttl, owner) = (ttl(reply)?, owner(reply));
    let (key, renewals) = (key.clone(), renewals(reply)?);
    let (capped, share) = (reply.number() == Some(1), Share::ALONE);
    Some(Lease { key, owner, fencing_token, ttl, renewals, capped, share })
}

pub(super) fn owner(reply: &mut Reply) -> Option<Owner> {
    Owner::parse(&reply.text()?).ok()?
}

pub(super) fn malformed(verb: Verb) -> StoreError {
    failure(verb, Effect::Unknown, "malformed answer")
}
