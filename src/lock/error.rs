//! The failures of a verb. Losing is an answer, not a failure.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use crate::lock::lease::Origin;

/// The failure of a verb, by what the caller can do about it.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// The instance is shutting down and accepts no new claims; another one will.
    #[error("this instance is shutting down")]
    Draining,
    /// The line, or this instance, is full.
    #[error("{0}")]
    TooManyWaiters(&'static str),
    /// The claim was released after waiting this long.
    #[error("the claim was released while it waited")]
    WaitCancelled(Duration),
    /// A newer request of the claim waits instead, after this one waited this long.
    #[error("a newer request of the claim waits instead")]
    Superseded(Duration),
    /// The store did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A store call without an answer.
#[derive(Debug, thiserror::Error)]
#[error("{verb} failed")]
pub struct StoreError {
    /// The verb that was called.
    pub verb: Verb,
    /// The effect that the call may have had.
    pub effect: Effect,
    /// The fault as a client is told it: the store, and what it did. It names no server and no file.
    pub fault: &'static str,
    /// The cause.
    #[source]
    pub reason: Box<dyn Error + Send + Sync>,
}

impl StoreError {
    /// The error where a lease was over before the store had answered: nothing says that its end is
    /// safe.
    pub(crate) fn late(verb: Verb) -> Self {
        let reason = "the lease had expired before the store answered".into();
        Self { verb, effect: Effect::Unknown, fault: "the store is too slow", reason }
    }

    /// The error where a look could not say whether the token has a lease.
    pub(crate) fn unsure(verb: Verb) -> Self {
        let reason = "servers that may have the lease did not answer".into();
        Self { verb, effect: Effect::None, fault: "too few servers", reason }
    }

    /// The error of a refusal where the store has not yet taken back what was granted before it.
    pub(crate) fn not_taken_back() -> Self {
        let reason = "leases of other keys are still being taken back".into();
        let fault = "the store is too slow";
        Self { verb: Verb::Release, effect: Effect::Unknown, fault, reason }
    }

    /// The error of a lease that was lost just before the answer, when another request may have been
    /// told of it.
    pub(crate) fn lost_at_last() -> Self {
        let reason = "the lease ended just before the answer".into();
        let fault = "a lease was lost";
        Self { verb: Verb::LetGo, effect: Effect::Unknown, fault, reason }
    }

    /// The error of a call that claims a key.
    pub(crate) fn of_claim(self, origin: Origin) -> Self {
        let effect = match (self.effect, origin) {
            (Effect::None, Origin::Client) => Effect::Earlier,
            (effect, _) => effect,
        };
        Self { effect, ..self }
    }
}

/// The effect of a call without an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing happened, and nothing will.
    None,
    /// Nothing happened, and nothing will; an earlier call with the client's token may have claimed
    /// the key.
    Earlier,
    /// Unknown: it may have happened, or may within the store's deadline.
    Unknown,
}

/// A verb, under one name from the URL to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Take a key, if it is free.
    TryAcquire,
    /// Join the line for a key, or ask again.
    WaitTurn,
    /// Leave the line.
    Leave,
    /// Make a lease last longer.
    Refresh,
    /// Refresh the lease of a hold.
    Keep,
    /// End the lease of a hold.
    LetGo,
    /// Give up a lease.
    Release,
    /// End the lease of a key, without its token.
    ForceRelease,
    /// Look at one key.
    Inspect,
    /// List the held keys.
    List,
    /// A call that a store makes for itself, among its servers.
    Upkeep,
}

impl Verb {
    /// Its name in logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::TryAcquire => "try_acquire",
            Self::WaitTurn => "wait_turn",
            Self::Leave => "leave",
            Self::Refresh => "refresh",
            Self::Keep => "keep",
            Self::LetGo => "let_go",
            Self::Release => "release",
            Self::ForceRelease => "force_release",
            Self::Inspect => "inspect",
            Self::List => "list",
            Self::Upkeep => "upkeep",
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An error and its causes, as one line.
pub(crate) fn chain(error: &dyn Error) -> String {
    let mut line = error.to_string();
    let mut cause = error.source();
    while let Some(source) = cause {
        line.push_str(": ");
        line.push_str(&source.to_string());
        cause = source.source();
    }
    line
}
