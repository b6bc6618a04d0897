//! The seam between the rules of a lock and the store that holds the locks.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::time::Duration;

use async_trait::async_trait;

use crate::lock::error::{StoreError, Verb};
use crate::lock::key::LockKey;
use crate::lock::lease::{Claim, Holder, Lease, LockStatus, Origin, Receipt, Replaced};
use crate::lock::slots::Slots;
use crate::lock::time::Ttl;
use crate::lock::token::{FencingToken, LeaseToken};
use crate::lock::wakeup::Wakeup;

/// A store of locks: one call grants, one renews, one ends.
///
/// Each call gives one answer, never waits for another client, has its own deadline, and may be
/// repeated. Only the store's clock decides that a lease has expired. A dropped call has an unknown
/// effect; `Locks` never drops one.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Grants the key if there is room and nobody is ahead, or again to a token whose lease is what
    /// it asks for: that only extends the lease. A claim that names a lease replaces it. A claim
    /// that asks in line has one place, and gets it back while it is kept.
    async fn ask(&self, claim: &Claim, ask: Ask) -> Result<Answer, StoreError>;

    /// Makes a lease last for `ttl` from now, or for its last TTL, if that is longer than it would;
    /// [`Condition::LetGo`] says more. Never revives one. A lease that was over before the answer is
    /// told with no time left.
    async fn renew(&self, of: &Target, ttl: Option<Ttl>) -> Result<Renewed, StoreError>;

    /// Ends a lease, or gives up its token's place in line if no lease is named. Other tokens'
    /// leases stay.
    async fn end(&self, of: &Target) -> Result<Ended, StoreError>;

    /// Takes claims of this instance out of the line; `Keep` says whether a place is kept for a
    /// while. An unconfirmed hand-off goes on to the next claim. A confirmed lease stays.
    async fn leave(&self, key: &LockKey, claims: &[(LeaseToken, Keep)]) -> Result<(), StoreError>;

    /// Listens for hints that the key was handed to a claim of this instance. Call it before
    /// asking, so that no hand-off falls between question and sleep.
    fn listen(&self, key: &LockKey) -> Wakeup;

    /// Ends the leases of the key, only the one `named`, if given, and returns their holders. A store
    /// whose [`Guarantees`] say so is only called with a name.
    async fn force_release(
        &self,
        key: &LockKey,
        named: Option<FencingToken>,
    ) -> Result<Vec<Holder>, StoreError>;

    /// The status of a key with the first of its leases if it is shared, whether `token` holds it,
    /// and the first `most` claims of its line.
    async fn look(
        &self,
        key: &LockKey,
        token: Option<&LeaseToken>,
        most: usize,
    ) -> Result<LockStatus, StoreError>;

    /// The held keys of a page, in byte order, without a cursor. A key that is held throughout is on
    /// exactly one of consecutive pages, unless they are incomplete.
    async fn list(&self, page: &Page) -> Result<Listing, StoreError>;

    /// Tells whether the store could serve once since the start.
    ///
    /// # Errors
    ///
    /// One sentence says why it cannot yet.
    fn contacted(&self) -> Result<(), String>;

    /// The store's promises, and its nodes as this instance last saw them.
    fn about(&self) -> About;
}

/// The way in which a claim asks for its key, with its place in line as far as this instance knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ask {
    /// It waits no longer: it is refused unless it gets the key.
    Once(Option<u64>),
    /// It joins the line, or asks again from its place.
    InLine(Option<u64>),
}

/// The answer to a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The claim has the key.
    Won(Win),
    /// Not yet: it is in line.
    Waiting(Waiting),
    /// The key is held by another token, or by this one with a lease that the claim does not
    /// repeat. The claim is not in line.
    Held(LockStatus),
    /// The token does not have the lease that the claim names, but maybe another one.
    Lost(Option<FencingToken>),
    /// Another request of the claim waits instead, or did: the claim does not wait here any more.
    Superseded,
    /// The claim was released. An instance makes this of [`Answer::Superseded`].
    Cancelled,
}

/// A lease that a call is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The held key.
    pub key: LockKey,
    /// The holder's secret.
    pub token: LeaseToken,
    /// Only the lease of this number, if given.
    pub number: Option<FencingToken>,
    /// The condition on which the call acts.
    pub only: Condition,
}

/// The condition on which a call acts on a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// None: a client asks. It refreshes no lease that is kept.
    Any,
    /// It is kept: its keeper asks.
    Kept,
    /// It is kept, and its keeper lets it go: to renew it sets its end, earlier too, or leaves its
    /// end as it is without a TTL.
    LetGo {
        /// True for a part of its grant: its client is about to be told.
        grants: bool,
    },
    /// Its grant reached nobody, and its client was not heard of since.
    Unheard(Receipt),
    /// None, and whatever earlier calls with the token may still grant is ended too. May take a
    /// store's deadline longer than other calls. Only for tokens of the service.
    Ever,
}

impl Target {
    /// The lease of a token, only the one of this number, if given.
    pub fn of(key: &LockKey, token: &LeaseToken, number: Option<FencingToken>) -> Self {
        Self { key: key.clone(), token: token.clone(), number, only: Condition::Any }
    }

    /// A lease for its keeper.
    pub fn kept(token: &LeaseToken, lease: &Lease) -> Self {
        Self::of(&lease.key, token, Some(lease.fencing_token)).only(Condition::Kept)
    }

    /// The same lease, on another condition.
    pub fn only(&self, only: Condition) -> Self {
        Self { only, ..self.clone() }
    }

    /// The verb of a call, which is `asked` for a client.
    pub(crate) const fn verb(&self, asked: Verb) -> Verb {
        match self.only {
            Condition::Any | Condition::Ever => asked,
            Condition::Kept => Verb::Keep,
            Condition::LetGo { .. } | Condition::Unheard(_) => Verb::LetGo,
        }
    }
}

/// One of the servers that a store stands on, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeReport {
    /// Its address.
    pub node: String,
    /// Its state, in the store's word.
    pub state: &'static str,
    /// The time until it takes part again, if that is known.
    pub back_in: Option<Duration>,
}

/// The lease of a claim that has the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Win {
    /// The lease.
    pub lease: Lease,
    /// True for a new lease; false for one that the token already had.
    pub fresh: bool,
    /// The token's earlier lease, if this one has taken its place.
    pub replaces: Option<Replaced>,
    /// The place in line that the claim had.
    pub place: Option<u64>,
    /// The store's own mark of the grant.
    pub by: u64,
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

/// The answer to [`Store::renew`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Renewed {
    /// The lease.
    Lease(Lease),
    /// A stream keeps the lease of this number, and alone refreshes it.
    Kept(FencingToken),
    /// The token no longer holds the key, or by the lease of this number and not the named one.
    Lost(Option<FencingToken>),
}

impl Renewed {
    /// The lease, if it was renewed.
    pub fn lease(self) -> Option<Lease> {
        match self {
            Self::Lease(lease) => Some(lease),
            Self::Kept(_) | Self::Lost(_) => None,
        }
    }
}

/// The answer to [`Store::end`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The lease that was ended.
    Lease(Holder),
    /// A place in line.
    Place,
    /// The token had neither, or the lease of this number and not the named one, or its client was
    /// heard of.
    Nothing(Option<FencingToken>),
}

/// A page of the held keys that a caller may see.
#[derive(Debug)]
pub struct Listing {
    /// The keys in the order of their bytes, without duplicates.
    pub locks: Vec<LockStatus>,
    /// The start of the next page, if there is one.
    pub cursor: Option<String>,
    /// True if keys are left out that could not be looked at now.
    pub incomplete: bool,
}

impl Listing {
    /// All keys of a page.
    pub(crate) const fn complete(locks: Vec<LockStatus>) -> Self {
        Self { locks, cursor: None, incomplete: false }
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

/// A store, as it describes itself.
#[derive(Clone, Debug)]
pub struct About {
    /// Its promises.
    pub guarantees: Guarantees,
    /// True if other instances may use it as well.
    pub shared: bool,
    /// The servers that it stands on, as this instance last saw them, if they decide together.
    pub nodes: Vec<NodeReport>,
    /// The age of a store that is known to have begun without data, so without leases.
    pub began_empty: Option<Duration>,
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
    /// True if a forced release has to name the lease.
    pub forced_by_number: bool,
}
