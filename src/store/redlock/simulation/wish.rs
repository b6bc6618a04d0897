//! What one client wants, and what became of it.

use crate::lock::lease::Claim;

/// One client's wish, and what it has got.
pub(super) struct Wish {
    pub(super) key: usize,
    pub(super) token: u64,
    pub(super) claim: Claim,
    /// Until when it may rely on the lock.
    pub(super) until: u64,
    pub(super) fence: u64,
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
