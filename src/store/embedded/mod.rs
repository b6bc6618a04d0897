//! The embedded store: [`Table`] in memory, every change of it on disk before it is answered.
//!
//! One thread owns the table and the log. It takes what has been asked meanwhile, up to a batch,
//! applies it to the table, writes what changed in one transaction, and answers: the callers of a
//! batch share one fsync. Whatever the rules say is in [`Table`]; this is only its keeper.

mod committer;
mod file;
mod log;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::oneshot;

use crate::lock::error::Effect;
use crate::lock::error::StoreError;
use crate::lock::error::Verb;
use crate::lock::key::LockKey;
use crate::lock::lease::Claim;
use crate::lock::lease::Holder;
use crate::lock::lease::Holding;
use crate::lock::lease::Lease;
use crate::lock::lease::LockStatus;
use crate::lock::store::Attempt;
use crate::lock::store::Guarantees;
use crate::lock::store::Keep;
use crate::lock::store::Kept;
use crate::lock::store::Page;
use crate::lock::store::Released;
use crate::lock::store::Store;
use crate::lock::store::Turn;
use crate::lock::table::Table;
use crate::lock::time::Timestamp;
use crate::lock::time::Ttl;
use crate::lock::time::wall_clock_micros;
use crate::lock::token::FencingToken;
use crate::lock::token::LeaseToken;
use crate::lock::wakeup::Wakeup;
use crate::lock::wakeup::Wakeups;
use crate::metrics::Metrics;
use crate::store::embedded::committer::Committer;
use crate::store::embedded::committer::Failure;
use crate::store::embedded::committer::Job;
use crate::store::embedded::log::Log;
use crate::store::embedded::log::LogError;

/// How long a waiter sleeps at most: a hint cannot be lost within a process, so this only bounds
/// what a fault of our own could do.
const ASK_EVERY: Duration = Duration::from_secs(5);

/// A question at the very end of a lease would come a moment too early.
const PAST_THE_END: Duration = Duration::from_millis(1);

/// A store in a directory of its own, for one process at a time.
pub struct EmbeddedStore {
    jobs: Option<mpsc::Sender<Box<dyn Job>>>,
    committer: Option<JoinHandle<()>>,
    wakeups: Arc<Wakeups>,
}

impl EmbeddedStore {
    /// Opens the store in `directory`, which is made if it is not there.
    ///
    /// # Errors
    ///
    /// One sentence if the directory cannot be used, if another process uses it, or if what is in
    /// it cannot be read.
    pub fn open(
        directory: &Path,
        position_kept: Ttl,
        metrics: Arc<Metrics>,
    ) -> Result<Self, OpenError> {
        let log = Log::open(directory, position_kept)?;
        let (jobs, queue) = mpsc::channel();
        let wakeups = Arc::new(Wakeups::default());
        let committer = Committer::new(log, queue, wakeups.clone(), metrics)?;
        let committer = std::thread::Builder::new()
            .name("committer".into())
            .spawn(move || committer.run())
            .map_err(LogError::from)?;
        Ok(Self { jobs: Some(jobs), committer: Some(committer), wakeups })
    }

    /// Has `op` done on the table, and answered once it is on disk.
    async fn call<T: Send + 'static>(
        &self,
        verb: Verb,
        op: impl FnOnce(&mut Table, Timestamp) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        let (reply, answer) = oneshot::channel();
        let gone = || Failure::new(Effect::Unknown, "the committer has ended");
        if let Some(jobs) = &self.jobs {
            // A committer that is gone has dropped the reply, which is seen below.
            let _ = jobs.send(Box::new(Call { op: Some(op), answer: None, reply }));
        }
        answer.await.unwrap_or_else(|_| Err(gone())).map_err(|failure| StoreError {
            verb,
            effect: failure.effect,
            reason: failure.reason.to_string().into(),
        })
    }
}

impl Drop for EmbeddedStore {
    /// Waits for what was asked to be on disk.
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(committer) = self.committer.take() {
            let _ = committer.join();
        }
    }
}

impl fmt::Debug for EmbeddedStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("EmbeddedStore")
    }
}

/// Why the store cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct OpenError(#[from] LogError);

fn used_up(verb: Verb) -> StoreError {
    StoreError { verb, effect: Effect::None, reason: "the fencing tokens are used up".into() }
}

/// An operation on its way through the committer.
struct Call<T, F> {
    op: Option<F>,
    answer: Option<T>,
    reply: oneshot::Sender<Result<T, Failure>>,
}

impl<T: Send, F: FnOnce(&mut Table, Timestamp) -> T + Send> Job for Call<T, F> {
    fn run(&mut self, table: &mut Table, now: Timestamp) {
        self.answer = self.op.take().map(|op| op(table, now));
    }

    fn reply(self: Box<Self>, outcome: Result<(), Failure>) {
        let Self { answer, reply, .. } = *self;
        let never_ran = || Failure::new(Effect::None, "the operation did not run");
        // The caller may be gone; Locks hears every call out, so then nobody needs the answer.
        let _ = reply.send(outcome.and_then(|()| answer.ok_or_else(never_ran)));
    }
}

#[async_trait]
impl Store for EmbeddedStore {
    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, StoreError> {
        let claim = claim.clone();
        let granted = self.call(Verb::TryAcquire, move |table, now| {
            table.try_acquire(&claim, now, wall_clock_micros())
        });
        granted.await?.ok_or_else(|| used_up(Verb::TryAcquire))
    }

    async fn wait_turn(&self, claim: &Claim, _: Option<u64>) -> Result<Turn, StoreError> {
        let claim = claim.clone();
        let asked = self.call(Verb::WaitTurn, move |table, now| {
            table.wait_turn(&claim, now, wall_clock_micros())
        });
        let mut turn = asked.await?.ok_or_else(|| used_up(Verb::WaitTurn))?;
        if let Turn::Waiting(waiting) = &mut turn {
            waiting.recheck_after = waiting.recheck_after.min(ASK_EVERY) + PAST_THE_END;
        }
        Ok(turn)
    }

    async fn leave(&self, key: &LockKey, claims: &[(LeaseToken, Keep)]) -> Result<(), StoreError> {
        let (key, claims) = (key.clone(), claims.to_vec());
        self.call(Verb::Leave, move |table, now| table.leave(&key, &claims, now)).await
    }

    fn listen(&self, key: &LockKey) -> Wakeup {
        self.wakeups.listen(key)
    }

    async fn refresh(
        &self,
        key: &LockKey,
        token: &LeaseToken,
        named: Option<FencingToken>,
        ttl: Option<Ttl>,
    ) -> Result<Option<Lease>, StoreError> {
        let (key, token) = (key.clone(), token.clone());
        self.call(Verb::Refresh, move |table, now| table.refresh(&key, (&token, named), ttl, now))
            .await
    }

    async fn keep(&self, holding: &Holding, ttl: Ttl) -> Result<Kept, StoreError> {
        let holding = holding.clone();
        self.call(Verb::Keep, move |table, now| table.keep(&holding, ttl, now)).await
    }

    async fn let_go(&self, holding: &Holding, linger: Option<Ttl>) -> Result<(), StoreError> {
        let holding = holding.clone();
        self.call(Verb::LetGo, move |table, now| table.let_go(&holding, linger, now)).await
    }

    async fn release(
        &self,
        key: &LockKey,
        token: &LeaseToken,
        named: Option<FencingToken>,
    ) -> Result<Released, StoreError> {
        let (key, token) = (key.clone(), token.clone());
        self.call(Verb::Release, move |table, now| table.release(&key, (&token, named), now)).await
    }

    async fn undo(&self, key: &LockKey, token: &LeaseToken) -> Result<(), StoreError> {
        // Calls are done in the order in which they were sent: nothing earlier is still to come.
        self.release(key, token, None).await.map(|_| ())
    }

    async fn force_release(&self, key: &LockKey) -> Result<Option<Holder>, StoreError> {
        let key = key.clone();
        self.call(Verb::ForceRelease, move |table, now| table.force_release(&key, now)).await
    }

    async fn inspect(
        &self,
        key: &LockKey,
        token: Option<&LeaseToken>,
    ) -> Result<LockStatus, StoreError> {
        let (key, token) = (key.clone(), token.cloned());
        self.call(Verb::Inspect, move |table, now| table.inspect(&key, token.as_ref(), now)).await
    }

    async fn list(&self, page: &Page) -> Result<Vec<LockStatus>, StoreError> {
        let page = page.clone();
        self.call(Verb::List, move |table, now| table.list(&page, now)).await
    }

    fn contacted(&self) -> bool {
        true
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees {
            store: "embedded",
            order: "first come, first served, among those who wait",
            fencing: "rises with every lease, over restarts, crashes and clock steps",
            survives: "crash and restart of the process: every answered change is on disk; \
                       not the loss of the disk",
        }
    }
}
