//! The embedded store: a [`Table`] in memory, with every change on disk before its answer.
//!
//! One thread, the committer, changes the table and the log. It takes a batch of waiting calls,
//! applies them to the table, writes the changes in one transaction, and answers: the callers of a
//! batch share one fsync. Reads do not wait for the disk. The rules are in [`Table`].

mod call;
mod committer;
mod error;
mod home;
mod log;
mod note;
mod queue;
mod row;
mod settings;
mod tables;
mod view;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use std::time::Duration;

use async_trait::async_trait;

use crate::lock::error::{Effect, StoreError, Verb};
use crate::lock::key::LockKey;
use crate::lock::lease::{Claim, Holder, LockStatus};
use crate::lock::slots::Slots;
use crate::lock::store::{
    About, Answer, Ask, Condition, Ended, Guarantees, Keep, Listing, Page, Renewed, Store, Target,
    Win,
};
use crate::lock::table::Table;
use crate::lock::time::{Timestamp, Ttl, wall_clock_micros};
use crate::lock::token::{FencingToken, LeaseToken};
use crate::lock::wakeup::Wakeup;
use crate::lock::watched;
use crate::metrics::Metrics;
use crate::store::embedded::committer::{Committer, Shared};
use crate::store::embedded::error::LogError;
use crate::store::embedded::queue::Order;
use crate::store::embedded::view::Seen;

pub use crate::store::embedded::settings::EmbeddedSettings;

/// The longest sleep of a waiter: hints are not lost within a process, so this only limits a bug.
const ASK_EVERY: Duration = Duration::from_secs(5);

/// Added to the end of a lease, where a question would come a moment too early.
const PAST_THE_END: Duration = Duration::from_millis(1);

/// The time that a read waits until the end of a lease is on disk; a healthy disk takes less. Then
/// it returns what is on disk: a lease with no time left.
const LOOK_PATIENCE: Duration = Duration::from_millis(250);

/// The time that a shutdown waits for the last commit.
const LAST_COMMIT: Duration = Duration::from_secs(1);

/// The year 2100. A wall clock beyond it is wrong, and would use up the fencing tokens.
const LATEST_CLOCK: u64 = 4_102_444_800_000_000;

const GUARANTEES: Guarantees = Guarantees {
    store: "embedded",
    order: "first come, first served, among waiting requests",
    fencing: "rises with every lease, also after restarts, crashes and clock steps",
    survives: "crash and restart of the process: every answered change is on disk; not the loss of \
               the disk",
    sharing: "up to 1 000 holders a key",
    most_slots: Slots::MOST,
    forced_by_number: false,
};

/// A store in its own directory, for one process at a time.
pub struct EmbeddedStore {
    shared: Arc<Shared>,
    command_timeout: Duration,
    /// Disconnected when the committer ends.
    ended: Mutex<mpsc::Receiver<()>>,
}

impl EmbeddedStore {
    /// Opens the store in `directory`, which is created if missing.
    ///
    /// # Errors
    ///
    /// One sentence if the directory cannot be used, is used by another process, or has a damaged
    /// file.
    pub fn open(
        directory: &Path,
        settings: EmbeddedSettings,
        metrics: Arc<Metrics>,
    ) -> Result<Self, OpenError> {
        let command_timeout = settings.command_timeout;
        let committer = Committer::open(directory, settings, metrics)?;
        let shared = committer.shared.clone();
        let (ending, ended) = mpsc::channel::<()>();
        let queue = shared.clone();
        std::thread::Builder::new()
            .name("committer".into())
            .spawn(move || {
                let _ending = ending; // Dropped last.
                if catch_unwind(AssertUnwindSafe(|| committer.run())).is_err() {
                    watched::fail("the committer of the embedded store panicked".to_owned());
                }
                queue.queue.abandon();
            })
            .map_err(LogError::from)?;
        Ok(Self { shared, command_timeout, ended: Mutex::new(ended) })
    }

    async fn call<T: Send + 'static>(
        &self,
        verb: Verb,
        op: impl FnOnce(&mut Table, Timestamp) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        self.shared.call(verb, Order::InTurn, self.command_timeout, op).await
    }

    /// Returns what was seen, or asks the committer if a part of it has expired meanwhile.
    async fn seen<T: Send + 'static>(
        &self,
        verb: Verb,
        seen: Option<Seen<T>>,
        look: impl FnOnce(&mut Table, Timestamp) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        let unknown = || StoreError {
            verb,
            effect: Effect::None,
            fault: "the disk failed",
            reason: "what is on disk cannot be read at the moment".into(),
        };
        let Seen { on_disk, current } = seen.ok_or_else(unknown)?;
        if current {
            return Ok(on_disk);
        }
        let looked = self.shared.call(verb, Order::InTurn, LOOK_PATIENCE, look).await;
        Ok(looked.unwrap_or(on_disk))
    }
}

impl Drop for EmbeddedStore {
    /// Waits for calls already made to be on disk, but not for a disk that does not respond: the
    /// remaining calls were not answered.
    fn drop(&mut self) {
        self.shared.queue.close();
        let ended = self.ended.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Err(mpsc::RecvTimeoutError::Timeout) = ended.recv_timeout(LAST_COMMIT) {
            tracing::warn!("the disk does not respond; shutting down without the last commit");
        }
    }
}

/// The reason why the store cannot be opened.
#[derive(Debug, thiserror::Error)]
#[error(transparent)]
pub struct OpenError(#[from] LogError);

fn used_up(verb: Verb) -> StoreError {
    let reason = "the fencing tokens are used up";
    StoreError { verb, effect: Effect::None, fault: "the store failed", reason: reason.into() }
}

/// The proposed fencing token; 0 if the wall clock is implausible.
fn proposal() -> u64 {
    let now = wall_clock_micros();
    if now < LATEST_CLOCK { now } else { 0 }
}

/// The end of the lease that a token has of a key.
fn ends_at(table: &Table, key: &LockKey, token: &LeaseToken) -> Option<Timestamp> {
    table.entry_of(key, token).map(|entry| entry.ends_at)
}

#[async_trait]
impl Store for EmbeddedStore {
    async fn ask(&self, claim: &Claim, ask: Ask) -> Result<Answer, StoreError> {
        let verb = match ask {
            Ask::Once(_) => Verb::TryAcquire,
            Ask::InLine(_) => Verb::WaitTurn,
        };
        let origin = claim.origin;
        let claim = claim.clone();
        let asked = self.call(verb, move |table, now| {
            let answer = table.ask(&claim, ask, now, proposal());
            (answer, ends_at(table, &claim.key, &claim.token))
        });
        let (answer, ends_at) = asked.await.map_err(|error| error.of_claim(origin))?;
        Ok(match answer.ok_or_else(|| used_up(verb))? {
            Answer::Won(win) => {
                let lease = self.shared.told(win.lease, ends_at);
                if lease.came_late() {
                    return Err(StoreError::late(verb));
                }
                Answer::Won(Win { lease, ..win })
            }
            Answer::Waiting(mut waiting) => {
                waiting.recheck_after = waiting.recheck_after.min(ASK_EVERY) + PAST_THE_END;
                Answer::Waiting(waiting)
            }
            refused => refused,
        })
    }

    async fn renew(&self, of: &Target, ttl: Option<Ttl>) -> Result<Renewed, StoreError> {
        let verb = of.verb(Verb::Refresh);
        let of = of.clone();
        let asked = self.call(verb, move |table, now| {
            let renewed = table.renew(&of, ttl, now);
            (renewed, ends_at(table, &of.key, &of.token))
        });
        Ok(match asked.await? {
            (Renewed::Lease(lease), ends_at) => Renewed::Lease(self.shared.told(lease, ends_at)),
            (lost, _) => lost,
        })
    }

    async fn end(&self, of: &Target) -> Result<Ended, StoreError> {
        // An undo runs after all earlier calls with the token: they have run, or were withdrawn.
        let order = match of.only {
            Condition::Unheard(_) | Condition::Ever => Order::First,
            Condition::Any | Condition::Kept | Condition::LetGo { .. } => Order::InTurn,
        };
        let verb = of.verb(Verb::Release);
        let of = of.clone();
        let end = move |table: &mut Table, now| table.end(&of, now);
        self.shared.call(verb, order, self.command_timeout, end).await
    }

    async fn leave(&self, key: &LockKey, claims: &[(LeaseToken, Keep)]) -> Result<(), StoreError> {
        let (key, claims) = (key.clone(), claims.to_vec());
        self.call(Verb::Leave, move |table, now| table.leave(&key, &claims, now)).await
    }

    fn listen(&self, key: &LockKey) -> Wakeup {
        self.shared.wakeups.listen(key)
    }

    async fn force_release(
        &self,
        key: &LockKey,
        named: Option<FencingToken>,
    ) -> Result<Vec<Holder>, StoreError> {
        let key = key.clone();
        let force = move |table: &mut Table, now| table.force_release(&key, named, now);
        self.call(Verb::ForceRelease, force).await
    }

    async fn look(
        &self,
        key: &LockKey,
        token: Option<&LeaseToken>,
        most: usize,
    ) -> Result<LockStatus, StoreError> {
        let seen = self.shared.view.inspect(key, token, most, self.shared.clock.now());
        let (key, token) = (key.clone(), token.cloned());
        let look = move |table: &mut Table, now| table.look(&key, (token.as_ref(), most), now);
        self.seen(Verb::Inspect, seen, look).await
    }

    async fn list(&self, page: &Page) -> Result<Listing, StoreError> {
        let seen = self.shared.view.list(page, self.shared.clock.now());
        let page = page.clone();
        let locks = self.seen(Verb::List, seen, move |table, now| table.list(&page, now)).await?;
        Ok(Listing::complete(locks))
    }

    fn contacted(&self) -> Result<(), String> {
        Ok(())
    }

    fn about(&self) -> About {
        About { guarantees: GUARANTEES, shared: false, nodes: Vec::new(), began_empty: None }
    }
}
