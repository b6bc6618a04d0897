//! What a simulated lock is asked and tells, and what may be wrong with it.

use crate::history::{Nanos, Said, Token};

/// The number of a request within its world.
pub(super) type Request = usize;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::check) enum Bug {
    ReleaseWithoutCompare,
    ReleaseIgnoresTheNumber,
    RefreshRecreates,
    NumbersRepeat,
    LastInFirstOut,
    LostWakeUp,
    GhostStaysInLine,
    RefusalThatGrants,
    RepeatIsAnotherLease,
    RepeatIsRefused,
    TwoAreServed,
    EndsLittleEarly,
    EndsLate,
    RefusalWithoutHolder,
    LookSaysMine,
    LostWithoutReason,
    /// A stream without a number keeps the lease that an acquire of its token began.
    StreamTakesLease,
    StreamTakesStream, // A stream without a number keeps the lease of an older stream of its token.
    ReplacementStays,  // A replacement that reaches nobody stays for its TTL.
    RefreshShortens,
    ReplacementKeepsItsNumber,
    /// A repeat whose answer reaches nobody keeps the lease from being taken back.
    UnheardRepeatCounts,
    TakeBackIgnoresHeard,
    CrewGrows, // A release over another instance leaves a field behind while others wait.
    RefreshesEndTheStream, // The third refresh of a kept lease by its client ends its stream.
    TimeoutEndsTheLease, // A lease whose connection timed out ends at once.
}

/// What a request is told.
#[derive(Clone, Debug)]
pub(super) struct Reply {
    pub(super) status: u16,
    /// The code of a refusal, or the event of a stream.
    pub(super) code: &'static str,
    pub(super) said: Said,
}

/// What a claim asks for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish {
    pub(super) request: Request,
    pub(super) token: Token,
    /// Whether the service made the token.
    pub(super) made: bool,
    pub(super) ttl: Nanos,
    pub(super) waits: bool,
    pub(super) since: Nanos,
    /// The lease that it names.
    pub(super) named: Option<u64>,
    /// Of a stream, for how long its lease outlives it.
    pub(super) linger: Option<Nanos>,
}

/// How a connection ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Close {
    HangUp,
    TimeOut,
}
