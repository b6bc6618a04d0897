//! A client's request and its outcome.

use crate::lock::key::LockKey;
use crate::lock::lease::{Claim, Origin};
use crate::lock::store::Target;
use crate::lock::time::Ttl;
use crate::lock::token::LeaseToken;

/// A client's request, and what it has got.
pub(super) struct Wish {
    pub(super) key: usize,
    pub(super) token: u64,
    pub(super) claim: Claim,
    /// The time until which the client may rely on the lock.
    pub(super) until: u64,
    pub(super) fence: u64,
    /// True once a request for it has been orphaned.
    pub(super) orphaned: bool,
}

impl Wish {
    /// Whatever its token has of its key.
    pub(super) fn everything(&self) -> Target {
        Target::of(&self.claim.key, &self.claim.token, None)
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
            named: None,
            permit: None,
        };
        Self { key, token, claim, until: 0, fence: 0, orphaned: false }
    }

    /// The outcome of a request whose instance has ended: what that has sent may still be on its
    /// way, and nobody takes its effect back.
    pub(super) fn orphaned(&mut self) -> Outcome {
        self.orphaned = true;
        Outcome::Unknown
    }
}

pub(super) fn name(key: usize) -> LockKey {
    LockKey::parse(&format!("key-{key}")).expect("a key")
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Granted,
    Held,
    /// Without an effect.
    Refused,
    Unknown,
}
