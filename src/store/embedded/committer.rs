//! The thread that owns table and log: it makes batches, and answers what is safe.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;
use std::time::Instant;

use crate::lock::error::Effect;
use crate::lock::table::Table;
use crate::lock::time::Clock;
use crate::lock::time::Timestamp;
use crate::lock::wakeup::Wakeups;
use crate::metrics::Metrics;
use crate::store::embedded::log::Log;
use crate::store::embedded::log::LogError;

/// The most that shares one fsync: beyond it the gain is small and the first caller waits long.
const MAX_BATCH: usize = 1_024;

/// How far the clock on disk may lag behind while keys are held: after a crash a lease lasts at
/// most this much longer than it had left.
const CLOCK_LAG: Duration = Duration::from_secs(5);

/// How often the lines are looked through for those that nobody asks for any more.
const SWEEP_EVERY: Duration = Duration::from_secs(5);

/// How long nothing is tried after the disk was full.
const PAUSE_WHEN_FULL: Duration = Duration::from_millis(250);

/// An operation that waits for its batch.
pub(super) trait Job: Send {
    /// Does it on the table, in memory.
    fn run(&mut self, table: &mut Table, now: Timestamp);

    /// Answers it, once its batch is on disk, or not.
    fn reply(self: Box<Self>, outcome: Result<(), Failure>);
}

/// Why a batch is not on disk.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) effect: Effect,
    pub(super) reason: Arc<str>,
}

impl Failure {
    pub(super) fn new(effect: Effect, reason: impl Into<Arc<str>>) -> Self {
        Self { effect, reason: reason.into() }
    }
}

/// See the module.
pub(super) struct Committer {
    log: Log,
    table: Table,
    clock: Clock,
    clock_on_disk: Timestamp,
    queue: mpsc::Receiver<Box<dyn Job>>,
    wakeups: Arc<Wakeups>,
    metrics: Arc<Metrics>,
    state: State,
    swept: Timestamp,
}

enum State {
    /// The table is what is on disk, and what is asked is done.
    Serving,
    /// The disk was full; the table has to be read again, from this moment on.
    Full(Instant, Arc<str>),
    /// A write failed in another way. What the disk holds of it is unknown, and asking it to
    /// write the same again may report a success that is none, so nothing is written any more.
    Failed(Arc<str>),
}

impl Committer {
    /// Goes on from what the log holds.
    pub(super) fn new(
        log: Log,
        queue: mpsc::Receiver<Box<dyn Job>>,
        wakeups: Arc<Wakeups>,
        metrics: Arc<Metrics>,
    ) -> Result<Self, LogError> {
        let (table, clock_on_disk) = log.read()?;
        tracing::info!(held = table.len(), "the embedded store is open");
        metrics.embedded(table.len(), None);
        let clock = Clock::starting_at(clock_on_disk);
        let state = State::Serving;
        let swept = clock_on_disk;
        Ok(Self { log, table, clock, clock_on_disk, queue, wakeups, metrics, state, swept })
    }

    /// Serves until all who could ask are gone.
    pub(super) fn run(mut self) {
        while let Some(mut batch) = self.next_batch() {
            let outcome = self.serve(&mut batch);
            for job in batch {
                job.reply(outcome.clone());
            }
            for key in self.table.take_handed_on() {
                self.wakeups.ring(&key);
            }
        }
        if let State::Serving = self.state {
            // So that the leases that are left last no longer than they have to.
            let now = self.clock.now();
            if let Err(error) = self.commit(now) {
                tracing::warn!(%error, "the clock of the embedded store was not kept");
            }
        }
    }

    /// What was asked since the last batch; nothing if nobody asked for a while.
    fn next_batch(&self) -> Option<Vec<Box<dyn Job>>> {
        match self.queue.recv_timeout(CLOCK_LAG) {
            Ok(first) => {
                let more = self.queue.try_iter().take(MAX_BATCH - 1);
                Some(std::iter::once(first).chain(more).collect())
            }
            Err(mpsc::RecvTimeoutError::Timeout) => Some(Vec::new()),
            Err(mpsc::RecvTimeoutError::Disconnected) => None,
        }
    }

    fn serve(&mut self, batch: &mut [Box<dyn Job>]) -> Result<(), Failure> {
        self.recover()?;
        let now = self.clock.now();
        self.table.expire(now);
        if now.left(self.swept) >= SWEEP_EVERY {
            self.table.sweep(now);
            self.swept = now;
        }
        for job in batch {
            job.run(&mut self.table, now);
        }
        // Whatever is answered is on disk before, the end of a lease included: what was called
        // lost must not be found again after a crash.
        let lag = now.left(self.clock_on_disk);
        if self.table.has_changes() || (lag >= CLOCK_LAG && !self.table.is_empty()) {
            let began = Instant::now();
            self.commit(now).or_else(|error| self.fail(&error))?;
            self.metrics.embedded(self.table.len(), Some(began.elapsed().as_secs_f64()));
        }
        Ok(())
    }

    fn commit(&mut self, now: Timestamp) -> Result<(), LogError> {
        let changes = self.table.take_changes();
        self.log.commit(&self.table, &changes, now)?;
        self.clock_on_disk = now;
        Ok(())
    }

    /// Decides what a failed commit means. The transaction is on disk whole or not at all, so a
    /// look tells what its callers are answered.
    fn fail(&mut self, error: &LogError) -> Result<(), Failure> {
        let reason: Arc<str> = error.to_string().into();
        if !error.is_full() {
            return Err(self.give_up(error));
        }
        tracing::error!(%error, "the disk is full: nothing is granted until it has room");
        self.state = State::Full(Instant::now(), reason.clone());
        match self.read_again() {
            Ok(true) => Ok(()),
            Ok(false) => Err(Failure::new(Effect::None, reason)),
            Err(error) if error.may_pass() => Err(Failure::new(Effect::Unknown, reason)),
            Err(error) => Err(self.give_up(&error)),
        }
    }

    /// Writes nothing any more.
    fn give_up(&mut self, error: &LogError) -> Failure {
        tracing::error!(%error, "the embedded store has failed: look after the disk and restart");
        let reason: Arc<str> = error.to_string().into();
        self.state = State::Failed(reason.clone());
        Failure::new(Effect::Unknown, reason)
    }

    /// Makes the table what is on disk again after the disk was full, if it is time.
    fn recover(&mut self) -> Result<(), Failure> {
        let (since, reason) = match &self.state {
            State::Serving => return Ok(()),
            State::Failed(reason) => return Err(Failure::new(Effect::None, reason.clone())),
            State::Full(since, reason) => (*since, reason.clone()),
        };
        if since.elapsed() >= PAUSE_WHEN_FULL {
            match self.read_again() {
                Ok(_) => {
                    self.state = State::Serving;
                    return Ok(());
                }
                Err(error) if error.may_pass() => {
                    self.state = State::Full(Instant::now(), reason.clone());
                }
                // What is asked now was not tried.
                Err(error) => return Err(Failure { effect: Effect::None, ..self.give_up(&error) }),
            }
        }
        Err(Failure::new(Effect::None, reason))
    }

    /// Reads what is on disk, and says whether the last commit is there.
    fn read_again(&mut self) -> Result<bool, LogError> {
        let attempted = self.log.attempted();
        self.log.reopen()?;
        let (table, _) = self.log.read()?;
        self.table = table;
        self.wakeups.ring_all(); // The lines are gone with the old table: all join again.
        Ok(self.log.committed() == attempted)
    }
}
