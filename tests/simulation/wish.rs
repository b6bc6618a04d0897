//! A client's request and its outcome.

use crate::lock::key::LockKey;
use crate::lock::lease::{Claim, Lease, Origin, Receipt};
use crate::lock::store::{Condition, Target};
use crate::lock::time::Ttl;
use crate::lock::token::{FencingToken, LeaseToken};

/// A client's request, and what it has got.
#[derive(Debug)]
pub(super) struct Wish {
    pub(super) key: usize,
    pub(super) token: u64,
    pub(super) claim: Claim,
    /// The time until which the client may rely on the lock.
    pub(super) until: u64,
    pub(super) fence: u64,
    /// When it first heard of this number.
    pub(super) begun: u64,
    /// The longest TTL that it was granted for.
    pub(super) asked: Ttl,
    pub(super) lease: Option<Lease>,
    /// What granted it, if no other request of the token was made.
    pub(super) granted: Option<u64>,
    /// True if two requests of the token were made at once.
    pub(super) is_shared: bool,
    /// True once a request for it has been orphaned.
    pub(super) orphaned: bool,
}

impl Wish {
    /// Whatever its token has of its key.
    pub(super) fn everything(&self) -> Target {
        Target::of(&self.claim.key, &self.claim.token, None)
    }

    /// The lease that it knows.
    pub(super) fn by_number(&self) -> Target {
        let number = FencingToken::from_number(self.fence);
        Target::of(&self.claim.key, &self.claim.token, number)
    }

    /// Its grant, if nobody else can know of it.
    pub(super) fn unheard(&self) -> Option<Target> {
        Some(self.by_number().only(unheard(self.claim.origin, self.granted?)))
    }

    /// Takes what another request of its token has got.
    pub(super) fn takes(&mut self, same: &Self) {
        if same.until > self.until {
            (self.until, self.fence, self.lease) = (same.until, same.fence, same.lease.clone());
            self.begun = same.begun;
        }
        self.asked = self.asked.max(same.asked);
        self.granted = None;
    }

    /// A request for a key under the token of this number.
    pub(super) fn of(key: usize, token: u64, (origin, ttl): (Origin, Ttl)) -> Self {
        let secret = LeaseToken::parse(&format!("{token:032x}")).expect("a token");
        let claim = Claim {
            key: name(key),
            token: secret,
            origin,
            ttl,
            owner: None,
            slots: None,
            units: None,
            kept: false,
            named: None,
            permit: None,
        };
        let (lease, granted, is_shared) = (None, None, false);
        let (until, fence, begun, orphaned, asked) = (0, 0, 0, false, ttl);
        Self { key, token, claim, until, fence, begun, asked, lease, granted, is_shared, orphaned }
    }

    /// The outcome of a request whose instance has ended: what that has sent may still be on its
    /// way, and nobody takes its effect back.
    pub(super) fn orphaned(&mut self) -> Outcome {
        self.orphaned = true;
        Outcome::Unknown
    }
}

/// The condition on which a grant is taken back.
pub(super) fn unheard(origin: Origin, by: u64) -> Condition {
    Condition::Unheard(Receipt { origin, place: None, replaced: None, by })
}

pub(super) fn name(key: usize) -> LockKey {
    LockKey::parse(&format!("key-{key}")).expect("a key")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Granted,
    Held,
    /// Its token has the lease of this number, which the request does not repeat.
    Mine(FencingToken),
    /// Without an effect.
    Refused,
    Unknown,
}
