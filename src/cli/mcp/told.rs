//! The answer to a call, and what follows from it.

use crate::lock::key::LockKey;
use crate::lock::token::FencingToken;

/// The answer to a call.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) text: String,
    /// The keys that the call named.
    pub(super) about: Vec<LockKey>,
    /// The leases that it acquired.
    pub(super) acquired: Vec<(LockKey, FencingToken)>,
}

impl From<String> for Told {
    fn from(text: String) -> Self {
        Self { text, ..Self::default() }
    }
}
