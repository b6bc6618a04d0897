//! With how many others a lease of a shared key may share it, as far as the answers tell.
//!
//! The token of a lease may ask for other slots at any time, by the number of the lease, so all of this
//! is about a time in which one of several answers was the last one.

use crate::check::key::{Effect, Key};
use crate::check::lease::{Evidence, Lease, Share};
use crate::history::{Kind, MOST_SLOTS, Nanos, Operation, Outcome};

/// What a lease may have had in a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bounds {
    /// It allowed at least so many leases.
    pub(super) least: u16,
    /// It allowed so many leases at most.
    pub(super) most: u16,
    /// Its slot, if it certainly was this one all the time.
    pub(super) slot: Option<u16>,
}

/// Returns the shares of a lease, as their questions were sent.
pub(super) fn shares(key: &Key<'_>, lease: &Lease<'_>) -> Vec<Share> {
    let told = told(lease).map(|one| {
        let Operation { sent, ref said, .. } = *one.of;
        Share { from: sent, to: one.to, slots: one.of.told_slots(), slot: said.slot, told: true }
    });
    let perhaps = key.near(lease.token, lease.lo, lease.latest()).filter_map(|span| {
        let (to, one) = (span.until, span.of);
        let changes = one.is_claim() && one.is_unknown() && one.asked.slots.is_some();
        let meant = changes && one.asked.fencing_token == Some(lease.fence);
        let slots = one.asked_slots();
        meant.then_some(Share { from: one.sent, to, slots, slot: None, told: false })
    });
    let mut shares: Vec<_> = told.chain(perhaps).collect();
    shares.sort_by_key(|share| share.from);
    shares
}

/// Returns the answers that tell the share of a lease.
fn told<'l, 'a>(lease: &'l Lease<'a>) -> impl Iterator<Item = &'l Evidence<'a>> {
    lease.evidence.iter().filter(|one| one.of.kind != Kind::Alive)
}

/// Returns what a lease may have had in that time; nothing if no question for it was sent by then.
pub(super) fn bounds(shares: &[Share], from: Nanos, until: Nanos) -> Option<Bounds> {
    let sure = |share: &&Share| share.told && share.to <= from;
    // What was asked after an answer was received came after it.
    let replaced = shares.iter().filter(sure).map(|share| share.from).max().unwrap_or(0);
    let possible = |share: &&Share| share.from <= until && share.to > replaced;
    let mut found: Option<Bounds> = None;
    for share in shares.iter().filter(possible) {
        let bounds =
            found.get_or_insert(Bounds { least: share.slots, most: share.slots, slot: share.slot });
        bounds.least = bounds.least.min(share.slots);
        bounds.most = bounds.most.max(share.slots);
        // A lease with a slot keeps it if it gets another number of slots.
        let keeps = !share.told && (2..MOST_SLOTS).contains(&share.slots);
        if !keeps && bounds.slot != share.slot {
            bounds.slot = None;
        }
    }
    found
}

/// Returns the questions with which a token may have begun another lease in place of this one: it
/// became exclusive, or a reader came into a slot.
pub(super) fn successors<'a>(key: &Key<'a>, lease: &Lease<'_>, reach: Nanos) -> Vec<Effect<'a>> {
    let claims = key.near(lease.token, lease.lo, reach).filter(|span| span.of.is_claim());
    let claims: Vec<_> = claims.collect();
    let told = told(lease).map(|one| one.of.told_slots()).max();
    let begins = |span: &&Effect<'_>| {
        // Without its number a lease keeps its share.
        let (Some(slots), Some(_)) = (span.of.asked.slots, span.of.asked.fencing_token) else {
            return false;
        };
        let later = span.of.said.fencing_token.is_none_or(|said| said > lease.fence);
        let unknown = claims.iter().map(|other| other.of);
        let unknown = unknown.filter(|other| other.is_unknown() && other.sent <= span.until);
        let most = unknown.filter_map(|other| other.asked.slots).max().max(told);
        span.of.outcome != Outcome::No && later && most.is_some_and(|most| slots < most)
    };
    claims.iter().filter(begins).copied().collect()
}
