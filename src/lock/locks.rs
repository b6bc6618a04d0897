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
use tokio_util::task::TaskTracker;

use crate::lock::error::{Effect, LockError, StoreError, Verb};
use crate::lock::heard_out::HeardOut;
use crate::lock::key::LockKey;
use crate::lock::key_line::WaitingRequest;
use crate::lock::lease::{Acquired, Claim, Grant, Holder, Lease, LockStatus};
use crate::lock::leases::{Leases, ObserveHeld, Why};
use crate::lock::owed::{ATTEMPTS, Answering, Delivery, Owed};
use crate::lock::prefixes::Prefixes;
use crate::lock::store::{
    Answer, Ask, Ended, Guarantees, Keep, Listing, NodeReport, Page, Renewed, Store, Target, Win,
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
    /// The questions in flight of claims that do not wait.
    attempts: TaskTracker,
    owed: Arc<Owed>,
    waiters: Arc<Waiters>,
    leases: Arc<Leases>,
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
        let leases = Arc::new(Leases::new(store.about().shared, prefixes, observe));
        let owed = Arc::new(Owed::new(store.clone(), leases.clone(), tasks.clone()));
        let waiters = Waiters::new(store.clone(), owed.clone(), tasks.clone(), limits);
        Self { store, tasks, attempts, owed, waiters: Arc::new(waiters), leases }
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
        // What comes before a wait takes none of its memory.
        let first = Box::pin(self.try_acquire(claim.clone())).await?;
        if let Acquired::Again(Grant { lease, token, .. }) = &first {
            self.leases.taken_over(token, lease);
        }
        // Two holders that waited for more of the key would wait for each other.
        match &first {
            Acquired::Held(status, _) if status.mine != Some(true) && !patience.is_zero() => (),
            _ => return Ok(first),
        }
        let mut ticket = self.enter(claim.clone(), began.checked_add(patience))?;
        let Some(delivery) = ticket.outcome().await else {
            // Another instance may have granted it.
            return Box::pin(self.try_acquire(claim)).await;
        };
        let waited = delivery.asked - began;
        Ok(match delivery.hand_over()? {
            Answer::Won(win) => self.won(win, &claim, waited),
            Answer::Held(status) => Acquired::Held(status, began.elapsed()),
            Answer::Gone | Answer::Waiting(_) => {
                return Err(LockError::WaitCancelled(began.elapsed()));
            }
        })
    }

    /// Acquires the key if it is free and no claim is ahead.
    async fn try_acquire(&self, claim: Claim) -> Result<Acquired, LockError> {
        Ok(match self.ask(claim.clone()).await?.hand_over()? {
            Answer::Won(win) => self.won(win, &claim, Duration::ZERO),
            Answer::Held(status) => Acquired::Held(status, Duration::ZERO),
            Answer::Gone | Answer::Waiting(_) => Acquired::Lost,
        })
    }

    /// Asks for a key that may be free, as [`Locks::try_acquire`]; the answer is not handed over
    /// yet.
    pub(crate) async fn ask(&self, claim: Claim) -> Result<Delivery, LockError> {
        if self.waiters.draining.is_cancelled() && !self.has_lease_at_last(&claim).await? {
            return Err(LockError::Draining);
        }
        let (store, owed) = (self.store.clone(), self.owed.clone());
        let attempt = async move {
            let asked = Instant::now();
            let answer = store.ask(&claim, Ask::Once(None)).await;
            owed.deliver(&claim, [asked, Instant::now()], answer)
        };
        let attempt = self.attempts.track_future(attempt);
        Ok(self.hear_out(attempt).await)
    }

    /// The number of requests in line.
    pub fn waiting(&self) -> usize {
        self.waiters.len()
    }

    /// Makes a lease last for `ttl` from now, or for its last TTL, if that is longer than it would; a
    /// lease that is named also if it is shorter. `None`: the lease is lost, or is another one.
    ///
    /// # Errors
    ///
    /// [`LockError::Store`] without an answer; the call may be repeated.
    ///
    /// # Cancel safety
    ///
    /// The store call is completed.
    pub async fn refresh(&self, of: Target, ttl: Option<Ttl>) -> Result<Option<Lease>, LockError> {
        Ok(self.renew(of, ttl).await?.lease().filter(|lease| !lease.is_over()))
    }

    /// Ends a lease, or gives up its token's place in line if no lease is named.
    ///
    /// # Errors
    ///
    /// [`LockError::Store`] without an answer; the call may be repeated.
    ///
    /// # Cancel safety
    ///
    /// The store call is completed: a client that sends a release and disconnects has released.
    pub async fn release(&self, of: Target) -> Result<Ended, LockError> {
        let Self { store, leases, waiters, .. } = self.clone();
        let call = async move {
            // Its waiting requests leave the line first: none of their questions may grant it
            // again.
            let waiting = match of.number {
                Some(_) => Vec::new(),
                None => waiters.release(&of.key, &of.token, Keep::Place).await,
            };
            let ended = match store.end(&of).await? {
                // The store has not kept the place until now.
                Ended::Nothing if !waiting.is_empty() => Ended::Place,
                ended => ended,
            };
            match &ended {
                Ended::Lease(lease) => leases.ended(&of.key, lease, Why::Released),
                Ended::Nothing => leases.missed(&of),
                Ended::Place => (),
            }
            waiting.into_iter().for_each(WaitingRequest::cancel);
            // The place may have been that of a request which came meanwhile.
            if ended == Ended::Place {
                let late = waiters.release(&of.key, &of.token, Keep::Nothing).await;
                late.into_iter().for_each(WaitingRequest::cancel);
            }
            Ok::<_, StoreError>(ended)
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
        let Self { store, leases, .. } = self.clone();
        let call = async move {
            let taken = store.force_release(&key, named).await;
            for ended in taken.iter().flatten() {
                leases.ended(&key, ended, Why::Forced);
            }
            taken
        };
        Ok(self.hear_out(call).await?)
    }

    /// The status of a key, whether `token` holds it, and the first `most` claims of its line.
    pub(crate) async fn inspect(
        &self,
        key: &LockKey,
        token: Option<&LeaseToken>,
        most: usize,
    ) -> Result<LockStatus, LockError> {
        Ok(self.store.look(key, token, most).await?)
    }

    /// Returns whether the token of a claim has a lease of its key, which decides about the claim.
    pub(crate) async fn has_lease(&self, claim: &Claim) -> Result<bool, LockError> {
        let (verb, effect) = (Verb::TryAcquire, Effect::None); // The claim was not tried.
        let failed = |error| StoreError { verb, effect, ..error }.of_claim(claim.origin);
        let status = self.store.look(&claim.key, Some(&claim.token), 0).await;
        Ok(status.map_err(failed)?.mine == Some(true))
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
        // With one key more than the page has, there is a next one.
        let page = Page { prefixes, after, limit: limit + 1 };
        let mut locks = self.store.list(&page).await?;
        let more = locks.len() > limit;
        locks.truncate(limit);
        let cursor = locks.last().filter(|_| more).map(|last| last.key.to_string());
        Ok(Listing { locks, cursor })
    }

    /// The nodes of the store; empty if it does not count votes.
    pub(crate) fn nodes(&self) -> Vec<NodeReport> {
        self.store.about().nodes
    }

    /// The store's promises.
    pub fn guarantees(&self) -> Guarantees {
        self.store.about().guarantees
    }

    /// Guards a claim while it is acquired and answered: after a panic, a lease whose token the
    /// service made is undone, because no client has received it.
    pub fn answering(&self, claim: &Claim) -> Answering {
        Answering { owed: self.owed.clone(), claim: claim.clone() }
    }

    /// Waits in line, until this moment if it is given.
    pub(crate) fn enter(
        &self,
        claim: Claim,
        give_up_at: Option<Instant>,
    ) -> Result<Ticket, LockError> {
        Ticket::enter(self.waiters.clone(), claim, give_up_at)
    }

    /// The leases that this instance knows.
    pub(crate) fn leases(&self) -> &Arc<Leases> {
        &self.leases
    }

    /// Renews a lease, and notes what became of it.
    pub(crate) fn renew(
        &self,
        of: Target,
        ttl: Option<Ttl>,
    ) -> HeardOut<Result<Renewed, StoreError>> {
        let (store, leases) = (self.store.clone(), self.leases.clone());
        self.hear_out(async move {
            let renewed = store.renew(&of, ttl).await;
            match &renewed {
                Ok(Renewed::Lease(lease)) => leases.renewed(lease),
                Ok(Renewed::Lost) => leases.missed(&of),
                _ => (),
            }
            renewed
        })
    }

    /// Refreshes the lease of a hold. The lease is let go only after the answer.
    pub(crate) fn keep(
        &self,
        care: Arc<Mutex<Target>>,
        ttl: Ttl,
    ) -> HeardOut<Result<Renewed, StoreError>> {
        let locks = self.clone();
        self.hear_out(async move {
            let of = care.lock().await;
            locks.renew(of.clone(), Some(ttl)).await
        })
    }

    /// Lets go of the lease of a hold; retries until it would have expired anyway.
    pub(crate) fn let_go(&self, care: Arc<Mutex<Target>>, linger: Option<Ttl>, over_at: Instant) {
        let locks = self.clone();
        self.tasks.spawn(async move {
            let of = care.lock().await.last_word();
            let mut attempts = ATTEMPTS;
            while locks.last_word(&of, linger).await.is_err() && Instant::now() < over_at {
                attempts.pause().await;
            }
        });
    }

    async fn last_word(&self, of: &Target, linger: Option<Ttl>) -> Result<(), StoreError> {
        if linger.is_some() {
            return self.renew(of.clone(), linger).await.map(drop);
        }
        if let Ended::Lease(lease) = self.store.end(of).await? {
            self.leases.ended(&of.key, &lease, Why::Released);
        }
        Ok(())
    }

    /// The answer to a claim that has the key.
    fn won(&self, win: Win, claim: &Claim, waited: Duration) -> Acquired {
        if win.replaces.is_some() {
            self.leases.taken_over(&claim.token, &win.lease);
        }
        self.leases.waited(&win, waited);
        if win.lease.is_over() {
            return Acquired::Lost;
        }
        let grant = Grant { lease: win.lease, token: claim.token.clone(), waited };
        if win.fresh { Acquired::Granted(grant) } else { Acquired::Again(grant) }
    }

    fn hear_out<T: Send + 'static>(
        &self,
        call: impl Future<Output = T> + Send + 'static,
    ) -> HeardOut<T> {
        HeardOut::new(&self.tasks, call)
    }
}
