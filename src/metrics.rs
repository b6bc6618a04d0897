//! Every metric of the service: name, help text, labels. A key, an owner or a token is never a
//! label.

mod lost_lines;

use std::fmt::Debug;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use crate::metrics::lost_lines::LostLines;

/// Buckets from a tenth of a millisecond, a request on an idle machine, to ten seconds, above every
/// deadline.
const SECONDS: [f64; 13] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.0, 10.0];

/// The media type of [`Metrics::render`].
pub const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The metrics, shared by all modules that count.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    lost_lines: Arc<LostLines>,
    requests: Family<Request, Counter>,
    request_seconds: Histogram,
    wait_seconds: Histogram,
    acquire: Family<Outcome, Counter>,
    refresh: Family<Outcome, Counter>,
    release: Family<Outcome, Counter>,
    force_release: Family<Outcome, Counter>,
    connections: Gauge,
    waiters: Gauge,
    hold_streams: Gauge,
    locks_held: Gauge,
    redis_up: Family<RedisNode, Gauge>,
    redis_evicts: Family<RedisNode, Gauge>,
    redis_clock_lead: Family<RedisNode, Gauge<f64, AtomicU64>>,
    redis_seconds: Family<Command, Histogram, fn() -> Histogram>,
    redis_errors: Family<Kind, Counter>,
    redis_rerouted: Family<Kind, Counter>,
    commits: Counter,
    commit_seconds: Histogram,
    fencing_floor: Gauge<u64, AtomicU64>,
    redlock_voting: Gauge,
    redlock_attempts: Family<Outcome, Counter>,
    redlock_write_backs: Counter,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Request {
    route: &'static str,
    method: &'static str,
    status: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Command {
    command: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RedisNode {
    node: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Kind {
    kind: &'static str,
}

/// The verbs with counted outcomes.
#[derive(Clone, Copy, Debug)]
pub enum Counted {
    /// `POST /locks/{key}`.
    Acquire,
    /// `PUT /locks/{key}/refresh`.
    Refresh,
    /// `DELETE /locks/{key}`.
    Release,
    /// `DELETE /admin/locks/{key}`.
    ForceRelease,
}

/// Keeps a gauge incremented until dropped, also by a panic.
#[derive(Debug)]
pub struct Counting(Gauge);

impl Drop for Counting {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// The lead of one node's clock over this machine's.
#[derive(Debug)]
pub struct ClockLead(Gauge<f64, AtomicU64>);

impl ClockLead {
    /// Sets the lead in seconds; below 0 the node is behind.
    pub fn set(&self, seconds: f64) {
        self.0.set(seconds);
    }
}

impl Metrics {
    /// All metrics at zero; those of unused stores are left out.
    pub fn new(store: &str) -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("lockkeeper"),
            lost_lines: Arc::default(),
            requests: Family::default(),
            request_seconds: seconds(),
            wait_seconds: seconds(),
            acquire: Family::default(),
            refresh: Family::default(),
            release: Family::default(),
            force_release: Family::default(),
            connections: Gauge::default(),
            waiters: Gauge::default(),
            hold_streams: Gauge::default(),
            locks_held: Gauge::default(),
            redis_up: Family::default(),
            redis_evicts: Family::default(),
            redis_clock_lead: Family::default(),
            redis_seconds: Family::new_with_constructor(seconds),
            redis_errors: Family::default(),
            redis_rerouted: Family::default(),
            commits: Counter::default(),
            commit_seconds: seconds(),
            fencing_floor: Gauge::default(),
            redlock_voting: Gauge::default(),
            redlock_attempts: Family::default(),
            redlock_write_backs: Counter::default(),
        };
        metrics.register_requests();
        match store {
            "embedded" => metrics.register_embedded(),
            "redlock" => {
                metrics.register_redis();
                metrics.register_redlock();
            }
            _ => metrics.register_redis(),
        }
        metrics
    }

    /// The metrics as OpenMetrics text.
    pub fn render(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("writing to a String cannot fail");
        text
    }

    /// Counts an answered request.
    pub fn request(&self, route: &'static str, method: &'static str, status: u16) {
        self.requests.get_or_create(&Request { route, method, status }).inc();
    }

    /// Observes the duration in seconds of a request that did not wait in line.
    pub fn took(&self, seconds: f64) {
        self.request_seconds.observe(seconds);
    }

    /// Observes the seconds that a request waited in line.
    pub fn waited(&self, seconds: f64) {
        self.wait_seconds.observe(seconds);
    }

    /// Counts the outcome of a verb: `granted`, `again`, `ok`, `held`, `lost` or `error`.
    pub fn outcome(&self, verb: Counted, outcome: &'static str) {
        let family = match verb {
            Counted::Acquire => &self.acquire,
            Counted::Refresh => &self.refresh,
            Counted::Release => &self.release,
            Counted::ForceRelease => &self.force_release,
        };
        family.get_or_create(&Outcome { outcome }).inc();
    }

    /// Counts a connected client until the result is dropped.
    pub fn connected(&self) -> Counting {
        self.connections.inc();
        Counting(self.connections.clone())
    }

    /// Sets the counter of lost log lines.
    pub fn log_lines_dropped(&self, count: impl Fn() -> u64 + Send + Sync + 'static) {
        // There is one log.
        let _ = self.lost_lines.0.set(Box::new(count));
    }

    /// Sets the number of requests that wait in line.
    pub fn waiters(&self, waiting: usize) {
        self.waiters.set(i64::try_from(waiting).unwrap_or(i64::MAX));
    }

    /// The number of streams of `POST /hold/{key}`.
    pub fn hold_streams(&self) -> &Gauge {
        &self.hold_streams
    }

    /// Sets the number of keys held, and observes the seconds of a commit.
    pub fn embedded(&self, held: usize, commit: Option<f64>) {
        self.locks_held.set(i64::try_from(held).unwrap_or(i64::MAX));
        if let Some(took) = commit {
            self.commits.inc();
            self.commit_seconds.observe(took);
        }
    }

    /// Sets whether a Redis node is connected.
    pub fn redis_up(&self, node: &str, up: bool) {
        self.redis_up.get_or_create(&RedisNode { node: node.to_owned() }).set(up.into());
    }

    /// Sets whether a Redis node may evict locks.
    pub fn redis_evicts(&self, node: &str, evicts: bool) {
        self.redis_evicts.get_or_create(&RedisNode { node: node.to_owned() }).set(evicts.into());
    }

    /// The gauge of a node's clock lead.
    pub fn redis_clock_lead(&self, node: &str) -> ClockLead {
        let node = RedisNode { node: node.to_owned() };
        ClockLead(self.redis_clock_lead.get_or_create_owned(&node))
    }

    /// Removes the metrics of a Redis node that is no longer in use.
    pub fn redis_forgotten(&self, node: &str) {
        let node = RedisNode { node: node.to_owned() };
        self.redis_up.remove(&node);
        self.redis_evicts.remove(&node);
        self.redis_clock_lead.remove(&node);
    }

    /// Counts a redirected call, `moved`, `ask` or `try_again`, or a new `master`.
    pub fn redis_rerouted(&self, kind: &'static str) {
        self.redis_rerouted.get_or_create(&Kind { kind }).inc();
    }

    /// Counts a call to Redis and observes its seconds.
    pub fn redis_call(&self, command: &'static str, took: f64) {
        self.redis_seconds.get_or_create(&Command { command }).observe(took);
    }

    /// Counts a failed call to Redis.
    pub fn redis_error(&self, kind: &'static str) {
        self.redis_errors.get_or_create(&Kind { kind }).inc();
    }

    /// Sets the lower bound of the next fencing token.
    pub fn fencing_floor(&self, floor: u64) {
        self.fencing_floor.set(floor);
    }

    /// Sets the number of Redlock nodes that vote.
    pub fn redlock_voting(&self, nodes: usize) {
        self.redlock_voting.set(i64::try_from(nodes).unwrap_or(i64::MAX));
    }

    /// Counts an attempt to win the votes of the nodes.
    pub fn redlock_attempt(&self, outcome: &'static str) {
        self.redlock_attempts.get_or_create(&Outcome { outcome }).inc();
    }

    /// Counts a fencing token that needed a second round.
    pub fn redlock_write_back(&self) {
        self.redlock_write_backs.inc();
    }

    fn register_requests(&mut self) {
        let registry = &mut self.registry;
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        registry.register("build", "Version of the service", Info::new(version.to_vec()));
        registry.register("http_requests", "Answered HTTP requests", self.requests.clone());
        registry.register_with_unit(
            "http_request_duration",
            "Time from a request's head to its answer, without waits in line",
            Unit::Seconds,
            self.request_seconds.clone(),
        );
        registry.register_with_unit(
            "acquire_wait",
            "Time that acquires waited in line",
            Unit::Seconds,
            self.wait_seconds.clone(),
        );
        registry.register("acquire", "Acquires by outcome", self.acquire.clone());
        registry.register("refresh", "Refreshes by outcome", self.refresh.clone());
        registry.register("release", "Releases by outcome", self.release.clone());
        registry.register(
            "force_release",
            "Forced releases by outcome",
            self.force_release.clone(),
        );
        registry.register("waiters", "Requests waiting in line", self.waiters.clone());
        registry.register("hold_streams", "Open hold streams", self.hold_streams.clone());
        registry.register("http_connections", "Connected clients", self.connections.clone());
        registry.register_collector(Box::new(self.lost_lines.clone()));
    }

    fn register_embedded(&mut self) {
        let registry = &mut self.registry;
        registry.register("locks_held", "Keys currently held", self.locks_held.clone());
        registry.register("commits", "Committed transactions", self.commits.clone());
        registry.register_with_unit(
            "commit_duration",
            "Time to commit a transaction to disk",
            Unit::Seconds,
            self.commit_seconds.clone(),
        );
    }

    fn register_redlock(&mut self) {
        let registry = &mut self.registry;
        registry.register("redlock_voting", "Redlock nodes that vote", self.redlock_voting.clone());
        registry.register(
            "redlock_attempts",
            "Attempts to win the votes of the nodes, by outcome",
            self.redlock_attempts.clone(),
        );
        registry.register(
            "redlock_write_backs",
            "Fencing tokens that needed a second round",
            self.redlock_write_backs.clone(),
        );
    }

    fn register_redis(&mut self) {
        let registry = &mut self.registry;
        registry.register("redis_up", "1 if the Redis node is connected", self.redis_up.clone());
        registry.register(
            "redis_evicts",
            "1 if the Redis node may evict locks when its memory is full",
            self.redis_evicts.clone(),
        );
        registry.register_with_unit(
            "redis_clock_lead",
            "Lead of the Redis node's clock over this machine's",
            Unit::Seconds,
            self.redis_clock_lead.clone(),
        );
        registry.register_with_unit(
            "redis_command_duration",
            "Duration of Redis calls by command, including timeouts",
            Unit::Seconds,
            self.redis_seconds.clone(),
        );
        registry.register("redis_errors", "Failed calls to Redis", self.redis_errors.clone());
        registry.register(
            "redis_rerouted",
            "Redirected Redis calls, and changes of the master",
            self.redis_rerouted.clone(),
        );
        registry.register(
            "fencing_floor",
            "Lower bound of the next fencing token of this process",
            self.fencing_floor.clone(),
        );
    }
}

fn seconds() -> Histogram {
    Histogram::new(SECONDS)
}
