//! The thread that changes table and log: it makes batches, and answers what is on disk.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::lock::error::Effect;
use crate::lock::table::{LeaseId, Table};
use crate::lock::time::{Clock, Timestamp};
use crate::lock::wakeup::{EndElsewhere, Wakeups};
use crate::lock::watched;
use crate::metrics::Metrics;
use crate::store::embedded::error::LogError;
use crate::store::embedded::log::Log;
use crate::store::embedded::queue::{Job, JobError, Queue};
use crate::store::embedded::settings::EmbeddedSettings;
use crate::store::embedded::tables::Change;
use crate::store::embedded::view::View;

/// The most calls that share one fsync: with more the gain is small and the first caller waits
/// long.
const MAX_BATCH: usize = 1_024;

/// The most leases that a batch ends because their time is over, beside those that its calls meet:
/// when many end in one moment, a call waits for these only.
const MAX_ENDS: usize = 256;

/// The longest lag of the clock on disk while keys are held: after a crash a lease gains at most
/// this much, and the time until the next batch.
const CLOCK_LAG: Duration = Duration::from_secs(5);

/// The interval of the search for abandoned lines.
const SWEEP_EVERY: Duration = Duration::from_secs(5);

/// The interval of the check that the file still has its name: twice within the second in which a
/// store without its file must have stopped.
const LOOK_EVERY: Duration = Duration::from_millis(400);

/// The pause between two attempts while the file cannot be used.
const PAUSE: Duration = Duration::from_millis(250);

/// The state that the committer shares with its callers.
pub(super) struct Shared {
    pub(super) queue: Queue,
    pub(super) view: View,
    pub(super) clock: Clock,
    pub(super) wakeups: Arc<Wakeups>,
}

/// The owner of the log, and the only writer of the table.
pub(super) struct Committer {
    log: Log,
    pub(super) shared: Arc<Shared>,
    settings: EmbeddedSettings,
    metrics: Arc<Metrics>,
    health: Health,
    /// The fault that the log has told, until a commit succeeds.
    told: Option<Arc<str>>,
    swept: Timestamp,
    looked: Instant,
    /// True if more leases may be over than the last batch has ended.
    more_are_over: bool,
}

enum Health {
    /// The table is what is on disk, and calls are served.
    Serving,
    /// The disk was full or the file gone at this moment; everything has to be read again.
    Waiting(Instant, JobError),
    /// A write failed in another way. Its effect is unknown, and a retry may report a false
    /// success, so nothing more is written.
    Failed(JobError),
}

impl Committer {
    /// Opens the log in `directory`, and continues from it.
    pub(super) fn open(
        directory: &Path,
        settings: EmbeddedSettings,
        metrics: Arc<Metrics>,
    ) -> Result<Self, LogError> {
        let (log, table, clock_on_disk) = Log::open(directory)?;
        let path = log.home.path().display();
        tracing::info!(held = table.len(), %path, "embedded store opened");
        metrics.embedded(table.len(), None);
        metrics.embedded_up(true);
        let shared = Arc::new(Shared {
            queue: Queue::default(),
            view: View::new(settings.rules(table), clock_on_disk),
            clock: Clock::starting_at(clock_on_disk),
            wakeups: Arc::default(),
        });
        Ok(Self {
            log,
            shared,
            settings,
            metrics,
            health: Health::Serving,
            told: None,
            swept: clock_on_disk,
            looked: Instant::now(),
            more_are_over: false,
        })
    }

    /// Serves until the queue is closed.
    pub(super) fn run(mut self) {
        while let Some(mut batch) = self.shared.queue.next(MAX_BATCH, self.patience()) {
            let outcome = self.serve(&mut batch);
            for job in batch {
                job.reply(outcome.clone());
            }
            let hints = self.shared.view.state().table.as_mut().map(Table::take_hints);
            for (key, ended) in hints.unwrap_or_default() {
                match ended {
                    Some(place) => {
                        let end = EndElsewhere { place, released: false };
                        self.shared.wakeups.ended(&key, end);
                    }
                    None => self.shared.wakeups.ring(&key),
                }
            }
        }
        if let Health::Serving = self.health {
            // With the clock on disk up to date, remaining leases last no longer than they must.
            let now = self.shared.clock.now();
            match self.commit(now) {
                Ok(()) => self.log.close(),
                Err(error) => tracing::warn!(
                    %error,
                    "cannot write the store's clock; leases may last longer after a restart"
                ),
            }
        }
    }

    /// The longest wait for a call.
    fn patience(&self) -> Duration {
        if self.more_are_over { Duration::ZERO } else { LOOK_EVERY }
    }

    fn serve(&mut self, batch: &mut [Box<dyn Job>]) -> Result<(), JobError> {
        self.recover()?;
        self.look().map_err(|error| self.wait(&error, Effect::None))?;
        let now = self.shared.clock.now();
        let changed = self.apply(batch, now);
        // Every answer is on disk first, even the end of a lease: a lease that was called lost must
        // not come back after a crash.
        if changed {
            let began = Instant::now();
            self.commit(now).or_else(|error| self.fail(&error))?;
            let held = self.shared.view.state().table.as_ref().map_or(0, |table| table.len());
            self.metrics.embedded(held, Some(began.elapsed().as_secs_f64()));
            // The commit may have taken long.
            self.look().map_err(|error| self.wait(&error, Effect::Unknown))?;
        }
        Ok(())
    }

    /// Runs a batch in memory. Returns true if there is something to write.
    fn apply(&mut self, batch: &mut [Box<dyn Job>], now: Timestamp) -> bool {
        let mut state = self.shared.view.state();
        let sweeps = now.left(self.swept) >= SWEEP_EVERY;
        let lag = now.left(state.clock);
        let held = state.change(|table| {
            self.more_are_over = table.expire(MAX_ENDS, now);
            if sweeps {
                table.sweep(now);
                self.swept = now;
            }
            for job in batch {
                job.run(table, now);
            }
            !table.is_empty()
        });
        !state.under_way.is_empty() || (lag >= CLOCK_LAG && held == Some(true))
    }

    fn commit(&mut self, now: Timestamp) -> Result<(), LogError> {
        let (changes, last_fencing_token) = {
            let state = self.shared.view.state();
            let Some(table) = &state.table else { return Ok(()) };
            let change = |((key, number), before): (&LeaseId, &Option<_>)| Change {
                key: key.clone(),
                before: before.clone(),
                after: table.entry(key, *number).cloned(),
            };
            let changes: Vec<_> = state.under_way.iter().map(change).collect();
            (changes, table.last_fencing_token())
        };
        self.log.commit(&changes, last_fencing_token, now)?;
        let mut state = self.shared.view.state();
        state.under_way.clear();
        state.clock = now;
        drop(state);
        if self.told.take().is_some() {
            tracing::info!("the store answers again");
        }
        Ok(())
    }

    /// Checks, if it is time, that the file is still there and still ours.
    fn look(&mut self) -> Result<(), LogError> {
        if self.looked.elapsed() < LOOK_EVERY {
            return Ok(());
        }
        self.log.home.check_place()?;
        self.looked = Instant::now();
        Ok(())
    }

    /// Handles a failed commit. The transaction is on disk whole or not at all; reading it tells
    /// which.
    fn fail(&mut self, error: &LogError) -> Result<(), JobError> {
        if !error.is_undone() {
            return Err(self.give_up(error));
        }
        let undone = self.wait(error, Effect::None);
        let before = self.log.commits;
        match self.read_again() {
            Ok(()) if self.log.commits > before => Ok(()),
            Ok(()) => Err(undone),
            Err(error) if error.may_pass() => Err(JobError { effect: Effect::Unknown, ..undone }),
            Err(error) => Err(self.give_up(&error)),
        }
    }

    /// Stops serving until the file can be read again.
    fn wait(&mut self, error: &LogError, effect: Effect) -> JobError {
        let known = JobError::new(effect, error.fault(), error.to_string());
        if self.told.as_ref() != Some(&known.reason) {
            if error.is_full() {
                tracing::error!(%error, "the disk is full; granting nothing until it has room");
            } else {
                tracing::error!(%error, "nothing is granted until the file can be used again");
            }
            self.told = Some(known.reason.clone());
        }
        self.metrics.embedded_up(false);
        self.shared.view.state().table = None;
        self.health = Health::Waiting(Instant::now(), known.clone());
        known
    }

    /// Stops writing for good, and makes the process end.
    fn give_up(&mut self, error: &LogError) -> JobError {
        watched::fail(format!(
            "the embedded store has failed; restart the service to read what is on disk: {error}"
        ));
        self.metrics.embedded_up(false);
        self.shared.view.state().table = None;
        let known = JobError::new(Effect::Unknown, error.fault(), error.to_string());
        self.health = Health::Failed(known.clone());
        known
    }

    /// Reads the file again after it could not be used, if it is time.
    fn recover(&mut self) -> Result<(), JobError> {
        // The calls of this batch were not tried.
        let untried = |known: &JobError| JobError { effect: Effect::None, ..known.clone() };
        let (since, known) = match &self.health {
            Health::Serving => return Ok(()),
            Health::Failed(known) => return Err(untried(known)),
            Health::Waiting(since, known) => (*since, untried(known)),
        };
        if since.elapsed() >= PAUSE {
            match self.read_again() {
                Ok(()) => {
                    self.metrics.embedded_up(true);
                    self.health = Health::Serving;
                    return Ok(());
                }
                Err(error) if error.may_pass() => {
                    self.health = Health::Waiting(Instant::now(), known.clone());
                }
                Err(error) => return Err(untried(&self.give_up(&error))),
            }
        }
        Err(known)
    }

    fn read_again(&mut self) -> Result<(), LogError> {
        let (table, _) = self.log.read()?;
        {
            let mut state = self.shared.view.state();
            state.table = Some(self.settings.rules(table));
            state.under_way.clear();
        }
        // The lines are gone with the old table: all claims join again.
        self.shared.wakeups.ring_all();
        Ok(())
    }
}
