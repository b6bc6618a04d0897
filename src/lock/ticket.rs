//! A request's right to be told, and how it gives that up.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::time::{Instant, timeout};

use crate::lock::error::{Effect, StoreError, Verb};
use crate::lock::key_line::{Delivery, Stop, Told};
use crate::lock::lease::{Claim, LockStatus};
use crate::lock::waiting::Waiters;
use crate::seeded::Bug;

/// How long a request that stops waiting hears the store out. What is granted later than that was
/// told to be unknown. Longer than a hiccup, and short enough for a client that allows its wait a
/// few seconds more.
pub(super) const HEAR_OUT: Duration = Duration::from_secs(3);

/// A request's right to be told.
pub(crate) struct Ticket {
    waiters: Arc<Waiters>,
    claim: Claim,
    number: u64,
    told: oneshot::Receiver<Told>,
}

impl Ticket {
    /// The right of a request that waits with a claim.
    pub(super) fn new(
        waiters: Arc<Waiters>,
        claim: Claim,
        number: u64,
        told: oneshot::Receiver<Told>,
    ) -> Self {
        Self { waiters, claim, number, told }
    }

    /// Waits to be told.
    ///
    /// # Cancel safety
    ///
    /// Nothing that was told is lost.
    pub(crate) async fn told(&mut self) -> Told {
        match (&mut self.told).await {
            Ok(told) => told,
            Err(_) => self.unknown(),
        }
    }

    /// How many stand before the claim, as far as this instance knows; `None` before the store has
    /// told its place.
    pub(crate) fn ahead(&self) -> Option<u64> {
        self.waiters.with_line(&self.claim.key, |line| line.ahead(&self.claim.token)).flatten()
    }

    /// Begins to stop waiting: [`Ticket::told`] says how that ended, within about [`HEAR_OUT`].
    pub(crate) fn stop(&self, stop: Stop) {
        let (token, number) = (&self.claim.token, self.number);
        self.waiters.with_line(&self.claim.key, |line| line.stop(token, number, stop));
    }

    /// Stops waiting, and hears the store out for [`HEAR_OUT`]. A no is definite: no question for
    /// the claim is under way then.
    ///
    /// # Cancel safety
    ///
    /// As [`Ticket::told`]; the request goes on to stop.
    pub(crate) async fn stopped(&mut self, stop: Stop) -> Told {
        self.stop(stop);
        if Bug::NoBeforeTheLastAnswer.is_in() {
            let key = self.claim.key.clone();
            return Told::Held(LockStatus { key, holder: None, waiters: 0, mine: None });
        }
        match timeout(HEAR_OUT, self.told()).await {
            Ok(told) => told,
            Err(_) => self.unknown(),
        }
    }

    /// Stops waiting at once; returns what was told and not received.
    pub(crate) fn withdraw(&mut self) -> Option<Told> {
        let (token, number) = (&self.claim.token, self.number);
        self.waiters.with_line(&self.claim.key, |line| line.withdraw(token, number));
        self.told.try_recv().ok()
    }

    /// What a request is told of which nobody knows.
    pub(crate) fn unknown(&self) -> Told {
        let reason = "the store was not heard in time".into();
        let error = StoreError { verb: Verb::WaitTurn, effect: Effect::Unknown, reason };
        let answer = self.waiters.undelivered(self.claim.clone(), Err(error));
        Told::Answer(Delivery { answer, asked: Instant::now(), alone: false })
    }
}

impl Drop for Ticket {
    /// The request is gone: its claim leaves the line with the last one. What was told and not
    /// received does what is to be done as it is dropped.
    fn drop(&mut self) {
        if Bug::GoneStays.is_in() {
            return;
        }
        drop(self.withdraw());
    }
}
