//! The store's time as far as the service knows it, and the floor under fencing tokens.

use std::sync::Arc;
use std::sync::atomic::AtomicI64;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use crate::lock::time::wall_clock_micros;
use crate::lock::token::FencingToken;
use crate::metrics::Metrics;

/// How far ahead of the service's clock the store's clock is still believed when it proposes a
/// fencing token: one node an hour ahead would use up an hour of the protection against loss.
const BELIEVED_LEAD: Duration = Duration::from_secs(1);

/// What the replies have told of the store's clock.
#[derive(Debug)]
pub(super) struct StoreClock {
    began: Instant,
    /// What has to be added to the milliseconds since `began`. Taken from the moment at which a
    /// call was sent, so the estimate is never behind, and ahead by a round trip at most.
    offset: AtomicI64,
}

impl StoreClock {
    pub(super) fn new() -> Self {
        Self { began: Instant::now(), offset: AtomicI64::new(0) }
    }

    /// Learns that the store's clock showed `now` after `sent`.
    pub(super) fn learn(&self, sent: Instant, now: u64) {
        let now = i64::try_from(now).unwrap_or(i64::MAX);
        self.offset.store(now - self.local(sent), Ordering::Relaxed);
    }

    /// What it shows about now, in milliseconds.
    pub(super) fn now(&self) -> u64 {
        let now = self.local(Instant::now()) + self.offset.load(Ordering::Relaxed);
        u64::try_from(now).unwrap_or(0)
    }

    fn local(&self, at: Instant) -> i64 {
        i64::try_from(at.duration_since(self.began).as_millis()).unwrap_or(i64::MAX)
    }
}

/// One above the highest fencing token that this process has given, over all keys: so they rise
/// even if the store loses its data and its clock steps back.
#[derive(Debug)]
pub(super) struct FencingFloor {
    floor: AtomicU64,
    metrics: Arc<Metrics>,
}

impl FencingFloor {
    pub(super) fn new(metrics: Arc<Metrics>) -> Self {
        Self { floor: AtomicU64::new(1), metrics }
    }

    /// The least that a new fencing token may be.
    pub(super) fn least(&self) -> u64 {
        self.floor.load(Ordering::Relaxed)
    }

    /// Raises the floor above a token that was given.
    pub(super) fn raise(&self, given: FencingToken) {
        let floor = given.number() + 1;
        if self.floor.fetch_max(floor, Ordering::Relaxed) < floor {
            self.metrics.fencing_floor(floor);
        }
    }
}

/// The latest time of the store, in microseconds, that may propose a fencing token.
pub(super) fn latest_believable_micros() -> u64 {
    let lead = u64::try_from(BELIEVED_LEAD.as_micros()).unwrap_or(u64::MAX);
    wall_clock_micros().saturating_add(lead)
}
