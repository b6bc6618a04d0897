//! A request's right to an outcome, and the ways to give it up.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

use crate::lock::error::{Effect, LockError, StoreError, Verb};
use crate::lock::key_line::Stop;
use crate::lock::lease::Claim;
use crate::lock::undo_queue::Delivery;
use crate::lock::waiting::Waiters;

/// The time that a stopping request still waits for the store; a later grant was reported as
/// unknown. Longer than a hiccup, and short enough for clients that allow their wait a few seconds
/// more.
const HEAR_OUT: Duration = Duration::from_secs(3);

/// The right of a waiting request to be told its outcome.
pub(crate) struct Ticket {
    waiters: Arc<Waiters>,
    claim: Claim,
    number: u64,
    told: oneshot::Receiver<Option<Delivery>>,
    give_up_at: Option<Instant>,
    /// The time limit of the store's last answer, once the wait is over.
    stopping: Option<Instant>,
}

impl Ticket {
    /// Adds the waiting request of a claim. It waits until it is told, the moment to give up comes, the
    /// instance drains, or this ticket is dropped.
    pub(super) fn enter(
        waiters: Arc<Waiters>,
        claim: Claim,
        give_up_at: Option<Instant>,
    ) -> Result<Self, LockError> {
        let (tell, told) = oneshot::channel();
        let number = waiters.enter(&claim, tell)?;
        Ok(Self { waiters, claim, number, told, give_up_at, stopping: None })
    }

    /// Waits for the outcome, once the wait is over for at most [`HEAR_OUT`]; `None` if the request
    /// left the line without an answer, because the instance is shutting down. No question that is
    /// still under way can grant the claim afterwards.
    ///
    /// # Cancel safety
    ///
    /// No outcome is lost.
    pub(crate) async fn outcome(&mut self) -> Option<Delivery> {
        if self.stopping.is_none() {
            let stop = tokio::select! {
                biased;
                told = &mut self.told => return told.unwrap_or_else(|_| Some(self.unknown())),
                () = self.waiters.draining.cancelled() => Stop::Draining(self.number),
                () = until(self.give_up_at) => Stop::LastQuestion(self.number),
            };
            self.stopping = Some(Instant::now() + HEAR_OUT);
            self.waiters.with_line(&self.claim.key, |line| line.stop(&self.claim.token, stop));
        }
        tokio::select! {
            biased;
            told = &mut self.told => told.unwrap_or_else(|_| Some(self.unknown())),
            () = until(self.stopping) => Some(self.unknown()),
        }
    }

    /// The number of claims ahead, as far as this instance knows; `None` before the store has told
    /// the claim's place.
    pub(crate) fn ahead(&self) -> Option<u64> {
        self.waiters.with_line(&self.claim.key, |line| line.ahead(&self.claim.token)).flatten()
    }

    /// The outcome of a request if the store's answer is unknown.
    fn unknown(&self) -> Delivery {
        let reason = "the store did not answer in time".into();
        let verb = Verb::WaitTurn;
        let effect = Effect::Unknown;
        let error = StoreError { verb, effect, fault: "the store is too slow", reason };
        self.waiters.undos.deliver((&self.claim, None), [Instant::now(); 2], Err(error))
    }
}

impl Drop for Ticket {
    /// Removes the request and its claim. An outcome that was told and not
    /// received is dropped with its guard.
    fn drop(&mut self) {
        let token = &self.claim.token;
        let number = self.number;
        self.waiters.with_line(&self.claim.key, |line| line.withdraw(token, number));
    }
}

async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
