//! R1: the numbers that this instance proposes.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::lock::token::FencingToken;
use crate::metrics::Metrics;
use crate::store::redis::clock::{BELIEVED_LEAD, FencingFloor};

/// The numbers of this instance. All times are microseconds since 1970.
pub(super) struct Numbers {
    floor: FencingFloor,
    /// The most by which a number in an answer was ahead of this instance's clock.
    lead: AtomicU64,
}

impl Numbers {
    pub(super) fn new(metrics: Arc<Metrics>) -> Self {
        Self { floor: FencingFloor::new(metrics), lead: AtomicU64::new(0) }
    }

    /// The number of an attempt, above all numbers that were heard of: one attempt has one, the same
    /// for all nodes.
    pub(super) fn propose(&self, clock: u64, latest: u64, heard: u64) -> u64 {
        let ahead = clock.saturating_add(self.lead.load(Ordering::Relaxed));
        let lead = u64::try_from(BELIEVED_LEAD.as_micros()).unwrap_or(u64::MAX);
        let believed = ahead.min(latest.saturating_add(lead));
        believed.max(self.floor.least()).max(heard.saturating_add(1))
    }

    /// Notes the greatest number in an answer, so that the next proposal is above it.
    pub(super) fn hear(&self, clock: u64, highest: u64) {
        self.lead.fetch_max(highest.saturating_sub(clock), Ordering::Relaxed);
    }

    /// Notes the number of a lease that was granted or found.
    pub(super) fn raise(&self, given: FencingToken) {
        self.floor.raise(given);
    }
}
