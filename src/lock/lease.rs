//! The types between a client's request and a store's answer.

use std::fmt;
use std::time::Duration;

use tokio::time::Instant;

use crate::lock::key::LockKey;
use crate::lock::permit::Permit;
use crate::lock::slots::{Share, Slots};
use crate::lock::time::{Ttl, Uptime, millis_down};
use crate::lock::token::{FencingToken, LeaseToken};

/// A label of the client, for people to read: up to 256 bytes without control characters. Proves
/// nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner(String);

impl Owner {
    /// The longest owner, in bytes: room for a host, a process and a command.
    pub const MAX_BYTES: usize = 256;

    /// Parses an owner; an empty text is none.
    ///
    /// # Errors
    ///
    /// [`InvalidOwner`] if it is too long or contains a control character.
    pub fn parse(text: &str) -> Result<Option<Self>, InvalidOwner> {
        if text.len() > Self::MAX_BYTES || text.chars().any(char::is_control) {
            return Err(InvalidOwner);
        }
        Ok((!text.is_empty()).then(|| Self(text.to_owned())))
    }

    /// An owner of what a text has: without its control characters, cut to the longest owner.
    pub fn shortened(text: &str) -> Option<Self> {
        let text: String = text.chars().filter(|letter| !letter.is_control()).collect();
        Self::parse(&text[..text.floor_char_boundary(Self::MAX_BYTES)]).unwrap_or_default()
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

/// Not a valid owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an owner has at most {} bytes and no control characters", Owner::MAX_BYTES)]
pub struct InvalidOwner;

/// A client's request for a key.
#[derive(Clone, Debug)]
pub struct Claim {
    /// The requested key.
    pub key: LockKey,
    /// The secret of the future lease.
    pub token: LeaseToken,
    /// The maker of that secret.
    pub origin: Origin,
    /// The requested TTL.
    pub ttl: Ttl,
    /// The client's label.
    pub owner: Option<Owner>,
    /// The most units that it would allow on the key; `None` for those of its lease, or else an
    /// exclusive lease.
    pub slots: Option<Slots>,
    /// The units that it would take; `None` for those of its lease, or else one.
    pub units: Option<u16>,
    /// True if a stream is to keep the lease.
    pub kept: bool,
    /// Replaces this lease of the token, and begins no other.
    pub named: Option<FencingToken>,
    /// Its part of a quota, until its lease is over or it has none.
    pub permit: Option<Permit>,
}

impl Claim {
    /// The slots of a new lease.
    pub fn slots(&self) -> Slots {
        self.slots.unwrap_or(Slots::ALONE)
    }

    /// The share of a new lease, before it has a slot.
    pub fn share(&self) -> Share {
        Share { slots: self.slots(), units: self.units.unwrap_or(1), slot: None }
    }

    /// Returns true if the claim asks for no other share than this one of its token's lease.
    pub(crate) fn keeps(&self, share: Share) -> bool {
        self.slots.is_none_or(|slots| slots == share.slots)
            && self.units.is_none_or(|units| units == share.units)
    }

    /// Returns true if both ask for the same lease: the answer to one is an answer to the other.
    pub(crate) fn asks_the_same(&self, other: &Self) -> bool {
        let options = |claim: &Self| (claim.ttl, claim.slots, claim.units, claim.kept);
        options(self) == options(other) && self.owner == other.owner
    }
}

/// The maker of a claim's token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The client, which may repeat its request at any moment, here or elsewhere.
    Client,
    /// The service, for this request alone: the client learns the token with the answer.
    Service,
}

/// The right to a key for a limited time, without its secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The held key.
    pub key: LockKey,
    /// The holder's label, if given.
    pub owner: Option<Owner>,
    /// The fencing token of this lease.
    pub fencing_token: FencingToken,
    /// The time left when the store answered.
    pub ttl: Ttl,
    /// True if `max_hold` has shortened the TTL: no renewal makes the lease last longer.
    pub capped: bool,
    /// Its part of the key.
    pub share: Share,
}

impl Lease {
    /// Returns true if no time was left when its answer was made.
    pub fn is_over(&self) -> bool {
        self.ttl.as_millis() == 0
    }

    /// Takes the time off that has passed since the store answered.
    pub(crate) fn count_down_since(&mut self, answered: Instant) {
        let passed = millis_down(Uptime::at(answered).elapsed());
        self.ttl = Ttl::from_millis(self.ttl.as_millis().saturating_sub(passed));
    }

    /// Returns true if no time was left because its answer took too long. One that `max_hold` ends
    /// has none in the end, however soon the store answers.
    pub(crate) fn came_late(&self) -> bool {
        self.is_over() && !self.capped
    }
}

/// What a store knows of the client of a lease. A lease that is no longer kept never is again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// It was granted, and its client has not been heard of since.
    #[default]
    New,
    /// A stream keeps it.
    Kept,
    /// Its token has acquired it again or refreshed it, or its stream has let it go: nobody takes
    /// it back any more.
    Heard,
}

impl State {
    /// The state of a new lease.
    pub(crate) const fn of_new(kept: bool) -> Self {
        if kept { Self::Kept } else { Self::New }
    }

    /// The state with this number in a store's record.
    pub const fn from_number(number: u64) -> Option<Self> {
        match number {
            0 => Some(Self::New),
            1 => Some(Self::Kept),
            2 => Some(Self::Heard),
            _ => None,
        }
    }

    /// The number in a store's record.
    pub const fn number(self) -> u64 {
        self as u64
    }
}

/// The lease that another one has replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replaced {
    /// Its number.
    pub number: FencingToken,
    /// When it would have ended, on the store's clock and in the store's unit: one that was kept at
    /// once, with its stream.
    pub ends_at: u64,
}

/// The grant of a lease, as far as a store has to know it to take it back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Receipt {
    /// The maker of its token.
    pub origin: Origin,
    /// The place in line that its claim had, and gets back if its token is a client's.
    pub place: Option<u64>,
    /// The lease that it has replaced: then it is only let go, and ends when that one would have.
    pub replaced: Option<Replaced>,
    /// The store's own mark of the grant.
    pub by: u64,
}

/// The winner's answer: the lease and the secret that proves it.
#[derive(Clone, Debug)]
pub struct Grant {
    /// The lease.
    pub lease: Lease,
    /// Its secret.
    pub token: LeaseToken,
    /// The time that its holder waited: the lease began no earlier.
    pub waited: Duration,
}

/// The answer to a claim.
#[derive(Debug)]
pub enum Acquired {
    /// A new lease.
    Granted(Grant),
    /// The lease that the token already had.
    Again(Grant),
    /// The key is held, after waiting this long.
    Held(LockStatus, Duration),
    /// The token does not have the lease that the claim names, but maybe another one; or its lease
    /// is over by now.
    Lost(Option<FencingToken>),
}

/// The holder of a key, as far as the store can tell. A direct Redis client has neither an owner
/// nor a fencing token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Holder {
    /// The holder's label, if given.
    pub owner: Option<Owner>,
    /// The fencing token of the lease.
    pub fencing_token: Option<FencingToken>,
    /// The time left; absent if the lease never expires.
    pub left: Option<Duration>,
    /// The time since the lease began, by the store's clock; absent if the store cannot tell.
    pub held: Option<Duration>,
    /// Its part of the key.
    pub share: Share,
}

impl Holder {
    /// Returns true if the lease of this number is over, now that this one is: no lease outlasts
    /// the grant of a later exclusive one.
    pub fn ends(&self, number: FencingToken) -> bool {
        let last = self.fencing_token;
        last == Some(number) || self.share.slots.is_alone() && last > Some(number)
    }
}

/// The leases of a key that is shared.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sharers {
    /// Their number.
    pub holders: u64,
    /// The units that they have taken.
    pub units: u64,
    /// The most units that all of them allow.
    pub slots: Slots,
    /// The first to end, if they were asked for.
    pub leases: Vec<Holder>,
}

impl Sharers {
    /// The units, if a lease has several.
    pub(crate) fn several(&self) -> Option<u64> {
        (self.units > self.holders).then_some(self.units)
    }
}

/// A claim in line, as others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// The claim's label, if given.
    pub owner: Option<Owner>,
    /// The time since it took its place, by the store's clock; absent if the store cannot tell.
    pub waited: Option<Duration>,
}

/// The state of a key at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockStatus {
    /// The key.
    pub key: LockKey,
    /// The holder; `None` if the key is free. Of several, in a look the one in question, else only
    /// the time until the last is over; in a refusal the one whose end makes room.
    pub holder: Option<Holder>,
    /// The holders together, if they share the key.
    pub sharers: Option<Sharers>,
    /// The number of waiters in line.
    pub waiters: u64,
    /// The first of them, as many as were asked for.
    pub line: Vec<Waiter>,
    /// True if the token in the question holds it; `None` without a token. In a refusal only for a
    /// token that has a lease, which is the holder then.
    pub mine: Option<bool>,
}
