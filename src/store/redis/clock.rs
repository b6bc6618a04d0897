//! The service's estimate of the store's time, and the floor under fencing tokens.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::lock::time::wall_clock_micros;
use crate::lock::token::FencingToken;
use crate::metrics::{Metrics, SecondsGauge};

/// The lead over another clock up to which a clock proposes fencing tokens, the store's over the
/// service's or the reverse: one an hour ahead would use up an hour of the protection against loss.
pub(in crate::store) const BELIEVED_LEAD: Duration = Duration::from_secs(1);

/// Beyond all numbers that clocks propose, which are microseconds, until the year 2112.
pub(super) const BEYOND: u64 = 1 << 52;

/// An estimate of the store's clock from its replies.
#[derive(Debug)]
pub(in crate::store) struct StoreClock {
    began: Instant,
    /// Milliseconds to add to those since the beginning: the least that every call since the last
    /// clock step allows. The estimate is not ahead, but for a rounding, and behind by at most the
    /// fastest answer.
    offset: AtomicI64,
    node: String,
    lead: SecondsGauge,
    /// True while the log says that the two clocks differ.
    apart: AtomicBool,
}

impl StoreClock {
    /// The clock of a node, before its first reply.
    pub(super) fn new(node: String, metrics: &Metrics) -> Self {
        let lead = metrics.redis_clock_lead(&node);
        Self {
            began: Instant::now(),
            offset: AtomicI64::new(0),
            node,
            lead,
            apart: AtomicBool::new(false),
        }
    }

    /// Notes that the store's clock showed `now` between `sent` and this moment.
    pub(super) fn learn(&self, sent: Instant, now: u64) {
        self.compare(now);
        self.narrow(sent, Instant::now(), now);
    }

    /// Raises the estimate to the least that the call allows, or lowers it to that if the store's
    /// clock stepped back. An estimate that is ahead would let a script act that much later.
    ///
    /// All are rounded to milliseconds, so that two which are the same may be one apart.
    fn narrow(&self, sent: Instant, received: Instant, now: u64) {
        let now = i64::try_from(now).unwrap_or(i64::MAX);
        let least = now.saturating_sub(self.local(received));
        let most = now.saturating_sub(self.local(sent)).saturating_add(1);
        let narrowed = |offset: i64| Some(if offset > most { least } else { offset.max(least) });
        // Never refused: there is always a value.
        let _ = self.offset.fetch_update(Ordering::Relaxed, Ordering::Relaxed, narrowed);
    }

    /// Records the difference between the store's clock and this machine's, and logs if it is
    /// large.
    fn compare(&self, now: u64) {
        let lead = now as f64 / 1e3 - wall_clock_micros() as f64 / 1e6;
        self.lead.set(lead);
        let apart = lead.abs() > BELIEVED_LEAD.as_secs_f64();
        if apart != self.apart.load(Ordering::Relaxed) {
            self.apart.store(apart, Ordering::Relaxed);
            let redis = &self.node;
            let lead = format!("{lead:.3}");
            if apart {
                tracing::warn!(redis, lead, "clock differs by over a second; check NTP");
            } else {
                tracing::info!(redis, lead, "clock differs by less than a second again");
            }
        }
    }

    /// The store's time about now, in milliseconds.
    pub(in crate::store) fn now(&self) -> u64 {
        self.at(Instant::now())
    }

    /// The store's time at the earliest, in milliseconds, at a moment of this process.
    pub(in crate::store) fn at(&self, moment: Instant) -> u64 {
        let offset = self.offset.load(Ordering::Relaxed);
        u64::try_from(self.local(moment).saturating_add(offset)).unwrap_or(0)
    }

    fn local(&self, at: Instant) -> i64 {
        i64::try_from(at.duration_since(self.began).as_millis()).unwrap_or(i64::MAX)
    }
}

/// One above the highest fencing token of this process, over all keys, so that they rise even if
/// the store loses its data and its clock steps back.
#[derive(Debug)]
pub(in crate::store) struct FencingFloor {
    floor: AtomicU64,
    metrics: Arc<Metrics>,
}

impl FencingFloor {
    pub(in crate::store) fn new(metrics: Arc<Metrics>) -> Self {
        Self { floor: AtomicU64::new(1), metrics }
    }

    /// The lowest number for a new fencing token.
    pub(in crate::store) fn least(&self) -> u64 {
        self.floor.load(Ordering::Relaxed)
    }

    /// Raises the floor above a token that was given. One that only another program can have written
    /// raises nothing: the floor is that of all keys.
    pub(in crate::store) fn raise(&self, given: FencingToken) {
        if given.number() >= BEYOND {
            return;
        }
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::Ordering;
    use std::time::{Duration, Instant};

    use super::{BEYOND, FencingFloor, StoreClock};
    use crate::lock::sample::number;
    use crate::metrics::Metrics;

    #[test]
    fn a_number_that_no_clock_has_proposed_raises_no_floor() {
        let floor = FencingFloor::new(Arc::new(Metrics::for_redis()));
        floor.raise(number(7));
        floor.raise(number(BEYOND));
        assert_eq!(floor.least(), 8);
    }

    /// The offset after calls, each sent and answered so many milliseconds after the beginning,
    /// with what the store's clock showed.
    fn offset(calls: &[(u64, u64, u64)]) -> i64 {
        let clock = StoreClock::new("node".to_owned(), &Metrics::for_redis());
        let at = |millis| clock.began + Duration::from_millis(millis);
        for &(sent, received, now) in calls {
            clock.narrow(at(sent), at(received), now);
        }
        clock.offset.load(Ordering::Relaxed)
    }

    #[test]
    fn a_slow_call_changes_nothing() {
        // Its request took 40 ms; two times that are rounded may be one millisecond apart.
        assert_eq!(offset(&[(10, 10, 110), (20, 60, 160)]), 100);
        assert_eq!(offset(&[(10, 10, 110), (20, 60, 161)]), 101);
        assert_eq!(offset(&[(10, 10, 110), (20, 20, 119), (30, 30, 130)]), 100);
        // So did its answer.
        assert_eq!(offset(&[(10, 10, 110), (20, 60, 120)]), 100);
    }

    #[test]
    fn the_estimate_is_never_ahead() {
        // The store's clock is 5000 ahead; first the request takes a second, then the answer.
        assert_eq!(offset(&[(10, 1_010, 6_010)]), 5_000);
        assert_eq!(offset(&[(10, 1_010, 5_010)]), 4_000);
        assert_eq!(offset(&[(10, 1_010, 5_010), (1_020, 1_021, 6_021)]), 5_000);
    }

    #[test]
    fn a_clock_that_drifts_is_followed() {
        let ahead: Vec<_> = (1..=50).map(|n| (n * 10, n * 10, 5_000 + n * 11)).collect();
        assert_eq!(offset(&ahead), 5_050);
        let behind: Vec<_> = (1..=50).map(|n| (n * 10, n * 10, 5_000 + n * 9)).collect();
        assert_eq!(offset(&behind), 4_951);
    }

    #[test]
    fn a_step_of_the_clock_is_believed_at_once() {
        for (before, after) in [(5_000, 65_000), (65_000, 5_000)] {
            let offset = offset(&[(10, 11, before + 11), (20, 21, after + 21)]);
            assert_eq!(offset, i64::try_from(after).unwrap());
        }
    }

    #[test]
    fn a_clock_at_the_end_of_its_numbers_wraps_nothing() {
        let clock = StoreClock::new("node".to_owned(), &Metrics::for_redis());
        for now in [u64::MAX, i64::MAX.unsigned_abs(), 0, 1_000] {
            clock.learn(Instant::now(), now);
            assert!(clock.now() >= now.min(i64::MAX.unsigned_abs()), "{now}");
            // Some milliseconds on.
            assert!(clock.now() - now.min(i64::MAX.unsigned_abs()) < 10_000, "{now}");
        }
    }
}
