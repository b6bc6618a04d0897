//! What the scripts' replies mean.

use std::time::Duration;

use crate::lock::error::{Effect, StoreError, Verb};
use crate::lock::key::LockKey;
use crate::lock::lease::{Holder, Lease, LockStatus, Owner, Renewals};
use crate::lock::store::Waiting;
use crate::lock::time::Ttl;
use crate::lock::token::{FencingToken, LeaseToken};
use crate::store::redis::node::failure;
use crate::store::redis::script::Reply;

/// How long a waiter sleeps at most: a client on Redis releases without telling, and a hint may
/// be lost. A lease that was shortened ends sooner than it was told, too.
const ASK_EVERY: Duration = Duration::from_millis(210);

/// A question at the very end of a lease would come a moment too early.
const PAST_THE_END: Duration = Duration::from_millis(2);

/// The instance with the head asks first when a lease runs out; the others a little later.
const BEHIND_THE_HEAD: Duration = Duration::from_millis(100);

pub(super) fn status(key: &LockKey, holder: Option<Holder>, waiters: i64) -> LockStatus {
    let waiters = u64::try_from(waiters).unwrap_or_default();
    LockStatus { key: key.clone(), holder, waiters, mine: None }
}

/// Reads place, whether it is new, milliseconds left, who is ahead, the handed token, and whether
/// the head is of this instance.
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

/// Reads milliseconds left, fencing token and owner.
pub(super) fn holder(reply: &mut Reply) -> Option<Holder> {
    // A lock without an end, of a client on Redis, has -1 left.
    let left = u64::try_from(reply.number()?).ok().map(Duration::from_millis);
    Some(Holder { left, fencing_token: fencing_token(reply), owner: owner(reply) })
}

pub(super) fn fencing_token(reply: &mut Reply) -> Option<FencingToken> {
    FencingToken::from_number(reply.number()?.try_into().ok()?)
}

pub(super) fn renewals(reply: &mut Reply) -> Option<Renewals> {
    Some(Renewals::from_number(reply.number()?.try_into().ok()?))
}

/// Reads TTL, owner and renewals.
pub(super) fn refreshed(
    key: &LockKey,
    fencing_token: FencingToken,
    reply: &mut Reply,
) -> Option<Lease> {
    let ttl = Ttl::from_millis(reply.number()?.try_into().ok()?);
    let owner = owner(reply);
    Some(Lease { key: key.clone(), owner, fencing_token, ttl, renewals: renewals(reply)? })
}

pub(super) fn owner(reply: &mut Reply) -> Option<Owner> {
    Owner::parse(&reply.text()?).ok()?
}

pub(super) fn malformed(verb: Verb) -> StoreError {
    failure(verb, Effect::Unknown, "an answer of unknown form")
}
