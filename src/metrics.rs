//! Every figure that the service exports: its name, its help text, its labels. A key, an owner or
//! a token is never a label.

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

/// From a tenth of a millisecond, what a request takes on an idle machine, to the ten seconds
/// after which no deadline is left.
const SECONDS: [f64; 13] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.0, 10.0];

/// The media type of [`Metrics::render`].
pub const MEDIA_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The figures, shared by all who count.
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

/// The verbs whose outcomes are counted.
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

/// Something that a gauge counts until this is dropped, by a panic too.
#[derive(Debug)]
pub struct Counting(Gauge);

impl Drop for Counting {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// How far the clock of one node is ahead of this machine's.
#[derive(Debug)]
pub struct ClockLead(Gauge<f64, AtomicU64>);

impl ClockLead {
    /// By so many seconds; below 0 it is behind.
    pub fn set(&self, seconds: f64) {
        self.0.set(seconds);
    }
}

impl Metrics {
    /// All figures at zero; those of a store that is not in use are left out.
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

    /// The figures as OpenMetrics text.
    pub fn render(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("writing to a String cannot fail");
        text
    }

    /// Counts an answered request.
    pub fn request(&self, route: &'static str, method: &'static str, status: u16) {
        self.requests.get_or_create(&Request { route, method, status }).inc();
    }

    /// Says in how many seconds a request was answered that did not wait in line.
    pub fn took(&self, seconds: f64) {
        self.request_seconds.observe(seconds);
    }

    /// Says how many seconds a request waited in line.
    pub fn waited(&self, seconds: f64) {
        self.wait_seconds.observe(seconds);
    }

    /// Counts how a verb ended: `granted`, `again`, `ok`, `held`, `lost` or `error`.
    pub fn outcome(&self, verb: Counted, outcome: &'static str) {
        let family = match verb {
            Counted::Acquire => &self.acquire,
            Counted::Refresh => &self.refresh,
            Counted::Release => &self.release,
            Counted::ForceRelease => &self.force_release,
        };
        family.get_or_create(&Outcome { outcome }).inc();
    }

    /// Counts a connected client until the answer is dropped.
    pub fn connected(&self) -> Counting {
        self.connections.inc();
        Counting(self.connections.clone())
    }

    /// Says how to count the log lines that were lost.
    pub fn log_lines_dropped(&self, count: impl Fn() -> u64 + Send + Sync + 'static) {
        // There is one log.
        let _ = self.lost_lines.0.set(Box::new(count));
    }

    /// Says how many requests wait in line.
    pub fn waiters(&self, waiting: usize) {
        self.waiters.set(i64::try_from(waiting).unwrap_or(i64::MAX));
    }

    /// How many streams of `POST /hold/{key}` there are.
    pub fn hold_streams(&self) -> &Gauge {
        &self.hold_streams
    }

    /// How many keys the embedded store holds, after a commit that took so many seconds.
    pub fn embedded(&self, held: usize, commit: Option<f64>) {
        self.locks_held.set(i64::try_from(held).unwrap_or(i64::MAX));
        if let Some(took) = commit {
            self.commits.inc();
            self.commit_seconds.observe(took);
        }
    }

    /// Says whether a node of Redis is connected.
    pub fn redis_up(&self, node: &str, up: bool) {
        self.redis_up.get_or_create(&RedisNode { node: node.to_owned() }).set(up.into());
    }

    /// Says whether a node of Redis may evict locks.
    pub fn redis_evicts(&self, node: &str, evicts: bool) {
        self.redis_evicts.get_or_create(&RedisNode { node: node.to_owned() }).set(evicts.into());
    }

    /// Where to say how far the clock of a node is ahead.
    pub fn redis_clock_lead(&self, node: &str) -> ClockLead {
        let node = RedisNode { node: node.to_owned() };
        ClockLead(self.redis_clock_lead.get_or_create_owned(&node))
    }

    /// Says that a node of Redis is in use no more.
    pub fn redis_forgotten(&self, node: &str) {
        let node = RedisNode { node: node.to_owned() };
        self.redis_up.remove(&node);
        self.redis_evicts.remove(&node);
        self.redis_clock_lead.remove(&node);
    }

    /// Counts why another node of Redis was turned to: `moved`, `ask`, `try_again` or `master`.
    pub fn redis_rerouted(&self, kind: &'static str) {
        self.redis_rerouted.get_or_create(&Kind { kind }).inc();
    }

    /// Counts a call to Redis and how long it took in seconds.
    pub fn redis_call(&self, command: &'static str, took: f64) {
        self.redis_seconds.get_or_create(&Command { command }).observe(took);
    }

    /// Counts a call to Redis that failed.
    pub fn redis_error(&self, kind: &'static str) {
        self.redis_errors.get_or_create(&Kind { kind }).inc();
    }

    /// The least that the next fencing token of this process will be.
    pub fn fencing_floor(&self, floor: u64) {
        self.fencing_floor.set(floor);
    }

    /// How many of several nodes vote.
    pub fn redlock_voting(&self, nodes: usize) {
        self.redlock_voting.set(i64::try_from(nodes).unwrap_or(i64::MAX));
    }

    /// Counts an attempt to get the votes of several nodes.
    pub fn redlock_attempt(&self, outcome: &'static str) {
        self.redlock_attempts.get_or_create(&Outcome { outcome }).inc();
    }

    /// Counts a fencing token that the nodes did not agree on at once.
    pub fn redlock_write_back(&self) {
        self.redlock_write_backs.inc();
    }

    fn register_requests(&mut self) {
        let registry = &mut self.registry;
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        registry.register("build", "The version that runs", Info::new(version.to_vec()));
        registry.register("http_requests", "Requests by their answers", self.requests.clone());
        registry.register_with_unit(
            "http_request_duration",
            "From the end of the head to the answer, without waits in line",
            Unit::Seconds,
            self.request_seconds.clone(),
        );
        registry.register_with_unit(
            "acquire_wait",
            "How long acquires waited in line",
            Unit::Seconds,
            self.wait_seconds.clone(),
        );
        registry.register("acquire", "Acquires by their outcomes", self.acquire.clone());
        registry.register("refresh", "Refreshes by their outcomes", self.refresh.clone());
        registry.register("release", "Releases by their outcomes", self.release.clone());
        registry.register(
            "force_release",
            "Forced releases by their outcomes",
            self.force_release.clone(),
        );
        registry.register("waiters", "Requests that wait in line", self.waiters.clone());
        registry.register("hold_streams", "Streams of holds", self.hold_streams.clone());
        registry.register("http_connections", "Connected clients", self.connections.clone());
        registry.register_collector(Box::new(self.lost_lines.clone()));
    }

    fn register_embedded(&mut self) {
        let registry = &mut self.registry;
        registry.register("locks_held", "Keys held at the moment", self.locks_held.clone());
        registry.register("commits", "Transactions on disk", self.commits.clone());
        registry.register_with_unit(
            "commit_duration",
            "How long a transaction took to be on disk",
            Unit::Seconds,
            self.commit_seconds.clone(),
        );
    }

    fn register_redlock(&mut self) {
        let registry = &mut self.registry;
        registry.register("redlock_voting", "Nodes that vote", self.redlock_voting.clone());
        registry.register(
            "redlock_attempts",
            "Attempts to get the votes of the nodes, by their outcomes",
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
        registry.register("redis_up", "Whether a node is connected", self.redis_up.clone());
        registry.register(
            "redis_evicts",
            "Whether a node may evict locks when its memory is full",
            self.redis_evicts.clone(),
        );
        registry.register_with_unit(
            "redis_clock_lead",
            "How far the clock of a node is ahead of this machine's",
            Unit::Seconds,
            self.redis_clock_lead.clone(),
        );
        registry.register_with_unit(
            "redis_command_duration",
            "Calls to Redis by command, those that timed out included",
            Unit::Seconds,
            self.redis_seconds.clone(),
        );
        registry.register("redis_errors", "Failed calls to Redis", self.redis_errors.clone());
        registry.register(
            "redis_rerouted",
            "Calls that another node of Redis was turned to for, and changes of the master",
            self.redis_rerouted.clone(),
        );
        registry.register(
            "fencing_floor",
            "The least that the next fencing token of this process will be",
            self.fencing_floor.clone(),
        );
    }
}

fn seconds() -> Histogram {
    Histogram::new(SECONDS)
}
