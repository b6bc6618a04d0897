//! The seam between the rules of a lock and the store that holds the locks.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::time::Duration;

use async_trait::async_trait;

use crate::lock::error::StoreError;
use crate::lock::key::LockKey;
use crate::lock::lease::{Claim, Holder, Holding, Lease, LockStatus, Origin, Receipt};
use crate::lock::slots::Slots;
use crate::lock::time::Ttl;
use crate::lock::token::{FencingToken, LeaseToken};
use crate::lock::wakeup::Wakeup;

/// A store of locks.
///
/// Each call gives one answer, never waits for another client, has its own deadline, and may be
/// repeated. Only the store's clock decides that a lease has expired. A dropped call has an unknown
/// effect; `Locks` never drops one.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Grants the key if it is free, or again to the token that already holds it. That never shortens
    /// the lease, and changes its share only if the claim names it.
    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, StoreError>;

    /// Joins the line for the key, or asks again for a claim in line, at the place `stood` as far
    /// as this instance knows. Idempotent by token: a claim has one place, and gets it back while
    /// it is kept.
    async fn wait_turn(&self, claim: &Claim, stood: Option<u64>) -> Result<Turn, StoreError>;

    /// The last question for a claim at the place `stood`, as far as this instance knows: as
    /// [`Self::try_acquire`]. `None` if the claim was released, or its grant has ended, on another
    /// instance.
    async fn ask_last(
        &self,
        claim: &Claim,
        _stood: Option<u64>,
    ) -> Result<Option<Attempt>, StoreError> {
        self.try_acquire(claim).await.map(Some)
    }

    /// Takes claims of this instance out of the line; `Keep` says whether a place is kept for a
    /// while. An unconfirmed hand-off goes on to the next claim. A confirmed lease stays.
    async fn leave(&self, key: &LockKey, claims: &[(LeaseToken, Keep)]) -> Result<(), StoreError>;

    /// Listens for hints that the key was handed to a claim of this instance. Call it before
    /// asking, so that no hand-off falls between question and sleep.
    fn listen(&self, key: &LockKey) -> Wakeup;

    /// Makes the lease of `token` last for `ttl` from now, or for its last TTL, if that is longer
    /// than it would; the lease `named`, if given, also if it is shorter. Returns `None` if the
    /// token does not hold the key, or not by the lease `named`. Never re-creates a lease.
    async fn refresh(
        &self,
        key: &LockKey,
        token: &LeaseToken,
        named: Option<FencingToken>,
        ttl: Option<Ttl>,
    ) -> Result<Option<Lease>, StoreError>;

    /// Extends a lease for its keeper, unless its token has acquired it elsewhere since.
    async fn keep(&self, holding: &Holding, ttl: Ttl) -> Result<Kept, StoreError>;

    /// Ends the lease of a keeper, or sets its TTL to `linger`, unless it was renewed since. A
    /// later lease of the same token stays. Atomic; needs no clean-up afterwards.
    async fn let_go(&self, holding: &Holding, linger: Option<Ttl>) -> Result<(), StoreError>;

    /// Ends the token's lease of the key, or gives up its place in line; only the lease `named`, if
    /// given. Other tokens' leases stay.
    async fn release(
        &self,
        key: &LockKey,
        token: &LeaseToken,
        named: Option<FencingToken>,
    ) -> Result<Released, StoreError>;

    /// Undoes what earlier calls with this token did or may still do: after `Ok`, the token never
    /// holds anything. May take a store's deadline longer than other calls. Only for tokens of the
    /// service.
    async fn undo(&self, key: &LockKey, token: &LeaseToken) -> Result<(), StoreError>;

    /// Ends a lease whose grant reached no client, unless it was renewed since, and gives its claim
    /// its place in line back. Acts only on the node that granted it.
    async fn take_back(&self, receipt: &Receipt) -> Result<(), StoreError>;

    /// Ends the leases of the key, only the one `named`, if given, and returns their holders.
    async fn force_release(
        &self,
        key: &LockKey,
        named: Option<FencingToken>,
    ) -> Result<Vec<Holder>, StoreError>;

    /// The status of a key with the first of its leases if it is shared, whether `token` holds it,
    /// and the first `most` claims of its line.
    async fn inspect_line(
        &self,
        key: &LockKey,
        token: Option<&LeaseToken>,
        most: usize,
    ) -> Result<LockStatus, StoreError>;

    /// The status of a key without its line.
    async fn inspect(
        &self,
        key: &LockKey,
        token: Option<&LeaseToken>,
    ) -> Result<LockStatus, StoreError> {
        self.inspect_line(key, token, 0).await
    }

    /// The held keys of a page, in byte order. A key that is held throughout is on exactly one of
    /// consecutive pages.
    async fn list(&self, page: &Page) -> Result<Vec<LockStatus>, StoreError>;

    /// Waits for what calls that were answered have left to do, if it ends soon. Called before the
    /// end.
    async fn finish(&self) {}

    /// Returns true once the store has answered since the start.
    fn contacted(&self) -> bool;

    /// The store's promises.
    fn guarantees(&self) -> Guarantees;

    /// Returns true if other instances may use the store as well.
    fn shared(&self) -> bool {
        true
    }

    /// The nodes whose votes decide, as this instance last saw them; empty if no votes are counted.
    fn nodes(&self) -> Vec<NodeReport> {
        Vec::new()
    }
}

/// A node of a store that counts votes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeReport {
    /// Its address.
    pub node: String,
    /// Its vote.
    pub votes: Votes,
}

/// The vote of a node, at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Votes {
    /// It votes.
    Now,
    /// It may have forgotten leases, and votes after this time.
    In(Duration),
    /// It serves instances with other settings.
    ForOthers,
    /// It did not answer.
    Unreachable,
}

/// The answer to [`Store::try_acquire`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// The claim has the key.
    Won(Win),
    /// The key is held by another token, or by this one with another share.
    Held(LockStatus),
    /// The token does not have the lease that the claim names.
    Lost,
}

/// The answer to [`Store::wait_turn`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The claim has the key.
    Won(Win),
    /// Not yet.
    Waiting(Waiting),
    /// The token has a lease with another share. The claim is not in line.
    Held(LockStatus),
    /// The claim was released, or its grant has ended, on another instance: it is not in line.
    Gone,
}

/// The lease of a claim that has the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Win {
    /// The lease.
    pub lease: Lease,
    /// True for a new lease; false for one that the token already had.
    pub fresh: bool,
    /// The number of the token's earlier lease, if this one takes its place.
    pub replaces: Option<FencingToken>,
    /// The place in line that the claim had.
    pub place: Option<u64>,
    /// The node that granted it, by the store's own number.
    pub node: u64,
}

/// A claim's standing in the line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Its place. Places rise in the order in which the store saw the claims.
    pub place: u64,
    /// The number of live claims ahead of it.
    pub ahead: u64,
    /// True if the store did not know the claim before.
    pub new: bool,
    /// The longest sleep before asking again.
    pub recheck_after: Duration,
    /// The time until the key is free unless somebody gives it up: an instance with many lines may
    /// ask later than `recheck_after` within it. Zero if questions cost too little for that.
    pub lasts: Duration,
    /// A claim of this instance that was handed the key and has not asked since; in a store without
    /// hand-offs, the claim whose turn it is.
    pub handed: Option<LeaseToken>,
}

/// The fate of a claim's place when the claim leaves the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// Kept for the configured time; passed over meanwhile.
    Place,
    /// Given up.
    Nothing,
}

impl Keep {
    /// A client may be back with its token; nobody else has one of the service.
    pub(crate) const fn of(origin: Origin) -> Self {
        match origin {
            Origin::Client => Self::Place,
            Origin::Service => Self::Nothing,
        }
    }
}

/// The answer to [`Store::keep`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kept {
    /// The lease.
    Lease(Lease),
    /// The token has acquired it elsewhere, and another request keeps it now.
    TakenOver,
    /// The token no longer holds the key.
    Lost,
}

impl Kept {
    /// The lease, if it was kept.
    pub fn lease(self) -> Option<Lease> {
        match self {
            Self::Lease(lease) => Some(lease),
            Self::TakenOver | Self::Lost => None,
        }
    }
}

/// The answer to [`Store::release`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Released {
    /// The lease that was ended.
    Lease(Holder),
    /// A place in line.
    Place,
    /// The token had neither.
    Nothing,
}

/// A page of the held keys that a caller may see.
#[derive(Debug)]
pub struct Listing {
    /// The keys in the order of their bytes, without duplicates.
    pub locks: Vec<LockStatus>,
    /// The start of the next page, if there is one.
    pub cursor: Option<String>,
}

impl Listing {
    /// The first `limit` of these keys, which are all or at least one more.
    pub(crate) fn of(mut locks: Vec<LockStatus>, limit: usize) -> Self {
        let more = locks.len() > limit;
        locks.truncate(limit);
        let cursor = locks.last().filter(|_| more).map(|last| last.key.to_string());
        Self { locks, cursor }
    }
}

/// A page of the list of held keys.
#[derive(Clone, Debug)]
pub struct Page {
    /// Only keys that begin with one of these prefixes.
    pub prefixes: BTreeSet<String>,
    /// Only keys whose bytes come after this.
    pub after: Option<String>,
    /// The most keys to return.
    pub limit: usize,
}

impl Page {
    /// Returns true if a key has one of the prefixes.
    pub fn covers(&self, key: &LockKey) -> bool {
        self.prefixes.iter().any(|prefix| key.as_str().starts_with(prefix))
    }

    /// The prefixes in the order of their bytes, without those that begin with another one, so that
    /// no key matches two.
    pub fn widest_prefixes(&self) -> Vec<&str> {
        let mut widest: Vec<&str> = Vec::new();
        for prefix in &self.prefixes {
            // A prefix comes right before all that begin with it.
            if widest.last().is_none_or(|last| !prefix.starts_with(last)) {
                widest.push(prefix);
            }
        }
        widest
    }

    /// The range of keys in which the keys of a prefix begin on the page.
    pub fn range<'a>(&'a self, prefix: &'a str) -> (Bound<&'a str>, Bound<&'a str>) {
        let from = match self.after.as_deref() {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        (from, Bound::Unbounded)
    }
}

/// The promises of a store, for `GET /` and for readers.
#[derive(Clone, Copy, Debug)]
pub struct Guarantees {
    /// The store's name.
    pub store: &'static str,
    /// The order in which waiting claims get a key.
    pub order: &'static str,
    /// The promise of its fencing tokens.
    pub fencing: &'static str,
    /// The failures that a lease survives, and those that it does not.
    pub survives: &'static str,
    /// The sharing of keys that it offers.
    pub sharing: &'static str,
    /// The most holders of a key.
    pub most_slots: Slots,
}
