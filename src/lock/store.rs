//! The seam: what the rules of a lock need from whatever keeps the locks.

use std::collections::BTreeSet;
use std::ops::Bound;
use std::time::Duration;

use async_trait::async_trait;

use crate::lock::error::StoreError;
use crate::lock::key::LockKey;
use crate::lock::lease::{Claim, Holder, Holding, Lease, LockStatus};
use crate::lock::time::Ttl;
use crate::lock::token::{FencingToken, LeaseToken};
use crate::lock::wakeup::Wakeup;

/// Whatever keeps the locks.
///
/// Each call gives one answer, never waits for another client, has a deadline of its own, and may
/// be repeated. Only the store's clock judges that a lease is over. Dropping a call's future
/// leaves it unknown whether the call happens; [`crate::lock::locks::Locks`] never does so.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Grants the key if it is free, or again to the token that holds it already.
    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, StoreError>;

    /// Joins the line for the key, or asks again for a claim that stands in it, at the place
    /// `stood` as far as this instance knows. Idempotent by token: a claim has one place, and has
    /// it back if it was away for no longer than it keeps.
    async fn wait_turn(&self, claim: &Claim, stood: Option<u64>) -> Result<Turn, StoreError>;

    /// Takes claims of this instance out of the line; `Keep` says whether a place stays for a
    /// while. What was handed to a claim and not yet confirmed goes on to the next. A confirmed
    /// lease is left alone.
    async fn leave(&self, key: &LockKey, claims: &[(LeaseToken, Keep)]) -> Result<(), StoreError>;

    /// Listens for hints that the key was handed to a claim of this instance. To be called before
    /// asking, so that no hand-off falls between the question and the sleep.
    fn listen(&self, key: &LockKey) -> Wakeup;

    /// Makes the lease of `token` last `ttl` from now, or as long as it was last asked for.
    /// `None`: the token does not hold the key any more, or not the lease that `named` is the
    /// number of; nothing is ever re-created.
    async fn refresh(
        &self,
        key: &LockKey,
        token: &LeaseToken,
        named: Option<FencingToken>,
        ttl: Option<Ttl>,
    ) -> Result<Option<Lease>, StoreError>;

    /// Refreshes a lease for its keeper, unless its token has acquired it elsewhere since.
    async fn keep(&self, holding: &Holding, ttl: Ttl) -> Result<Kept, StoreError>;

    /// Ends the lease of a keeper, or leaves it `linger`, if nobody has renewed it since. A later
    /// lease of the same token is left alone. Atomic; needs no clean-up afterwards.
    async fn let_go(&self, holding: &Holding, linger: Option<Ttl>) -> Result<(), StoreError>;

    /// Gives up what the token has of the key: its lease or its place in line; only the lease with
    /// the number `named`, if one is named. Nobody else's lease is touched.
    async fn release(
        &self,
        key: &LockKey,
        token: &LeaseToken,
        named: Option<FencingToken>,
    ) -> Result<Released, StoreError>;

    /// Takes back what earlier calls with this token have done or may still do: once it is `Ok`,
    /// the token holds nothing and never will. May take a store's deadline longer than other
    /// calls. Only for tokens that the service made.
    async fn undo(&self, key: &LockKey, token: &LeaseToken) -> Result<(), StoreError>;

    /// Ends whoever holds the key and says whom; `None` if nobody did.
    async fn force_release(&self, key: &LockKey) -> Result<Option<Holder>, StoreError>;

    /// Looks at a key, and whether `token` holds it.
    async fn inspect(
        &self,
        key: &LockKey,
        token: Option<&LeaseToken>,
    ) -> Result<LockStatus, StoreError>;

    /// The held keys that a page asks for, in the order of their bytes. A key that is held
    /// throughout is on exactly one of the pages that follow one another.
    async fn list(&self, page: &Page) -> Result<Vec<LockStatus>, StoreError>;

    /// Whether the store has answered at least once since the start.
    fn contacted(&self) -> bool;

    /// What the store promises.
    fn guarantees(&self) -> Guarantees;
}

/// The answer to [`Store::try_acquire`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// A new lease.
    Granted(Lease),
    /// The lease that the token has already, its TTL begun anew.
    Again(Lease),
    /// Somebody else has the key.
    Held(LockStatus),
}

/// The answer to [`Store::wait_turn`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The lease: a new one, or confirmed after a hand-off.
    Granted(Lease),
    /// The lease that the token has already, its TTL begun anew.
    Again(Lease),
    /// Not yet.
    Waiting(Waiting),
    /// The claim was released, or granted and over, on another instance: it stands nowhere.
    Gone,
}

/// A claim's standing in the line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    /// Its place; places are in the order in which the store saw the claims.
    pub place: u64,
    /// How many live claims stand before it.
    pub ahead: u64,
    /// Whether the store has only now heard of it.
    pub new: bool,
    /// How long one may sleep at most before asking again.
    pub recheck_after: Duration,
    /// A claim of this instance to which the key was handed and that has not asked since; where
    /// keys are not handed on, the one whose turn it is.
    pub handed: Option<LeaseToken>,
}

/// Whether a claim that steps out of the line keeps its place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// For the time of the settings; passed over meanwhile.
    Place,
    /// Not at all.
    Nothing,
}

/// The answer to [`Store::keep`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kept {
    /// The lease, its TTL begun anew.
    Lease(Lease),
    /// The token has acquired it elsewhere, and whoever did so cares for it now.
    TakenOver,
    /// The token does not hold the key any more.
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
    /// The lease, as it was.
    Lease(Holder),
    /// A place in line.
    Place,
    /// The token had nothing of the key.
    Nothing,
}

/// A part of the list of held keys.
#[derive(Clone, Debug)]
pub struct Page {
    /// Only keys that begin with one of these.
    pub prefixes: BTreeSet<String>,
    /// Only keys whose bytes come after this.
    pub after: Option<String>,
    /// At most so many.
    pub limit: usize,
}

impl Page {
    /// Whether a key is among those that the list is about.
    pub fn covers(&self, key: &LockKey) -> bool {
        self.prefixes.iter().any(|prefix| key.as_str().starts_with(prefix))
    }

    /// The prefixes in the order of their bytes, without those that begin with another one: no key
    /// begins with two of them.
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

    /// Where the keys of a prefix begin on the page.
    pub fn range<'a>(&'a self, prefix: &'a str) -> (Bound<&'a str>, Bound<&'a str>) {
        let from = match self.after.as_deref() {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        (from, Bound::Unbounded)
    }
}

/// What a store promises, for `GET /` and for people.
#[derive(Clone, Copy, Debug)]
pub struct Guarantees {
    /// The store's name.
    pub store: &'static str,
    /// In which order those who ask for a held key get it.
    pub order: &'static str,
    /// What a fencing token is worth.
    pub fencing: &'static str,
    /// What a lease survives, and what it does not.
    pub survives: &'static str,
}
