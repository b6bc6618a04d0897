//! What one client wants, and what became of it.

use crate::lock::key::LockKey;
use crate::lock::lease::{Claim, Origin};
use crate::lock::time::Ttl;
use crate::lock::token::LeaseToken;

/// One client's wish, and what it has got.
pub(super) struct Wish {
    pub(super) key: usize,
    pub(super) token: u64,
    pub(super) claim: Claim,
    /// Until when it may rely on the lock.
    pub(super) until: u64,
    pub(super) fence: u64,
}

impl Wish {
    /// A wish for a key under the token of this number.
    pub(super) fn of(key: usize, token: u64, (origin, ttl): (Origin, Ttl)) -> Self {
        let secret = LeaseToken::parse(&format!("{token:032x}")).expect("a token");
        let claim = Claim { key: name(key), token: secret, origin, ttl, owner: None };
        Self { key, token, claim, until: 0, fence: 0 }
    }
}

/// The key of this number.
pub(super) fn name(key: usize) -> LockKey {
    LockKey::parse(&format!("key-{key}")).expect("a key")
}

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Granted,
    Held,
    /// Without an effect.
    Refused,
    /// Nobody knows.
    Unknown,
}
