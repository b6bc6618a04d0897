//! The metrics of each store.

use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::metrics::{OneLabel, metric, seconds, timed};

#[derive(Debug)]
pub(super) struct Embedded {
    pub(super) up: Gauge,
    pub(super) held: Gauge<u64, AtomicU64>,
    pub(super) commits: Counter,
    pub(super) commit_seconds: Histogram,
}

#[derive(Debug)]
pub(super) struct Redis {
    pub(super) up: Family<OneLabel<String>, Gauge>,
    pub(super) evicts: Family<OneLabel<String>, Gauge>,
    pub(super) clock_lead: Family<OneLabel<String>, Gauge<f64, AtomicU64>>,
    pub(super) seconds: Family<OneLabel<&'static str>, Histogram, fn() -> Histogram>,
    pub(super) errors: Family<OneLabel<&'static str>, Counter>,
    pub(super) rerouted: Family<OneLabel<&'static str>, Counter>,
    pub(super) fencing_floor: Gauge<u64, AtomicU64>,
}

#[derive(Debug)]
pub(super) struct Redlock {
    pub(super) nodes: Gauge<u64, AtomicU64>,
    pub(super) voting: Gauge<u64, AtomicU64>,
    pub(super) attempts: Family<OneLabel<&'static str>, Counter>,
    pub(super) settled: Counter,
}

impl Embedded {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let to_commit = "Time to commit a transaction to disk";
        Self {
            up: metric(registry, "embedded_up", "1 if the embedded store can use its file"),
            held: metric(registry, "locks_held", "Keys currently held"),
            commits: metric(registry, "commits", "Committed transactions"),
            commit_seconds: timed(registry, "commit_duration", to_commit, seconds()),
        }
    }
}

impl Redis {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let evicts = "1 if the Redis node may evict locks when its memory is full";
        let lead = "Lead of the Redis node's clock over this machine's";
        let calls = "Duration of Redis calls by command, including timeouts";
        let rerouted = "Redirected Redis calls, and changes of the master";
        let floor = "Lower bound of the next fencing token of this process";
        let histograms = Family::new_with_constructor(seconds as fn() -> Histogram);
        Self {
            up: metric(registry, "redis_up", "1 if the Redis node is connected"),
            evicts: metric(registry, "redis_evicts", evicts),
            clock_lead: timed(registry, "redis_clock_lead", lead, Family::default()),
            seconds: timed(registry, "redis_command_duration", calls, histograms),
            errors: metric(registry, "redis_errors", "Failed calls to Redis"),
            rerouted: metric(registry, "redis_rerouted", rerouted),
            fencing_floor: metric(registry, "fencing_floor", floor),
        }
    }
}

impl Redlock {
    pub(super) fn new(registry: &mut Registry) -> Self {
        let attempts = "Attempts to win the votes of the nodes, by outcome";
        let settled = "Refreshes and repeats that told nodes of their lease";
        Self {
            nodes: metric(registry, "redlock_nodes", "Redlock nodes"),
            voting: metric(registry, "redlock_voting", "Redlock nodes that vote"),
            attempts: metric(registry, "redlock_attempts", attempts),
            settled: metric(registry, "redlock_settled", settled),
        }
    }
}
