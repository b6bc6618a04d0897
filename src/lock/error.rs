//! What can go wrong with a verb. Losing is no error: it is one of the answers.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use crate::lock::lease::Origin;

/// What a caller can do about a verb that has no answer.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// The instance is going down and takes nothing on; another one will.
    #[error("this instance is going down")]
    Draining,
    /// The line, or this instance, has no room for one more.
    #[error("{0}")]
    TooManyWaiters(&'static str),
    /// The claim was released after so long a wait.
    #[error("the claim was released while it waited")]
    WaitCancelled(Duration),
    /// The store did not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A store call without an answer.
#[derive(Debug, thiserror::Error)]
#[error("the store did not {verb}")]
pub struct StoreError {
    /// What was asked of the store.
    pub verb: Verb,
    /// Whether it may have happened, or may still.
    pub effect: Effect,
    /// Why there is no answer.
    #[source]
    pub reason: Box<dyn Error + Send + Sync>,
}

impl StoreError {
    /// The same of a call that claims a key: one that did nothing leaves a token of the service
    /// with nothing, but an earlier call may have got a lease for one that a client chose.
    pub(crate) fn of_claim(self, origin: Origin) -> Self {
        let effect = match origin {
            Origin::Service => self.effect,
            Origin::Client => Effect::Unknown,
        };
        Self { effect, ..self }
    }
}

impl StoreError {
    /// The same failure for another request that waited for the same answer.
    pub(crate) fn again(&self) -> Self {
        let Self { verb, effect, reason } = self;
        Self { verb: *verb, effect: *effect, reason: reason.to_string().into() }
    }
}

/// What a call without an answer has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing, and it never will.
    None,
    /// Nobody knows: it may have happened, or may within the store's deadline.
    Unknown,
}

/// The verbs, with one name from the URL to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Take a key, if it is free.
    TryAcquire,
    /// Join the line for a key, or ask again.
    WaitTurn,
    /// Step out of the line.
    Leave,
    /// Confirm the fencing token of a lease on several nodes.
    Confirm,
    /// Make a lease last longer.
    Refresh,
    /// Refresh a lease that a connection keeps.
    Keep,
    /// End a lease that a connection kept.
    LetGo,
    /// Give a lease up.
    Release,
    /// End whoever holds a key.
    ForceRelease,
    /// Look at one key.
    Inspect,
    /// Look at all held keys.
    List,
    /// Watch over who of several nodes may vote.
    Guard,
}

impl Verb {
    /// Its name in logs and metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Self::TryAcquire => "try_acquire",
            Self::WaitTurn => "wait_turn",
            Self::Leave => "leave",
            Self::Confirm => "confirm",
            Self::Refresh => "refresh",
            Self::Keep => "keep",
            Self::LetGo => "let_go",
            Self::Release => "release",
            Self::ForceRelease => "force_release",
            Self::Inspect => "inspect",
            Self::List => "list",
            Self::Guard => "guard",
        }
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An error and all that caused it, as one line.
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
