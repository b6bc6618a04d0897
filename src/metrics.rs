//! Every metric of the service: name, help text, labels. A key, an owner or a token is never a
//! label.

mod leases;
mod stores;
mod text;

use std::fmt::Debug;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Metric, Registry, Unit};

use crate::metrics::leases::Leases;
use crate::metrics::stores::{Embedded, Redis, Redlock};
use crate::metrics::text::plain;

pub use crate::metrics::text::MetricsForm;

/// Buckets from a tenth of a millisecond, a request on an idle machine, to ten seconds, above every
/// deadline.
const SECONDS: [f64; 13] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2.0, 10.0];

/// Buckets from a hand-over between waiting clients to half an hour, beyond which only streams wait.
const WAITS: [f64; 13] =
    [0.001, 0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 300.0, 1_800.0];

/// The metrics, shared by all modules that count.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    /// The log's counter of lost lines.
    lost_lines: OnceLock<fn() -> u64>,
    requests: Requests,
    leases: Leases,
    embedded: Embedded,
    redis: Redis,
    redlock: Redlock,
}

#[derive(Debug)]
struct Requests {
    answered: Family<RequestLabels, Counter>,
    seconds: Histogram,
    wait_seconds: Histogram,
    acquire: Outcomes,
    refresh: Outcomes,
    release: Outcomes,
    force_release: Outcomes,
    waiters: Gauge<u64, AtomicU64>,
    waiters_gone: Counter,
    hold_streams: Gauge,
    connections: Gauge,
    log_lines_dropped: Counter,
    limits: Family<OneLabel<&'static str>, Gauge>,
    reloads: Outcomes,
    last_reload: Gauge,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    route: &'static str,
    method: &'static str,
    status: u16,
}

/// The only label of a metric: its name and value.
type OneLabel<T> = [(&'static str, T); 1];

type Outcomes = Family<OneLabel<&'static str>, Counter>;

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
pub(crate) struct Counting(Gauge);

impl Counting {
    fn of(gauge: &Gauge) -> Self {
        gauge.inc();
        Self(gauge.clone())
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        self.0.dec();
    }
}

/// Counts a client that disconnected, unless its request is answered first.
#[derive(Debug)]
pub(crate) struct Unanswered(Option<Counter>);

impl Unanswered {
    /// Notes that the request is being answered.
    pub(crate) fn answered(mut self) {
        self.0 = None;
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        if let Some(gone) = self.0.take() {
            gone.inc();
        }
    }
}

/// A gauge of seconds.
#[derive(Debug)]
pub struct SecondsGauge(Gauge<f64, AtomicU64>);

impl SecondsGauge {
    /// Sets the gauge.
    pub fn set(&self, seconds: f64) {
        self.0.set(seconds);
    }
}

impl Metrics {
    /// The metrics of a service on the embedded store, at zero.
    pub fn for_embedded() -> Self {
        Self::new(|used, unused| (Embedded::new(used), Redis::new(unused), Redlock::new(unused)))
    }

    /// The metrics of a service on Redis, at zero.
    pub fn for_redis() -> Self {
        Self::new(|used, unused| (Embedded::new(unused), Redis::new(used), Redlock::new(unused)))
    }

    /// The metrics of a service on Redlock, at zero.
    pub fn for_redlock() -> Self {
        Self::new(|used, unused| (Embedded::new(unused), Redis::new(used), Redlock::new(used)))
    }

    /// `stores` makes the metrics of each store; those in its second registry are not exported.
    fn new(
        stores: impl FnOnce(&mut Registry, &mut Registry) -> (Embedded, Redis, Redlock),
    ) -> Self {
        let mut registry = Registry::with_prefix("lockkeeper");
        let requests = Requests::new(&mut registry);
        let leases = Leases::new(&mut registry);
        let (embedded, redis, redlock) = stores(&mut registry, &mut Registry::default());
        Self { registry, lost_lines: OnceLock::new(), requests, leases, embedded, redis, redlock }
    }

    /// The metrics as text.
    pub fn render(&self, form: MetricsForm) -> String {
        let lost = self.lost_lines.get().map_or(0, |count| count());
        self.requests.log_lines_dropped.inner().store(lost, Ordering::Relaxed);
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("writing to a String cannot fail");
        if form == MetricsForm::Plain { plain(&text) } else { text }
    }

    /// Counts an answered request.
    pub fn request(&self, route: &'static str, method: &'static str, status: u16) {
        self.requests.answered.get_or_create(&RequestLabels { route, method, status }).inc();
    }

    /// Observes the duration in seconds of a request that did not wait in line.
    pub(crate) fn took(&self, seconds: f64) {
        self.requests.seconds.observe(seconds);
    }

    /// Observes the seconds that a request waited in line.
    pub(crate) fn waited(&self, seconds: f64) {
        self.requests.wait_seconds.observe(seconds);
    }

    /// Counts the outcome of a verb.
    pub fn outcome(&self, verb: Counted, outcome: &'static str) {
        let outcomes = match verb {
            Counted::Acquire => &self.requests.acquire,
            Counted::Refresh => &self.requests.refresh,
            Counted::Release => &self.requests.release,
            Counted::ForceRelease => &self.requests.force_release,
        };
        outcomes.get_or_create(&[("outcome", outcome)]).inc();
    }

    pub(crate) fn connected(&self) -> Counting {
        Counting::of(&self.requests.connections)
    }

    pub(crate) fn hold_stream(&self) -> Counting {
        Counting::of(&self.requests.hold_streams)
    }

    pub(crate) fn hold_streams(&self) -> u64 {
        self.requests.hold_streams.get().try_into().unwrap_or_default()
    }

    /// The number of keys held on the embedded store.
    pub(crate) fn locks_held(&self) -> u64 {
        self.embedded.held.get()
    }

    /// Counts a request that may wait in line, unless it is answered before its client disconnects.
    pub(crate) fn in_line(&self) -> Unanswered {
        Unanswered(Some(self.requests.waiters_gone.clone()))
    }

    /// Sets a limit of this instance.
    pub fn limit(&self, of: &'static str, most: usize) {
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        self.requests.limits.get_or_create(&[("of", of)]).set(most);
    }

    /// Sets the counter of lost log lines. There is one log.
    pub(crate) fn log_lines_dropped(&self, count: fn() -> u64) {
        let _ = self.lost_lines.set(count);
    }

    /// Adds a gauge of the end of the TLS certificate, in seconds since 1970.
    pub fn certificate_end(&mut self) -> SecondsGauge {
        let help = "The end of the TLS certificate, in seconds since 1970";
        let name = "tls_certificate_expiration_timestamp";
        SecondsGauge(timed(&mut self.registry, name, help, Gauge::default()))
    }

    /// Counts a reload of settings or other files, and sets how many of them failed last time.
    pub fn reloaded(&self, outcome: &'static str, failed: usize) {
        self.requests.reloads.get_or_create(&[("outcome", outcome)]).inc();
        self.requests.last_reload.set((failed == 0).into());
    }

    pub(crate) fn waiters(&self, waiting: usize) {
        self.requests.waiters.set(waiting as u64);
    }

    /// Sets the number of keys held, and observes the seconds of a commit.
    pub(crate) fn embedded(&self, held: usize, commit: Option<f64>) {
        self.embedded.held.set(held as u64);
        if let Some(took) = commit {
            self.embedded.commits.inc();
            self.embedded.commit_seconds.observe(took);
        }
    }

    pub(crate) fn embedded_up(&self, up: bool) {
        self.embedded.up.set(up.into());
    }

    /// Sets whether a Redis node is connected.
    pub fn redis_up(&self, node: &str, up: bool) {
        self.redis.up.get_or_create(&label(node)).set(up.into());
    }

    /// Sets whether a Redis node may evict locks.
    pub fn redis_evicts(&self, node: &str, evicts: bool) {
        self.redis.evicts.get_or_create(&label(node)).set(evicts.into());
    }

    /// The gauge of the lead of a node's clock over this machine's; below 0 the node is behind.
    pub fn redis_clock_lead(&self, node: &str) -> SecondsGauge {
        SecondsGauge(self.redis.clock_lead.get_or_create_owned(&label(node)))
    }

    /// Removes the metrics of a Redis node that is no longer in use.
    pub(crate) fn redis_forgotten(&self, node: &str) {
        let node = label(node);
        self.redis.up.remove(&node);
        self.redis.evicts.remove(&node);
        self.redis.clock_lead.remove(&node);
    }

    /// Counts a redirected call, `moved`, `ask` or `try_again`, or a new `master`.
    pub fn redis_rerouted(&self, kind: &'static str) {
        self.redis.rerouted.get_or_create(&[("kind", kind)]).inc();
    }

    /// Counts a call to Redis and observes its seconds.
    pub fn redis_call(&self, command: &'static str, took: f64) {
        self.redis.seconds.get_or_create(&[("command", command)]).observe(took);
    }

    /// Counts a failed call to Redis.
    pub fn redis_error(&self, kind: &'static str) {
        self.redis.errors.get_or_create(&[("kind", kind)]).inc();
    }

    pub(crate) fn fencing_floor(&self, floor: u64) {
        self.redis.fencing_floor.set(floor);
    }

    pub(crate) fn redlock_voting(&self, nodes: usize, voting: usize) {
        self.redlock.nodes.set(nodes as u64);
        self.redlock.voting.set(voting as u64);
    }

    /// Counts an attempt to win the votes of the nodes.
    pub fn redlock_attempt(&self, outcome: &'static str) {
        self.redlock.attempts.get_or_create(&[("outcome", outcome)]).inc();
    }

    /// Counts a refresh that told nodes of its lease.
    pub(crate) fn redlock_settled(&self) {
        self.redlock.settled.inc();
    }
}

impl Requests {
    fn new(registry: &mut Registry) -> Self {
        let version = vec![("version", env!("CARGO_PKG_VERSION"))];
        registry.register("build", "Version of the service", Info::new(version));
        let to_answer = "Time from a request's head to its answer, without waits in line";
        let in_line = "Time that acquires waited in line";
        let last = "1 if the last reload of every watched file succeeded";
        let lost = "Log lines that were lost: the log was too slow, or could not be written";
        let gone = "Clients that disconnected while their requests could wait";
        let metrics = Self {
            answered: metric(registry, "http_requests", "Answered HTTP requests"),
            seconds: timed(registry, "http_request_duration", to_answer, seconds()),
            wait_seconds: timed(registry, "acquire_wait", in_line, Histogram::new(WAITS)),
            acquire: metric(registry, "acquire", "Acquires by outcome"),
            refresh: metric(registry, "refresh", "Refreshes by outcome"),
            release: metric(registry, "release", "Releases by outcome"),
            force_release: metric(registry, "force_release", "Forced releases by outcome"),
            waiters: metric(registry, "waiters", "Requests waiting in line"),
            waiters_gone: metric(registry, "waiters_gone", gone),
            hold_streams: metric(registry, "hold_streams", "Open hold streams"),
            connections: metric(registry, "http_connections", "Connected clients"),
            log_lines_dropped: metric(registry, "log_lines_dropped", lost),
            limits: metric(registry, "limit", "Limits of this instance"),
            reloads: metric(registry, "reloads", "Reloads by outcome"),
            last_reload: metric(registry, "config_last_reload_successful", last),
        };
        metrics.last_reload.set(1); // The files were read at the start.
        // An alert sees the first lost lease only if it is counted from zero.
        for outcomes in [&metrics.acquire, &metrics.refresh] {
            drop(outcomes.get_or_create(&[("outcome", "lost")]));
        }
        metrics
    }
}

/// Creates and registers a metric.
fn metric<M: Metric + Clone + Default>(registry: &mut Registry, name: &str, help: &str) -> M {
    let metric = M::default();
    registry.register(name, help, metric.clone());
    metric
}

/// Registers a metric in seconds.
fn timed<M: Metric + Clone>(registry: &mut Registry, name: &str, help: &str, metric: M) -> M {
    registry.register_with_unit(name, help, Unit::Seconds, metric.clone());
    metric
}

fn label(node: &str) -> OneLabel<String> {
    [("node", node.to_owned())]
}

fn seconds() -> Histogram {
    Histogram::new(SECONDS)
}
