//! The state of this instance for the dashboard: counts of answers, and a look at the store that
//! all dashboards share. Nothing is looked at while no dashboard is open.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::time::timeout;
use uuid::Uuid;

use crate::lock::error::{LockError, chain};
use crate::lock::key::LockKey;
use crate::lock::locks::Locks;
use crate::lock::time::millis_down;
use crate::metrics::Counted;

/// The age of a look at the store after which the next dashboard looks again.
const LOOK_EVERY: Duration = Duration::from_millis(900);

/// The longest look at the store.
const PATIENCE: Duration = Duration::from_secs(1);

/// The key that is looked at; nobody has to hold it.
const PROBE: &str = "lockkeeper/dashboard";

/// The counts of the last fifteen minutes are kept in steps of five seconds.
const STEP: Duration = Duration::from_secs(5);
const STEPS: u32 = 180;

/// The steps whose refusals are told as those of five minutes.
const LATELY: u32 = 60;

/// The writes whose times are remembered.
const WRITES: usize = 64;

/// The most characters of a cause.
const SHOWN_CAUSE_CHARS: usize = 300;

/// The state of this instance.
#[derive(Debug)]
pub struct Activity {
    pub(super) instance: String,
    /// Another text after each start.
    pub(super) run: String,
    pub(super) began: Instant,
    tally: Mutex<ActivityCounts>,
    look: tokio::sync::Mutex<Option<(Instant, StoreLook)>>,
    probe: LockKey,
}

#[derive(Debug, Default)]
struct ActivityCounts {
    granted: u64,
    refused: u64,
    /// The steps in which something was counted.
    steps: VecDeque<ActivityStep>,
    /// Milliseconds of the last writes.
    writes: VecDeque<f64>,
    failing: Option<String>,
}

/// The counts of one step.
#[derive(Debug, Default)]
struct ActivityStep {
    number: u32,
    granted: u64,
    refused: u64,
    /// Milliseconds of the longest write.
    longest_write: Option<f64>,
}

/// The counts since the start, and the last calls of the store.
pub(super) struct Counts {
    pub(super) granted: u64,
    pub(super) refused: u64,
    pub(super) refused_lately: u64,
    /// Milliseconds of a usual write.
    pub(super) write_ms: Option<f64>,
    /// The cause of the last failed call, if no call has succeeded since.
    pub(super) failing: Option<String>,
}

/// A look at the store.
#[derive(Clone, Debug)]
pub(super) struct StoreLook {
    /// Milliseconds until its answer.
    pub(super) latency_ms: f64,
    /// The reason why it is no answer.
    pub(super) problem: Option<String>,
}

impl Activity {
    /// The activity of an instance of this name.
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
        }
    }

    /// Counts the outcome of a verb, which took so long.
    pub(in crate::api) fn count(&self, verb: Counted, outcome: &'static str, took: Duration) {
        let step = self.step();
        self.with(|tally| match (verb, outcome) {
            (Counted::Acquire, "granted") => {
                tally.granted += 1;
                tally.step(step).granted += 1;
                tally.failing = None;
            }
            (Counted::Acquire, "held" | "timed_out" | "error") => {
                tally.refused += 1;
                tally.step(step).refused += 1;
            }
            (Counted::Refresh | Counted::Release, "ok") => {
                let ms = took.as_secs_f64() * 1_000.0;
                tally.failing = None;
                let longest = &mut tally.step(step).longest_write;
                *longest = Some(longest.map_or(ms, |longest| longest.max(ms)));
                tally.writes.push_back(ms);
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

    pub(super) fn counts(&self) -> Counts {
        let step = self.step();
        self.with(|tally| {
            let mut writes: Vec<_> = tally.writes.iter().copied().collect();
            writes.sort_unstable_by(f64::total_cmp);
            Counts {
                granted: tally.granted,
                refused: tally.refused,
                refused_lately: tally.refused_lately(step),
                write_ms: writes.get(writes.len() / 2).copied(),
                failing: tally.failing.clone(),
            }
        })
    }

    /// The past, from the first step that is kept to the last that is over: acquires a second, and
    /// the longest write.
    pub(super) fn past(&self) -> Vec<Value> {
        let (step, seconds) = (self.step(), STEP.as_secs_f64());
        let nothing = ActivityStep::default();
        self.with(|tally| {
            let point = |number| {
                let found = tally.steps.iter().find(|one| one.number == number);
                let found = found.unwrap_or(&nothing);
                json!({
                    "ago_ms": millis_down(STEP * (step - number)),
                    "grants": found.granted as f64 / seconds,
                    "refusals": found.refused as f64 / seconds,
                    "write_ms": found.longest_write,
                })
            };
            (step.saturating_sub(STEPS)..step).map(point).collect()
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
        StoreLook { latency_ms, problem }
    }

    fn step(&self) -> u32 {
        let steps = self.began.elapsed().as_secs() / STEP.as_secs();
        u32::try_from(steps).unwrap_or(u32::MAX)
    }

    fn with<T>(&self, use_it: impl FnOnce(&mut ActivityCounts) -> T) -> T {
        use_it(&mut self.tally.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl ActivityCounts {
    fn refused_lately(&self, step: u32) -> u64 {
        let lately = self.steps.iter().filter(|one| one.number + LATELY > step);
        lately.map(|one| one.refused).sum()
    }

    /// The counts of this step, the newest.
    fn step(&mut self, number: u32) -> &mut ActivityStep {
        if self.steps.back().is_none_or(|last| last.number < number) {
            self.steps.push_back(ActivityStep { number, ..ActivityStep::default() });
            self.steps.retain(|one| one.number + STEPS > number);
        }
        self.steps.back_mut().expect("one was there, or has been added")
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Activity, LATELY, STEPS, WRITES};
    use crate::lock::error::{Effect, LockError, StoreError, Verb};
    use crate::metrics::Counted;

    #[test]
    fn refusals_count_for_five_minutes_and_writes_by_their_median() {
        let activity = Activity::new("here:1".to_owned());
        for outcome in ["held", "timed_out", "error", "granted", "again"] {
            activity.count(Counted::Acquire, outcome, Duration::ZERO);
        }
        for ms in 0..2 * WRITES as u64 {
            activity.count(Counted::Refresh, "ok", Duration::from_millis(ms));
        }
        let counts = activity.counts();
        assert_eq!((counts.granted, counts.refused, counts.refused_lately), (1, 3, 3));
        assert_eq!(counts.write_ms, Some(WRITES as f64 * 1.5));
        activity.with(|tally| {
            assert_eq!(tally.refused_lately(LATELY - 1), 3);
            assert_eq!((tally.refused, tally.refused_lately(LATELY)), (3, 0));
        });
    }

    #[test]
    fn the_past_has_a_point_for_each_step_that_is_over() {
        let activity = Activity::new("here:1".to_owned());
        assert!(activity.past().is_empty());
        activity.with(|tally| {
            tally.step(3).granted = 10;
            for number in 4..2 * STEPS {
                tally.step(number).refused = 5;
            }
            assert_eq!(tally.steps.len(), STEPS as usize, "no more are kept");
            assert_eq!(tally.step(7).number, 2 * STEPS - 1, "a late count is of the last step");
        });
    }

    #[test]
    fn a_failure_is_told_until_a_call_succeeds() {
        let activity = Activity::new("here:1".to_owned());
        let error = || StoreError {
            verb: Verb::Refresh,
            effect: Effect::None,
            fault: "the disk is full",
            reason: "the disk is full".into(),
        };
        activity.failed(&LockError::Draining);
        assert_eq!(activity.counts().failing, None);
        activity.failed(&LockError::Store(error()));
        activity.count(Counted::Acquire, "held", Duration::ZERO);
        assert_eq!(activity.counts().failing.unwrap(), "refresh failed: the disk is full");
        activity.count(Counted::Release, "ok", Duration::ZERO);
        assert_eq!(activity.counts().failing, None);
    }
}
