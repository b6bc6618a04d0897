//! The reloads of settings and other files, as metrics.

use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::metrics::{Outcomes, metric};

#[derive(Debug)]
pub(super) struct Reloads {
    done: Outcomes,
    last_successful: Gauge,
}

impl Reloads {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let last = "1 if the last reload of every watched file succeeded";
        let reloads = Self {
            done: metric(registry, "reloads", "Reloads by outcome"),
            last_successful: metric(registry, "config_last_reload_successful", last),
        };
        reloads.last_successful.set(1); // They were read at the start.
        reloads
    }

    /// Counts a reload, and sets how many files failed last time.
    pub(super) fn count(&self, outcome: &'static str, failed: usize) {
        self.done.get_or_create(&[("outcome", outcome)]).inc();
        self.last_successful.set((failed == 0).into());
    }
}
