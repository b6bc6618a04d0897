//! The verbs over one store, for callers that may vanish at any moment.
//!
//! What it owns: that a call once sent is heard out, that what nobody received is taken back, and
//! that a draining instance takes nothing on. What is true of a lock is for the store to say.
//! Waiting in line will live here as the only loop: listen, ask the store, sleep.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio_util::task::TaskTracker;

use crate::lock::error::LockError;
use crate::lock::error::StoreError;
use crate::lock::heard_out::HeardOut;
use crate::lock::key::LockKey;
use crate::lock::lease::Claim;
use crate::lock::lease::Grant;
use crate::lock::lease::Holder;
use crate::lock::lease::Lease;
use crate::lock::lease::LockStatus;
use crate::lock::owed::Owed;
use crate::lock::store::Attempt;
use crate::lock::store::Guarantees;
use crate::lock::store::Page;
use crate::lock::store::Released;
use crate::lock::store::Store;
use crate::lock::time::Ttl;
use crate::lock::token::LeaseToken;

/// The lock service: the verbs, over one store.
#[derive(Clone)]
pub struct Locks {
    store: Arc<dyn Store>,
    tasks: TaskTracker,
    owed: Arc<Owed>,
    draining: Arc<AtomicBool>,
}

/// The answer to [`Locks::acquire`].
#[derive(Debug)]
pub enum Acquired {
    /// A new lease.
    Granted(Grant),
    /// The lease that the token had already.
    Again(Grant),
    /// Somebody else has the key.
    Held(LockStatus),
}

/// Several parts of the list of held keys as one: what a caller with these prefixes may see.
#[derive(Debug)]
pub struct Listing {
    /// The keys, in the order of their bytes, none twice.
    pub locks: Vec<LockStatus>,
    /// Where the next page begins, if there is one.
    pub cursor: Option<String>,
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Locks")
    }
}

impl Locks {
    /// The service over `store`.
    pub fn new(store: Arc<dyn Store>) -> Self {
        let tasks = TaskTracker::new();
        let owed = Arc::new(Owed::new(store.clone(), tasks.clone()));
        Self { store, tasks, owed, draining: Arc::default() }
    }

    /// Takes the key for the claim if it is free.
    ///
    /// # Errors
    ///
    /// [`LockError::Draining`] once [`Locks::drain`] was called; [`LockError::Store`] without an
    /// answer. A grant to a token of the service that may have happened all the same is taken
    /// back, by a task of its own.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives the claim up: the call to the store is heard out, and a grant
    /// to a token of the service is taken back. A token that the client chose keeps its lease.
    pub async fn acquire(&self, claim: Claim) -> Result<Acquired, LockError> {
        if self.draining.load(Ordering::Relaxed) {
            return Err(LockError::Draining);
        }
        let (store, owed, token) = (self.store.clone(), self.owed.clone(), claim.token.clone());
        let attempt = self.hear_out(async move {
            let attempt = store.try_acquire(&claim).await;
            owed.undelivered(claim, attempt)
        });
        Ok(match attempt.await.deliver()? {
            Attempt::Granted(lease) => Acquired::Granted(Grant { lease, token }),
            Attempt::Again(lease) => Acquired::Again(Grant { lease, token }),
            Attempt::Held(status) => Acquired::Held(status),
        })
    }

    /// Makes the lease of `token` last `ttl` from now, or as long as it was last asked for.
    /// `None`: the lease is lost.
    ///
    /// # Errors
    ///
    /// [`LockError::Store`] without an answer; it may be repeated.
    ///
    /// # Cancel safety
    ///
    /// The call to the store is heard out.
    pub async fn refresh(
        &self,
        key: LockKey,
        token: LeaseToken,
        ttl: Option<Ttl>,
    ) -> Result<Option<Lease>, LockError> {
        let store = self.store.clone();
        let call = self.hear_out(async move { store.refresh(&key, &token, ttl).await });
        Ok(call.await?)
    }

    /// Gives up what the token has of the key.
    ///
    /// # Errors
    ///
    /// [`LockError::Store`] without an answer; it may be repeated.
    ///
    /// # Cancel safety
    ///
    /// The call to the store is heard out: who sends a release and hangs up has released.
    pub async fn release(&self, key: LockKey, token: LeaseToken) -> Result<Released, LockError> {
        let store = self.store.clone();
        let call = self.hear_out(async move { store.release(&key, &token).await });
        Ok(call.await?)
    }

    /// Ends whoever holds the key; `None` if nobody did.
    ///
    /// # Errors
    ///
    /// [`LockError::Store`] without an answer; it may be repeated.
    ///
    /// # Cancel safety
    ///
    /// The call to the store is heard out.
    pub async fn force_release(&self, key: LockKey) -> Result<Option<Holder>, LockError> {
        let store = self.store.clone();
        let call = self.hear_out(async move { store.force_release(&key).await });
        Ok(call.await?)
    }

    /// Looks at a key, and whether `token` holds it.
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
    ) -> Result<LockStatus, LockError> {
        Ok(self.store.inspect(key, token).await?)
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
        let mut found = BTreeMap::new();
        for prefix in prefixes {
            let page = Page { prefix, after: after.clone(), limit: limit + 1 };
            let statuses = self.store.list(&page).await?;
            found.extend(statuses.into_iter().map(|status| (status.key.clone(), status)));
        }
        let more = found.len() > limit;
        let locks: Vec<_> = found.into_values().take(limit).collect();
        let cursor = locks.last().filter(|_| more).map(|last| last.key.to_string());
        Ok(Listing { locks, cursor })
    }

    /// What the store promises.
    pub fn guarantees(&self) -> Guarantees {
        self.store.guarantees()
    }

    /// Whether to send requests here: the store has answered once, and the end has not begun.
    pub fn ready(&self) -> bool {
        self.store.contacted() && !self.draining.load(Ordering::Relaxed)
    }

    /// Begins the end: from here on nothing is acquired. Leases stay.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Waits, at most `patience`, for the calls that go on without their callers, and for what
    /// is still to be taken back.
    ///
    /// # Cancel safety
    ///
    /// Stops waiting; the tasks go on.
    pub async fn settle(&self, patience: Duration) {
        self.tasks.close();
        if tokio::time::timeout(patience, self.tasks.wait()).await.is_err() {
            tracing::warn!(open = self.tasks.len(), "ending with store calls still open");
        }
    }

    fn hear_out<T: Send + 'static>(
        &self,
        call: impl Future<Output = T> + Send + 'static,
    ) -> HeardOut<T> {
        HeardOut::new(&self.tasks, call)
    }
}

/// What is missing from an answer, or the answer.
pub(crate) type Answer = Result<Attempt, StoreError>;
