//! The verbs over one store, for callers that may vanish at any moment.
//!
//! It completes every call once sent, undoes grants that no client received, and refuses claims
//! while it drains (`shutdown.rs`). The store decides who holds a lock; the waiting loop is in
//! `waiting.rs`.

mod ends;
mod shutdown;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::lock::detach_on_drop::DetachOnDrop;
use crate::lock::error::{Effect, LockError, StoreError, Verb};
use crate::lock::key::LockKey;
use crate::lock::lease::{Acquired, Claim, Grant, Holder, LockStatus};
use crate::lock::leases::{Leases, ObserveHeld, Why};
use crate::lock::prefixes::Prefixes;
use crate::lock::store::{
    About, Answer, Ask, Condition, Ended, Guarantees, Keep, Listing, Page, Renewed, Store, Target,
    Win,
};
use crate::lock::ticket::Ticket;
use crate::lock::time::Ttl;
use crate::lock::token::{FencingToken, LeaseToken};
use crate::lock::turns::Turns;
use crate::lock::undo_queue::{ATTEMPTS, Answering, Delivery, UndoQueue};
use crate::lock::waiting::{WaitLimits, Waiters};
use crate::lock::waiting_request::WaitingRequest;

/// The lock service: the verbs over one store.
#[derive(Clone)]
pub struct Locks {
    store: Arc<dyn Store>,
    tasks: TaskTracker,
    undos: Arc<UndoQueue>,
    turns: Arc<Turns>,
    pub(super) waiters: Arc<Waiters>,
    leases: Arc<Leases>,
}

/// The last word of a hold about its lease, which nobody keeps from then on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LastWord {
    /// It ends.
    End,
    /// It ends when this time has passed.
    Linger(Ttl),
    /// It ends when it would have.
    Stay,
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
        let tasks = TaskTracker::new();
        let turns = Arc::new(Turns::default());
        let leases = Arc::new(Leases::new(store.about().shared, prefixes, observe));
        let undos = Arc::new(UndoQueue::new(store.clone(), leases.clone(), tasks.clone()));
        let asks = (store.clone(), turns.clone());
        let undoing = undos.clone();
        let waiters = Arc::new(Waiters::new(asks, undoing, tasks.clone(), limits));
        Self { store, tasks, undos, turns, waiters, leases }
    }

    /// Acquires the key for the claim, waiting in line for at most `patience` if it is held.
    ///
    /// # Errors
    ///
    /// [`LockError::Draining`] after [`Locks::drain`], but for a token that has a lease;
    /// [`LockError::TooManyWaiters`] if there is no room to wait; [`LockError::WaitCancelled`] if
    /// the claim was released; [`LockError::Superseded`] if a newer request of it waits;
    /// [`LockError::Store`] without an answer. A possible grant to a token
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
        match &first {
            Acquired::Held(status, _) if may_wait(&claim, status) && !patience.is_zero() => (),
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
            Answer::Lost(number) => Acquired::Lost(number),
            Answer::Cancelled => return Err(LockError::WaitCancelled(began.elapsed())),
            Answer::Superseded | Answer::Waiting(_) => {
                return Err(LockError::Superseded(began.elapsed()));
            }
        })
    }

    /// Acquires the key if it is free and no claim is ahead.
    async fn try_acquire(&self, claim: Claim) -> Result<Acquired, LockError> {
        Ok(match self.ask(claim.clone()).await?.hand_over()? {
            Answer::Won(win) => self.won(win, &claim, Duration::ZERO),
            Answer::Held(status) => Acquired::Held(status, Duration::ZERO),
            Answer::Lost(number) => Acquired::Lost(number),
            Answer::Superseded | Answer::Cancelled | Answer::Waiting(_) => {
                return Err(LockError::Superseded(Duration::ZERO));
            }
        })
    }

    /// Asks for a key that may be free, as [`Locks::try_acquire`]; the answer is not handed over
    /// yet.
    pub(crate) async fn ask(&self, claim: Claim) -> Result<Delivery, LockError> {
        if self.drains() && !self.has_lease_at_last(&claim).await? {
            return Err(LockError::Draining);
        }
        let store = self.store.clone();
        let undos = self.undos.clone();
        let turn = self.turns.take(&claim).await;
        let attempt = async move {
            let asked = Instant::now();
            let answer = store.ask(&claim, Ask::Once(None)).await;
            undos.deliver((&claim, turn), [asked, Instant::now()], answer)
        };
        Ok(self.detach_on_drop(attempt).await)
    }

    /// The number of requests in line.
    pub fn waiting(&self) -> usize {
        self.waiters.len()
    }

    /// Makes a lease last for `ttl` from now, or for its last TTL, if that is longer than it would.
    ///
    /// # Errors
    ///
    /// [`LockError::Store`] without an answer; the call may be repeated.
    ///
    /// # Cancel safety
    ///
    /// The store call is completed.
    pub async fn refresh(&self, of: Target, ttl: Option<Ttl>) -> Result<Renewed, LockError> {
        Ok(match self.renew(of, ttl).await? {
            Renewed::Lease(lease) if lease.is_over() => Renewed::Lost(None),
            renewed => renewed,
        })
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
            // Its waiting request leaves the line first: no question for it may grant it again.
            let waiting = match of.number {
                Some(_) => None,
                None => waiters.release(&of.key, &of.token, Keep::Place).await,
            };
            let ended = match store.end(&of).await? {
                // The store has not kept the place until now.
                Ended::Nothing(_) if waiting.is_some() => Ended::Place,
                ended => ended,
            };
            match &ended {
                Ended::Lease(lease) => leases.ended(&of.key, lease, Why::Released),
                Ended::Nothing(_) => leases.missed(&of),
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
        Ok(self.detach_on_drop(call).await?)
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
        Ok(self.detach_on_drop(call).await?)
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

    /// Returns true if a request of the claim waits: a new one takes its place.
    pub(crate) fn is_in_line(&self, claim: &Claim) -> bool {
        self.waiters.has(claim)
    }

    /// Returns whether the token of a claim has a lease of its key, which decides about the claim.
    pub(crate) async fn has_lease(&self, claim: &Claim) -> Result<bool, LockError> {
        let (verb, effect) = (Verb::TryAcquire, Effect::None); // The claim was not tried.
        let failed = |error| StoreError { verb, effect, ..error }.of_claim(claim.origin);
        let looked = self.store.look(&claim.key, Some(&claim.token), 0).await.map_err(failed)?;
        looked.mine.ok_or_else(|| failed(StoreError::unsure(verb)).into())
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
        let mut listing = self.store.list(&page).await?;
        let more = listing.locks.len() > limit;
        listing.locks.truncate(limit);
        let last = listing.locks.last().filter(|_| more);
        listing.cursor = last.map(|last| last.key.to_string());
        Ok(listing)
    }

    /// The store, as it describes itself.
    pub(crate) fn about(&self) -> About {
        self.store.about()
    }

    /// The store's promises.
    pub fn guarantees(&self) -> Guarantees {
        self.store.about().guarantees
    }

    /// Guards a claim while it is acquired and answered: after a panic, a lease whose token the
    /// service made is undone, because no client has received it.
    pub fn answering(&self, claim: &Claim) -> Answering {
        Answering { undos: self.undos.clone(), claim: claim.clone() }
    }

    /// Undoes whatever the claim's token has or may get, if the service made that token.
    pub(crate) fn undo(&self, claim: &Claim) {
        self.undos.undo(claim);
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

    /// Renews a lease, and notes what became of it. One that was over before its answer is renewed
    /// once more: that answer has its end, or a longer lease.
    pub(crate) fn renew(
        &self,
        of: Target,
        ttl: Option<Ttl>,
    ) -> DetachOnDrop<Result<Renewed, StoreError>> {
        let store = self.store.clone();
        let leases = self.leases.clone();
        self.detach_on_drop(async move {
            let came_late = |renewed: &Result<Renewed, _>| {
                matches!(renewed, Ok(Renewed::Lease(lease)) if lease.came_late())
            };
            let mut renewed = store.renew(&of, ttl).await;
            if came_late(&renewed) {
                renewed = store.renew(&of, ttl).await;
            }
            if came_late(&renewed) {
                renewed = Err(StoreError::late(of.verb(Verb::Refresh)));
            }
            match &renewed {
                Ok(Renewed::Lease(lease)) => leases.renewed(lease),
                Ok(Renewed::Lost(_)) => leases.missed(&of),
                _ => (),
            }
            renewed
        })
    }

    /// Speaks the last word of a hold; retries until its lease would have expired anyway.
    pub(crate) fn let_go(&self, of: Target, word: LastWord, over_at: Instant) -> JoinHandle<()> {
        let locks = self.clone();
        let of = of.only(Condition::LetGo { grants: false });
        self.tasks.spawn(async move {
            let mut attempts = ATTEMPTS;
            while locks.last_word(&of, word).await.is_err() && Instant::now() < over_at {
                attempts.pause().await;
            }
        })
    }

    async fn last_word(&self, of: &Target, word: LastWord) -> Result<(), StoreError> {
        match word {
            LastWord::Linger(ttl) => self.renew(of.clone(), Some(ttl)).await.map(drop),
            LastWord::Stay => self.renew(of.clone(), None).await.map(drop),
            LastWord::End => {
                if let Ended::Lease(lease) = self.store.end(of).await? {
                    self.leases.ended(&of.key, &lease, Why::Disconnected);
                }
                Ok(())
            }
        }
    }

    /// The answer to a claim that has the key.
    fn won(&self, win: Win, claim: &Claim, waited: Duration) -> Acquired {
        self.leases.waited(&win, waited);
        if win.lease.is_over() {
            return Acquired::Lost(None);
        }
        let grant = Grant { lease: win.lease, token: claim.token.clone(), waited };
        if win.fresh { Acquired::Granted(grant) } else { Acquired::Again(grant) }
    }

    fn detach_on_drop<T: Send + 'static>(
        &self,
        call: impl Future<Output = T> + Send + 'static,
    ) -> DetachOnDrop<T> {
        DetachOnDrop::new(&self.tasks, call)
    }
}

/// Returns true if a refused claim may wait: one that names a lease never does, and two holders that
/// waited for more of the key would wait for each other.
pub(crate) fn may_wait(claim: &Claim, refusal: &LockStatus) -> bool {
    claim.named.is_none() && refusal.mine != Some(true)
}
