//! The nouns that pass between a client's wish and a store's answer.

use std::fmt;
use std::time::Duration;

use crate::lock::key::LockKey;
use crate::lock::time::Ttl;
use crate::lock::token::{FencingToken, LeaseToken};

/// Who asks, for people to read: up to 256 bytes without control characters. Proves nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner(String);

impl Owner {
    /// The longest, in bytes: room for a host, a process and a command.
    const MAX_BYTES: usize = 256;

    /// Parses an owner; an empty text is nobody.
    ///
    /// # Errors
    ///
    /// [`InvalidOwner`] if it is too long or holds a control character.
    pub fn parse(text: &str) -> Result<Option<Self>, InvalidOwner> {
        if text.len() > Self::MAX_BYTES || text.chars().any(char::is_control) {
            return Err(InvalidOwner);
        }
        Ok((!text.is_empty()).then(|| Self(text.to_owned())))
    }

    /// The owner as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A text that is no owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an owner has at most {} bytes and no control characters", Owner::MAX_BYTES)]
pub struct InvalidOwner;

/// One caller's wish to have a key.
#[derive(Clone, Debug)]
pub struct Claim {
    /// What is to be locked.
    pub key: LockKey,
    /// The secret under which it will be held.
    pub token: LeaseToken,
    /// Who made that secret, and so who may take a grant back.
    pub origin: Origin,
    /// How long the lease is to last.
    pub ttl: Ttl,
    /// Who asks.
    pub owner: Option<Owner>,
}

/// Who made a claim's token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The client, who may repeat the request with it at any moment, here or elsewhere: only the
    /// client's release or the TTL ends such a lease.
    Client,
    /// The service, for this request alone: nobody knows it until the request is answered, and
    /// the service takes the grant back if it never is.
    Service,
}

/// The right to a key for a limited time, as the public may know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// What is held.
    pub key: LockKey,
    /// Who holds it, if they said so.
    pub owner: Option<Owner>,
    /// The number of this lease.
    pub fencing_token: FencingToken,
    /// How long it lasts from the moment of the grant or refresh.
    pub ttl: Ttl,
    /// How often others than its keeper have renewed it since the grant.
    pub renewals: Renewals,
}

/// How often a lease was refreshed by its client, and how often its token acquired it again. The
/// keeper of a lease can tell from it whether somebody else has renewed the lease meanwhile; its
/// own refreshes do not count, so one whose answer was lost changes nothing. It restarts with each
/// lease, so it names a lease only beside the fencing token.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Renewals(u64);

impl Renewals {
    /// What taking over adds: more than any lease is refreshed.
    const TAKE_OVER: u64 = 1 << 20;

    /// As the store keeps it.
    pub const fn from_number(number: u64) -> Self {
        Self(number)
    }

    /// As the store keeps it.
    pub const fn number(self) -> u64 {
        self.0
    }

    /// After one more refresh by the client.
    pub const fn refreshed(self) -> Self {
        Self(self.0 + 1)
    }

    /// After the token has acquired the lease once more.
    pub const fn taken_over(self) -> Self {
        Self(self.0 + Self::TAKE_OVER)
    }

    /// Whether nobody has taken over between the two.
    pub const fn same_care(self, other: Self) -> bool {
        self.0 / Self::TAKE_OVER == other.0 / Self::TAKE_OVER
    }
}

/// A lease as its keeper knows it.
#[derive(Clone, Debug)]
pub struct Holding {
    /// What is held.
    pub key: LockKey,
    /// The holder's secret.
    pub token: LeaseToken,
    /// The number of the lease: a later lease of the same token is none of its keeper's.
    pub fencing_token: FencingToken,
    /// How often it had been renewed when its keeper last refreshed it.
    pub renewals: Renewals,
}

/// What the winner receives: the lease and the secret that proves it.
#[derive(Clone, Debug)]
pub struct Grant {
    /// The lease.
    pub lease: Lease,
    /// Its secret.
    pub token: LeaseToken,
    /// How long its holder waited: the lease began no earlier.
    pub waited: Duration,
}

/// Who holds a key, as far as the store can tell. A client that locks on Redis directly has
/// neither an owner nor a fencing token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    /// Who, if they said so.
    pub owner: Option<Owner>,
    /// The number of their lease.
    pub fencing_token: Option<FencingToken>,
    /// What is left of it; absent if it never ends by itself.
    pub left: Option<Duration>,
}

/// A key as it stands at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockStatus {
    /// The key.
    pub key: LockKey,
    /// Who holds it; nobody if it is free.
    pub holder: Option<Holder>,
    /// How many wait in line for it.
    pub waiters: u64,
    /// Whether the token that came with the question holds it; absent if none came.
    pub mine: Option<bool>,
}

#[cfg(test)]
mod tests {
    use super::Owner;

    #[test]
    fn an_owner_is_a_line_of_text_of_bounded_length() {
        assert_eq!(Owner::parse(""), Ok(None));
        assert!(Owner::parse(&"x".repeat(256)).is_ok());
        assert!(Owner::parse(&"x".repeat(257)).is_err());
        assert!(Owner::parse("two\nlines").is_err());
        let owner = Owner::parse("wéb-1:42 nightly").unwrap().unwrap();
        assert_eq!(owner.to_string(), "wéb-1:42 nightly");
    }
}
