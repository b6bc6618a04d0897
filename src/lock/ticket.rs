//! A request's right to an outcome, and the ways to give it up.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use crate::lock::error::{Effect, LockError, StoreError, Verb};
use crate::lock::key_line::Stop;
use crate::lock::lease::Claim;
use crate::lock::owed::Delivery;
use crate::lock::waiting::Waiters;

/// The time that a stopping request still waits for the store; a later grant was reported as
/// unknown. Longer than a hiccup, and short enough for clients that allow their wait a few seconds
/// more.
pub(super) const HEAR_OUT: Duration = Duration::from_secs(3);

/// The right of a waiting request to be told its outcome.
pub(crate) struct Ticket {
    waiters: Arc<Waiters>,
    claim: Claim,
    number: u64,
    told: oneshot::Receiver<Option<Delivery>>,
}

impl Ticket {
    /// Adds a request behind its claim. It waits until it is told or this ticket is dropped.
    pub(super) fn enter(waiters: Arc<Waiters>, claim: Claim) -> Result<Self, LockError> {
        let (tell, told) = oneshot::channel();
        let number = waiters.enter(&claim, tell)?;
        Ok(Self { waiters, claim, number, told })
    }

    /// Waits for the outcome; `None` if the request left the line without an answer, because the
    /// instance is shutting down. No question that is still under way can grant the claim
    /// afterwards.
    ///
    /// # Cancel safety
    ///
    /// No outcome is lost.
    pub(crate) async fn told(&mut self) -> Option<Delivery> {
        match (&mut self.told).await {
            Ok(told) => told,
            Err(_) => Some(self.unknown()),
        }
    }

    /// The number of claims ahead, as far as this instance knows; `None` before the store has told
    /// the claim's place.
    pub(crate) fn ahead(&self) -> Option<u64> {
        self.waiters.with_line(&self.claim.key, |line| line.ahead(&self.claim.token)).flatten()
    }

    /// Begins to stop waiting: [`Ticket::told`] returns the outcome within about [`HEAR_OUT`].
    pub(crate) fn stop(&self, stop: Stop) {
        let (token, number) = (&self.claim.token, self.number);
        self.waiters.with_line(&self.claim.key, |line| line.stop(token, number, stop));
    }

    /// Stops waiting, with up to [`HEAR_OUT`] for the store's last answer. A no is definite: no
    /// question for the claim is under way then.
    ///
    /// # Cancel safety
    ///
    /// As [`Ticket::told`]; the request still stops.
    pub(crate) async fn stopped(&mut self, stop: Stop) -> Option<Delivery> {
        self.stop(stop);
        match timeout(HEAR_OUT, self.told()).await {
            Ok(told) => told,
            Err(_) => Some(self.unknown()),
        }
    }

    /// The outcome of a request if the store's answer is unknown.
    pub(crate) fn unknown(&self) -> Delivery {
        let reason = "the store did not answer in time".into();
        let error = StoreError { verb: Verb::WaitTurn, effect: Effect::Unknown, reason };
        self.waiters.deliver(&self.claim, [Instant::now(); 2], Err(error))
    }
}

impl Drop for Ticket {
    /// Removes the request, and its claim with the last one. An outcome that was told and not
    /// received is dropped with its guard.
    fn drop(&mut self) {
        let (token, number) = (&self.claim.token, self.number);
        self.waiters.with_line(&self.claim.key, |line| line.withdraw(token, number));
    }
}
