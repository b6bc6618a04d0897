//! The parsing of the scripts' replies.

use std::time::Duration;

use crate::lock::error::{Effect, StoreError, Verb};
use crate::lock::key::LockKey;
use crate::lock::lease::{Holder, Lease, LockStatus, Owner, Sharers, Waiter};
use crate::lock::slots::{Share, Slots};
use crate::lock::store::{Ended, Waiting};
use crate::lock::time::Ttl;
use crate::lock::token::{FencingToken, LeaseToken};
use crate::store::redis::node::failure;
use crate::store::redis::script::Reply;

/// The longest sleep of a waiter beside few others: a direct Redis client releases without a hint,
/// a hint may be lost, and a shortened lease ends sooner than told.
const ASK_EVERY: Duration = Duration::from_millis(210);

/// Added to the end of a lease, where a question would come a moment too early.
const PAST_THE_END: Duration = Duration::from_millis(2);

/// Added for instances without the head of the line, which asks first when a lease expires.
const BEHIND_THE_HEAD: Duration = Duration::from_millis(100);

/// Reads the lease whose end makes room, the number of waiters, the holders together, and a flag for a
/// token that is a holder.
pub(super) fn refusal(key: &LockKey, reply: &mut Reply) -> Option<LockStatus> {
    let holder = holder(reply)?;
    let waiters = reply.number()?;
    let sharers = sharers(reply)?;
    let mine = (reply.number()? == 1).then_some(true);
    Some(LockStatus { sharers, mine, ..status(key, Some(holder), waiters) })
}

/// Reads what a look at a key says.
pub(super) fn looked(key: &LockKey, reply: &mut Reply) -> Option<LockStatus> {
    let is_free = reply.word() == "free";
    let holder = if is_free { None } else { Some(holder(reply)?) };
    let mut status = status(key, holder, reply.number()?);
    status.mine = Some(reply.number()? == 1);
    if !is_free {
        status.sharers = sharers(reply)?;
        let leases = (0..reply.number()?).map(|_| self::holder(reply)).collect::<Option<_>>()?;
        status.sharers = status.sharers.map(|all| Sharers { leases, ..all });
    }
    status.line = line(reply);
    Some(status)
}

/// The status of a key, without those who share it.
fn status(key: &LockKey, holder: Option<Holder>, waiters: i64) -> LockStatus {
    let waiters = u64::try_from(waiters).unwrap_or_default();
    LockStatus { key: key.clone(), holder, sharers: None, waiters, line: Vec::new(), mine: None }
}

/// Reads the number of leases, their units, and the least slots; `None` in it for an exclusive lease.
fn sharers(reply: &mut Reply) -> Option<Option<Sharers>> {
    let holders = u64::try_from(reply.number()?).ok()?;
    let units = u64::try_from(reply.number()?).ok()?;
    let slots = Slots::from_number(reply.number()?.try_into().ok()?)?;
    Some((!slots.is_alone()).then(|| Sharers { holders, units, slots, leases: Vec::new() }))
}

/// Reads what a release has ended: a lease with its number, owner and share, or a place.
pub(super) fn ended(reply: &mut Reply) -> Ended {
    match reply.word() {
        "place" => Ended::Place,
        "lease" => Ended::Lease(Holder {
            fencing_token: fencing_token(reply),
            owner: owner(reply),
            share: share(reply),
            ..Holder::default()
        }),
        _ => Ended::Nothing(fencing_token(reply)),
    }
}

/// Reads the leases that a forced release has ended, in the order of their fencing tokens.
pub(super) fn forced(reply: &mut Reply) -> Vec<Holder> {
    let mut ended: Vec<_> = std::iter::from_fn(|| holder(reply)).collect();
    ended.sort_unstable_by_key(|one| one.fencing_token);
    ended
}

/// Reads the owner and the milliseconds waited of each claim in line.
fn line(reply: &mut Reply) -> Vec<Waiter> {
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
    // -1 left: a lock of a direct Redis client without a TTL.
    let lasts = left.map_or(Duration::MAX, |left| left + margin);
    Some(Waiting {
        place,
        ahead,
        new,
        recheck_after: ASK_EVERY.min(lasts),
        lasts,
        handed: LeaseToken::parse(&handed).ok(),
    })
}

/// Reads milliseconds left, fencing token, owner, milliseconds held, and the part of the key.
fn holder(reply: &mut Reply) -> Option<Holder> {
    // -1 left: a lock of a direct Redis client without a TTL.
    let left = u64::try_from(reply.number()?).ok().map(Duration::from_millis);
    Some(Holder {
        left,
        fencing_token: fencing_token(reply),
        owner: owner(reply),
        held: span(reply),
        share: share(reply),
    })
}

/// Reads slots, units and slot, where a lease shares its key.
pub(super) fn share(reply: &mut Reply) -> Share {
    let mut number = || u16::try_from(reply.number()?).ok();
    let (slots, units, slot) = (number(), number(), number());
    match (slots.and_then(|slots| Slots::from_number(slots.into())), units) {
        (Some(slots), Some(units)) => Share { slots, units, slot: slot.filter(|slot| *slot > 0) },
        _ => Share::ALONE,
    }
}

/// Reads milliseconds; `None` for a negative number.
fn span(reply: &mut Reply) -> Option<Duration> {
    Some(Duration::from_millis(reply.number()?.try_into().ok()?))
}

pub(super) fn fencing_token(reply: &mut Reply) -> Option<FencingToken> {
    FencingToken::from_number(reply.number()?.try_into().ok()?)
}

pub(super) fn ttl(reply: &mut Reply) -> Option<Ttl> {
    Some(Ttl::from_millis(reply.number()?.try_into().ok()?))
}

/// Reads TTL, owner, a flag for a TTL that was shortened, and the part of the key.
pub(super) fn refreshed(
    key: &LockKey,
    fencing_token: FencingToken,
    reply: &mut Reply,
) -> Option<Lease> {
    Some(Lease {
        ttl: ttl(reply)?,
        owner: owner(reply),
        capped: reply.number() == Some(1),
        share: share(reply),
        key: key.clone(),
        fencing_token,
    })
}

fn owner(reply: &mut Reply) -> Option<Owner> {
    Owner::parse(&reply.text()?).ok()?
}

pub(super) fn malformed(verb: Verb) -> StoreError {
    failure(verb, Effect::Unknown, "malformed answer")
}
