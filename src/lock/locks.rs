//! The verbs over one store, for callers that may vanish at any moment.
//!
//! It completes every call once sent, undoes grants that no client received, and refuses claims
//! while it drains (`shutdown.rs`). The store decides who holds a lock; the waiting loop is in
//! `waiting.rs`.

mod shutdown;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::lock::ends::{Ends, ObserveHeld, Why};
use crate::lock::error::{LockError, StoreError};
use crate::lock::heard_out::HeardOut;
use crate::lock::holds::{Holds, Loss};
use crate::lock::key::LockKey;
use crate::lock::key_line::{Stop, Told};
use crate::lock::lease::{Acquired, Claim, Grant, Holder, Holding, Lease, LockStatus, Origin};
use crate::lock::owed::{ATTEMPTS, Answering, Guarded, Owed};
use crate::lock::prefixes::Prefixes;
use crate::lock::store::{
    Attempt, Guarantees, Keep, Kept, Listing, NodeReport, Page, Released, Store, Win,
};
use crate::lock::ticket::Ticket;
use crate::lock::time::Ttl;
use crate::lock::token::{FencingToken, LeaseToken};
use crate::lock::waiting::{WaitLimits, Waiters};

/// The lock service: the verbs over one store.
#[derive(Clone)]
pub struct Locks {
    store: Arc<dyn Store>,
    tasks: TaskTracker,
    /// The calls of `try_acquire` in flight.
    attempts: TaskTracker,
    owed: Arc<Owed>,
    waiters: Arc<Waiters>,
    holds: Arc<Holds>,
    ends: Arc<Ends>,
    draining: CancellationToken,
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Locks")
    }
}

impl Locks {
    /// The service over `store`, without prefixes of keys.
    pub fn new(store: Arc<dyn Store>, limits: WaitLimits) -> Self {
        Self::observed(store, limits, Prefixes::default(), Box::new(|_, _, _| ()))
    }

    /// The service over `store`, with an observer of how long leases under prefixes are held.
    pub fn observed(
        store: Arc<dyn Store>,
        limits: WaitLimits,
        prefixes: Prefixes,
        observe: ObserveHeld,
    ) -> Self {
        let (tasks, attempts) = (TaskTracker::new(), TaskTracker::new());
        let owed = Arc::new(Owed::new(store.clone(), tasks.clone()));
        let waiters = Waiters::new(store.clone(), owed.clone(), tasks.clone(), limits);
        let waiters = Arc::new(waiters);
        let (holds, draining) = (Arc::default(), CancellationToken::new());
        let ends = Arc::new(Ends::new(store.shared(), prefixes, observe));
        Self { store, tasks, attempts, owed, waiters, holds, ends, draining }
    }

    /// Acquires the key for the claim, waiting in line for at most `patience` if it is held.
    ///
    /// # Errors
    ///
    /// [`LockError::Draining`] after [`Locks::drain`], but for a token that has a lease;
    /// [`LockError::TooManyWaiters`] if there is no room to wait; [`LockError::WaitCancelled`] if
    /// the claim was released; [`LockError::Store`] without an answer. A possible grant to a token
    /// of the service is then undone in the background.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives the claim up. The store call is completed and the claim leaves the
    /// line, where a client's token keeps its place for a while. A grant that reaches nobody is
    /// taken back and goes on to the next claim.
    pub async fn acquire(&self, claim: Claim, patience: Duration) -> Result<Acquired, LockError> {
        let began = Instant::now();
        let first = self.try_acquire(claim.clone()).await?;
        if let Acquired::Again(Grant { lease, token, .. }) = &first {
            self.holds.taken_over(token, lease);
        }
        // Two holders that waited for more of the key would wait for each other.
        match &first {
            Acquired::Held(status, _) if status.mine != Some(true) && !patience.is_zero() => (),
            _ => return Ok(first),
        }
        let mut ticket = self.enter(claim.clone())?;
        let in_line = async {
            let stop = tokio::select! {
                biased;
                told = ticket.told() => return told,
                () = self.draining.cancelled() => Stop::Draining,
                () = tokio::time::sleep_until(began + patience) => Stop::LastQuestion,
            };
            ticket.stopped(stop).await
        };
        match in_line.await {
            Told::Answer(delivery) => {
                let waited = delivery.asked - began;
                Ok(match delivery.hand_over()? {
                    Attempt::Won(win) => self.won(win, claim.token, waited),
                    Attempt::Held(status) => Acquired::Held(status, began.elapsed()),
                    Attempt::Lost => Acquired::Lost,
                })
            }
            // Another instance may have granted it.
            Told::Out => self.try_acquire(claim).await,
            Told::Cancelled => Err(LockError::WaitCancelled(began.elapsed())),
        }
    }

    /// Acquires the key if it is free and no claim is ahead.
    pub(crate) async fn try_acquire(&self, claim: Claim) -> Result<Acquired, LockError> {
        let token = claim.token.clone();
        Ok(match self.ask(claim).await?.hand_over()? {
            Attempt::Won(win) => self.won(win, token, Duration::ZERO),
            Attempt::Held(status) => Acquired::Held(status, Duration::ZERO),
            Attempt::Lost => Acquired::Lost,
        })
    }

    /// Asks for a key that may be free, as [`Locks::try_acquire`]; the answer is not handed over
    /// yet.
    pub(crate) async fn ask(&self, claim: Claim) -> Result<Guarded, LockError> {
        if self.draining.is_cancelled() && !self.has_lease_at_last(&claim).await? {
            return Err(LockError::Draining);
        }
        let (store, owed) = (self.store.clone(), self.owed.clone());
        let attempt = async move {
            let attempt = store.try_acquire(&claim).await;
            owed.guarded(&claim, attempt)
        };
        let attempt = self.attempts.track_future(attempt);
        Ok(self.hear_out(attempt).await)
    }

    /// The number of requests in line.
    pub fn waiting(&self) -> usize {
        self.waiters.len()
    }

    /// Makes the lease of `token` last for `ttl` from now, or for its last TTL, if that is longer
    /// than it would; the lease `named` also if it is shorter. `None`: the lease is lost, or is not
    /// the one `named`.
    ///
    /// # Errors
    ///
    /// [`LockError::Store`] without an answer; the call may be repeated.
    ///
    /// # Cancel safety
    ///
    /// The store call is completed.
    pub async fn refresh(
        &self,
        key: LockKey,
        token: LeaseToken,
        named: Option<FencingToken>,
        ttl: Option<Ttl>,
    ) -> Result<Option<Lease>, LockError> {
        let (store, ends) = (self.store.clone(), self.ends.clone());
        let call = async move {
            let refreshed = store.refresh(&key, &token, named, ttl).await;
            match &refreshed {
                Ok(Some(lease)) => ends.renewed(lease),
                Ok(None) => ends.missed(&key, &token, named),
                Err(_) => (),
            }
            refreshed
        };
        Ok(self.hear_out(call).await?)
    }

    /// Ends the token's lease, or gives up its place in line; only the lease `named`, if given.
    ///
    /// # Errors
    ///
    /// [`LockError::Store`] without an answer; the call may be repeated.
    ///
    /// # Cancel safety
    ///
    /// The store call is completed: a client that sends a release and disconnects has released.
    pub async fn release(
        &self,
        key: LockKey,
        token: LeaseToken,
        named: Option<FencingToken>,
    ) -> Result<Released, LockError> {
        let Self { store, holds, ends, waiters, .. } = self.clone();
        let call = async move {
            // Its waiting requests leave the line first: none of their questions may grant it
            // again.
            let waiting = match named {
                Some(_) => None,
                None => Some(waiters.release(&key, &token, Keep::Place).await),
            };
            let released = store.release(&key, &token, named).await;
            match &released {
                Ok(Released::Lease(ended)) => {
                    holds.ended(&key, ended, Loss::Released);
                    ends.ended(&key, ended, Why::Released);
                }
                Ok(Released::Nothing) => ends.missed(&key, &token, named),
                _ => (),
            }
            if let (Ok(_), Some(waiting)) = (&released, waiting) {
                waiting.told();
            }
            // The place may have been that of a request which came meanwhile.
            if let (Ok(Released::Place), None) = (&released, named) {
                waiters.release(&key, &token, Keep::Nothing).await.told();
            }
            released
        };
        Ok(self.hear_out(call).await?)
    }

    /// Ends the leases of the key, only the one `named`, if given, and returns their holders.
    ///
    /// # Errors
    ///
    /// [`LockError::Store`] without an answer; the call may be repeated.
    ///
    /// # Cancel safety
    ///
    /// The store call is completed.
    pub async fn force_release(
        &self,
        key: LockKey,
        named: Option<FencingToken>,
    ) -> Result<Vec<Holder>, LockError> {
        let Self { store, holds, ends, .. } = self.clone();
        let call = async move {
            let taken = store.force_release(&key, named).await;
            for ended in taken.iter().flatten() {
                holds.ended(&key, ended, Loss::Forced);
                ends.ended(&key, ended, Why::Forced);
            }
            taken
        };
        Ok(self.hear_out(call).await?)
    }

    /// The status of a key, whether `token` holds it, and the first `most` claims of its line.
    ///
    /// # Errors
    ///
    /// [`LockError::Store`] without an answer.
    ///
    /// # Cancel safety
    ///
    /// Changes nothing.
    pub async fn inspect(
        &self,
        key: &LockKey,
        token: Option<&LeaseToken>,
        most: usize,
    ) -> Result<LockStatus, LockError> {
        Ok(self.store.inspect_line(key, token, most).await?)
    }

    /// Returns whether `token` has a lease of a key, which decides about a claim of this origin.
    pub(crate) async fn has_lease(
        &self,
        key: &LockKey,
        token: &LeaseToken,
        origin: Origin,
    ) -> Result<bool, LockError> {
        let status = self.store.inspect(key, Some(token)).await;
        Ok(status.map_err(|error| error.before_claim(origin))?.mine == Some(true))
    }

    /// The held keys under any of `prefixes` that come after `after`, at most `limit` of them.
    ///
    /// # Errors
    ///
    /// [`LockError::Store`] without an answer.
    ///
    /// # Cancel safety
    ///
    /// Changes nothing.
    pub async fn list(
        &self,
        prefixes: Vec<String>,
        after: Option<String>,
        limit: usize,
    ) -> Result<Listing, LockError> {
        let prefixes = prefixes.into_iter().collect();
        let page = Page { prefixes, after, limit: limit + 1 };
        Ok(Listing::of(self.store.list(&page).await?, limit))
    }

    /// The nodes of the store; empty if it does not count votes.
    pub(crate) fn nodes(&self) -> Vec<NodeReport> {
        self.store.nodes()
    }

    /// The store's promises.
    pub fn guarantees(&self) -> Guarantees {
        self.store.guarantees()
    }

    /// Guards a claim while it is acquired and answered: after a panic, a lease whose token the
    /// service made is undone, because no client has received it.
    pub fn answering(&self, claim: &Claim) -> Answering {
        Answering::new(self.owed.clone(), claim.clone())
    }

    pub(crate) fn enter(&self, claim: Claim) -> Result<Ticket, LockError> {
        Ticket::enter(self.waiters.clone(), claim)
    }

    pub(crate) fn holds(&self) -> &Arc<Holds> {
        &self.holds
    }

    /// The ends of leases that this instance has seen.
    pub(crate) fn ends(&self) -> &Ends {
        &self.ends
    }

    /// Refreshes the lease of a hold. The lease is let go only after the answer.
    pub(crate) fn keep(
        &self,
        holding: Arc<Mutex<Holding>>,
        ttl: Ttl,
    ) -> HeardOut<Result<Kept, StoreError>> {
        let (store, ends) = (self.store.clone(), self.ends.clone());
        self.hear_out(async move {
            let holding = holding.lock().await;
            let kept = store.keep(&holding, ttl).await;
            match &kept {
                Ok(Kept::Lease(lease)) => ends.renewed(lease),
                Ok(Kept::Lost) => {
                    ends.missed(&holding.key, &holding.token, Some(holding.fencing_token));
                }
                _ => (),
            }
            kept
        })
    }

    /// Lets go of the lease of a hold; retries until it would have expired anyway.
    pub(crate) fn let_go(
        &self,
        holding: Arc<Mutex<Holding>>,
        linger: Option<Ttl>,
        over_at: Instant,
    ) {
        let (store, ends) = (self.store.clone(), self.ends.clone());
        self.tasks.spawn(async move {
            let holding = holding.lock().await;
            let mut attempts = ATTEMPTS;
            while store.let_go(&holding, linger).await.is_err() {
                if Instant::now() >= over_at {
                    return;
                }
                attempts.pause().await;
            }
            ends.let_go(&holding, linger);
        });
    }

    /// The answer to a claim that has the key.
    fn won(&self, win: Win, token: LeaseToken, waited: Duration) -> Acquired {
        if win.replaces.is_some() {
            self.holds.taken_over(&token, &win.lease);
        }
        self.ends.granted(&token, &win, waited);
        let grant = Grant { lease: win.lease, token, waited };
        if win.fresh { Acquired::Granted(grant) } else { Acquired::Again(grant) }
    }

    fn hear_out<T: Send + 'static>(
        &self,
        call: impl Future<Output = T> + Send + 'static,
    ) -> HeardOut<T> {
        HeardOut::new(&self.tasks, call)
    }
}
