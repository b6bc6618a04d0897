//! A request's right to be told, and how it gives that up.

use std::sync::Arc;

use tokio::sync::oneshot;

use crate::lock::key::LockKey;
use crate::lock::key_line::Delivery;
use crate::lock::lease::Claim;
use crate::lock::lease::Origin;
use crate::lock::store::Keep;
use crate::lock::token::LeaseToken;
use crate::lock::waiting::Lines;
use crate::lock::waiting::Waiters;

/// A request's right to be told.
pub(crate) struct Ticket {
    waiters: Arc<Waiters>,
    key: LockKey,
    token: LeaseToken,
    request: u64,
    told: oneshot::Receiver<Delivery>,
}

impl Ticket {
    /// The right of a request for a key under a token.
    pub(super) fn new(
        waiters: Arc<Waiters>,
        (key, token): (LockKey, LeaseToken),
        request: u64,
        told: oneshot::Receiver<Delivery>,
    ) -> Self {
        Self { waiters, key, token, request, told }
    }

    /// Waits to be told.
    ///
    /// # Cancel safety
    ///
    /// What was told and not received is still there for [`Ticket::give_back`].
    pub(crate) async fn told(&mut self) -> Option<Delivery> {
        (&mut self.told).await.ok()
    }

    /// How many stand before the claim, as far as this instance knows; `None` before the store has
    /// told its place.
    pub(crate) fn ahead(&self) -> Option<u64> {
        let lines = self.waiters.lines();
        let line = lines.keys.get(&self.key)?;
        let standing = line.claims.get(&self.token)?;
        let (first, _) = line.order.first_key_value()?;
        Some(standing.ahead.min(standing.place?.saturating_sub(*first) + line.before_head))
    }

    /// Whether the claim leaves the line with this request.
    pub(super) fn is_last(&self) -> bool {
        let lines = self.waiters.lines();
        let standing = lines.keys.get(&self.key).and_then(|line| line.claims.get(&self.token));
        standing.is_some_and(|standing| standing.requests.len() == 1)
    }

    /// Stops waiting; returns what was told in the last moment.
    pub(crate) fn give_back(&mut self) -> Option<Delivery> {
        self.depart();
        self.told.try_recv().ok()
    }

    /// Stops waiting, since the request was granted the lease otherwise: the same grant may still
    /// be on its way here, and must not be taken back for want of somebody to tell.
    pub(crate) fn settle(mut self) {
        let mut lines = self.waiters.lines();
        if let Some(line) = lines.keys.get_mut(&self.key) {
            line.settled.push(self.token.clone());
        }
        drop(lines);
        self.depart();
        if let Ok(told) = self.told.try_recv() {
            told.answer.forget();
        }
    }

    /// Takes the request out, and its claim with the last one. The answer is sent under the same
    /// lock, so a request is either taken out or has been told.
    fn depart(&self) {
        let mut lines = self.waiters.lines();
        let Lines { keys, requests, .. } = &mut *lines;
        let Some(line) = keys.get_mut(&self.key) else { return };
        let Some(standing) = line.claims.get_mut(&self.token) else { return };
        let before = standing.requests.len();
        standing.requests.retain(|(request, _)| *request != self.request);
        let gone = before - standing.requests.len();
        let last = standing.requests.is_empty();
        let keep = kept(&standing.claim);
        *requests -= gone;
        line.requests -= gone;
        if last {
            line.remove(&self.token);
            line.leaving.push((self.token.clone(), keep));
            line.bell.notify_one();
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.depart();
    }
}

/// What a claim that steps out of the line keeps.
pub(super) fn kept(claim: &Claim) -> Keep {
    match claim.origin {
        Origin::Client => Keep::Place,
        Origin::Service => Keep::Nothing,
    }
}
