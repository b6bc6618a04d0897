//! The state of this instance for the dashboard: counts of answers, and a look at the store that
//! all dashboards share. Nothing is looked at while no dashboard is open.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::time::timeout;
use uuid::Uuid;

use crate::lock::error::{LockError, chain};
use crate::lock::key::LockKey;
use crate::lock::locks::Locks;
use crate::metrics::Counted;

/// The age of a look at the store after which the next dashboard looks again.
const LOOK_EVERY: Duration = Duration::from_millis(900);

/// The longest look at the store, and at keys whose leases should have ended.
const PATIENCE: Duration = Duration::from_secs(1);

/// The keys that are looked at with the store.
const KEYS_AT_ONCE: usize = 32;

/// The key that is looked at; nobody has to hold it.
const PROBE: &str = "lockkeeper/dashboard";

/// Refusals are counted for five minutes, in steps of ten seconds.
const STEP: Duration = Duration::from_secs(10);
const STEPS: u32 = 30;

/// The writes whose times are remembered.
const WRITES: usize = 64;

/// The most characters of a cause.
const SHOWN_CAUSE_CHARS: usize = 300;

/// The state of this instance.
#[derive(Debug)]
pub struct Pulse {
    instance: String,
    run: String,
    began: Instant,
    tally: Mutex<PulseTally>,
    look: tokio::sync::Mutex<Option<(Instant, StoreLook)>>,
    probe: LockKey,
    pub(super) streams: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct PulseTally {
    granted: u64,
    refused: u64,
    /// The steps with refusals, and how many.
    steps: VecDeque<(u32, u64)>,
    /// Milliseconds of the last writes.
    writes: VecDeque<f64>,
    failing: Option<String>,
}

/// The counts since the start.
#[derive(Debug)]
pub(super) struct Counts {
    pub(super) granted: u64,
    pub(super) refused: u64,
    pub(super) refused_lately: u64,
    pub(super) write_ms: Option<f64>,
    pub(super) failing: Option<String>,
}

/// A look at the store.
#[derive(Clone, Debug, Serialize)]
pub(super) struct StoreLook {
    up: bool,
    /// The time of the answer.
    latency_ms: f64,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<String>,
}

impl Pulse {
    /// Dashboards at a time: each asks twice a second for changes.
    pub const STREAMS: usize = 64;

    /// The pulse of an instance of this name.
    ///
    /// # Panics
    ///
    /// Never: the key that it looks at is valid.
    pub fn new(instance: String) -> Self {
        Self {
            instance,
            run: Uuid::new_v4().simple().to_string(),
            began: Instant::now(),
            tally: Mutex::default(),
            look: tokio::sync::Mutex::default(),
            probe: LockKey::parse(PROBE).expect("a valid key"),
            streams: Arc::new(Semaphore::new(Self::STREAMS)),
        }
    }

    /// Counts the outcome of a verb, which took so long.
    pub(in crate::api) fn beat(&self, verb: Counted, outcome: &'static str, took: Duration) {
        let step = self.step();
        self.with(|tally| match (verb, outcome) {
            (Counted::Acquire, "granted") => {
                tally.granted += 1;
                tally.failing = None;
            }
            (Counted::Acquire, "held" | "timed_out" | "error") => tally.refuse(step),
            (Counted::Refresh | Counted::Release, "ok") => {
                tally.failing = None;
                tally.writes.push_back(took.as_secs_f64() * 1_000.0);
                if tally.writes.len() > WRITES {
                    tally.writes.pop_front();
                }
            }
            _ => (),
        });
    }

    /// Notes a failed call to the store.
    pub(in crate::api) fn failed(&self, error: &LockError) {
        if let LockError::Store(error) = error {
            let cause = chain(error).chars().take(SHOWN_CAUSE_CHARS).collect();
            self.with(|tally| tally.failing = Some(cause));
        }
    }

    pub(super) fn instance(&self) -> &str {
        &self.instance
    }

    pub(super) fn run(&self) -> &str {
        &self.run
    }

    pub(super) fn uptime(&self) -> Duration {
        self.began.elapsed()
    }

    pub(super) fn counts(&self) -> Counts {
        let step = self.step();
        self.with(|tally| {
            tally.forget(step);
            let mut writes: Vec<_> = tally.writes.iter().copied().collect();
            writes.sort_unstable_by(f64::total_cmp);
            Counts {
                granted: tally.granted,
                refused: tally.refused,
                refused_lately: tally.steps.iter().map(|(_, count)| count).sum(),
                write_ms: writes.get(writes.len() / 2).copied(),
                failing: tally.failing.clone(),
            }
        })
    }

    /// The last look at the store, or a new one.
    pub(super) async fn look(&self, locks: &Locks) -> StoreLook {
        let mut last = self.look.lock().await;
        if let Some((at, look)) = &*last
            && at.elapsed() < LOOK_EVERY
        {
            return look.clone();
        }
        let look = self.probe(locks).await;
        if look.up {
            // What was not looked at in time is looked at the next time.
            let _ = timeout(PATIENCE, look_for_ends(locks)).await;
        }
        *last = Some((Instant::now(), look.clone()));
        look
    }

    async fn probe(&self, locks: &Locks) -> StoreLook {
        let began = Instant::now();
        let problem = match timeout(PATIENCE, locks.inspect(&self.probe, None, 0)).await {
            Ok(Ok(_)) => None,
            Ok(Err(LockError::Store(error))) => Some(chain(&error)),
            Ok(Err(error)) => Some(error.to_string()),
            Err(_) => Some(format!("no answer within {} s", PATIENCE.as_secs())),
        };
        let latency_ms = began.elapsed().as_secs_f64() * 1_000.0;
        let problem = problem.map(|cause| cause.chars().take(SHOWN_CAUSE_CHARS).collect());
        StoreLook { up: problem.is_none(), latency_ms, problem }
    }

    fn step(&self) -> u32 {
        let steps = self.began.elapsed().as_secs() / STEP.as_secs();
        u32::try_from(steps).unwrap_or(u32::MAX)
    }

    fn with<T>(&self, use_it: impl FnOnce(&mut PulseTally) -> T) -> T {
        use_it(&mut self.tally.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl PulseTally {
    fn refuse(&mut self, step: u32) {
        self.refused += 1;
        match self.steps.back_mut() {
            Some((last, count)) if *last == step => *count += 1,
            _ => self.steps.push_back((step, 1)),
        }
        self.forget(step);
    }

    fn forget(&mut self, step: u32) {
        while self.steps.front().is_some_and(|(first, _)| first + STEPS <= step) {
            self.steps.pop_front();
        }
    }
}

/// Asks the store whether the leases have ended that should have.
async fn look_for_ends(locks: &Locks) {
    for (key, fencing_token) in locks.leases().overdue(KEYS_AT_ONCE) {
        let Ok(status) = locks.inspect(&key, None, 0).await else { return };
        locks.leases().looked(&status, fencing_token);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Pulse, STEPS, WRITES};
    use crate::lock::error::{Effect, LockError, StoreError, Verb};
    use crate::metrics::Counted;

    #[test]
    fn refusals_count_for_five_minutes_and_writes_by_their_median() {
        let pulse = Pulse::new("here:1".to_owned());
        for outcome in ["held", "timed_out", "error", "granted", "again"] {
            pulse.beat(Counted::Acquire, outcome, Duration::ZERO);
        }
        for ms in 0..2 * WRITES as u64 {
            pulse.beat(Counted::Refresh, "ok", Duration::from_millis(ms));
        }
        let counts = pulse.counts();
        assert_eq!((counts.granted, counts.refused, counts.refused_lately), (1, 3, 3));
        assert_eq!(counts.write_ms, Some(WRITES as f64 * 1.5));
        pulse.with(|tally| tally.forget(STEPS - 1));
        assert_eq!(pulse.counts().refused_lately, 3);
        pulse.with(|tally| tally.forget(STEPS));
        assert_eq!((pulse.counts().refused, pulse.counts().refused_lately), (3, 0));
    }

    #[test]
    fn a_failure_is_told_until_a_call_succeeds() {
        let pulse = Pulse::new("here:1".to_owned());
        let error = || StoreError {
            verb: Verb::Refresh,
            effect: Effect::None,
            reason: "the disk is full".into(),
        };
        pulse.failed(&LockError::Draining);
        assert_eq!(pulse.counts().failing, None);
        pulse.failed(&LockError::Store(error()));
        pulse.beat(Counted::Acquire, "held", Duration::ZERO);
        assert_eq!(pulse.counts().failing.unwrap(), "refresh failed: the disk is full");
        pulse.beat(Counted::Release, "ok", Duration::ZERO);
        assert_eq!(pulse.counts().failing, None);
    }
}
