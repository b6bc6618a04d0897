//! The metrics of leases, by configured prefix.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::metrics::{Metrics, OneLabel, metric, timed};

/// Buckets from a hundredth of a second to a day, above which only streams and refreshed leases
/// are held.
const HELD: [f64; 12] =
    [0.01, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 900.0, 3_600.0, 14_400.0, 86_400.0];

#[derive(Debug)]
pub(super) struct Leases {
    held_seconds: Family<HeldLabels, Histogram, fn() -> Histogram>,
    known: Family<OneLabel<String>, Gauge>,
    oldest_age: Family<OneLabel<String>, Gauge<f64, AtomicU64>>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HeldLabels {
    prefix: String,
    end: &'static str,
}

impl Leases {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let held = "Time that leases were held, by prefix and end";
        let histograms = Family::new_with_constructor(held_seconds as fn() -> Histogram);
        let oldest = "Age of the oldest lease that this instance knows, by prefix";
        Self {
            held_seconds: timed(registry, "lease_held", held, histograms),
            known: metric(registry, "leases", "Leases that this instance knows, by prefix"),
            oldest_age: timed(registry, "oldest_lease_age", oldest, Family::default()),
        }
    }
}

impl Metrics {
    /// Observes the time that a lease under `prefix` was held until this kind of end.
    pub fn held(&self, prefix: &str, end: &'static str, held: Duration) {
        let labels = HeldLabels { prefix: prefix.to_owned(), end };
        self.leases.held_seconds.get_or_create(&labels).observe(held.as_secs_f64());
    }

    /// Sets the number of living leases under `prefix`, and the age of the oldest.
    pub fn living(&self, prefix: &str, count: usize, oldest: Duration) {
        let label = [("prefix", prefix.to_owned())];
        self.leases.known.get_or_create(&label).set(count.try_into().unwrap_or(i64::MAX));
        self.leases.oldest_age.get_or_create(&label).set(oldest.as_secs_f64());
    }
}

fn held_seconds() -> Histogram {
    Histogram::new(HELD)
}
