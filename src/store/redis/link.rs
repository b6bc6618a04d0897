//! The shared connections to one Redis: each is kept by a task that notices its loss at once and
//! makes it anew, for as long as the node is in use.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use deadpool_redis::Pool;
use redis::aio::MultiplexedConnection;
use redis::{PushInfo, PushKind, Value};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, sleep, timeout};

use crate::metrics::Metrics;
use crate::store::redis::clock::StoreClock;
use crate::store::redis::connect::{RECONNECT_PAUSE, connect, look_at_eviction};
use crate::store::redis::refusal::shows_life;

/// Between two `PING`s on a connection, and how long the answer may take: something between this
/// machine and Redis may take in what it never sends on.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(3);

/// How often Redis is asked whether it may evict locks: an operator can change that at any time.
const SETTINGS_EVERY: Duration = Duration::from_secs(10);

/// What the keepers of the connections share with the node.
pub(super) struct Inner {
    pub(super) name: String,
    pub(super) clock: StoreClock,
    pub(super) contacted: AtomicBool,
    /// Whether it may evict locks, as it said last.
    pub(super) evicts: AtomicBool,
    pub(super) channel: String,
    pub(super) hints: Arc<dyn Hints>,
    pub(super) metrics: Arc<Metrics>,
    /// Counts how often the node said that it takes no writes.
    pub(super) demotions: watch::Sender<u64>,
    /// Whether the node is not to be used any more.
    pub(super) retired: watch::Sender<bool>,
}

/// Who takes the hints that other instances publish.
pub(in crate::store) trait Hints: Send + Sync {
    /// The lock of this name was handed to this instance.
    fn handed(&self, lock: &str);

    /// Some hints may have been lost.
    fn lost(&self);

    /// The node went away, or takes no writes any more: another one may have its place.
    fn away(&self) {}
}

/// A shared connection as it stands.
#[derive(Clone)]
pub(super) enum Link {
    /// Lost a moment ago, or not yet made: worth waiting for.
    Connecting,
    /// There.
    Up(MultiplexedConnection),
    /// The last try to make it failed; the next one comes by itself.
    Down(Arc<str>),
}

/// Whether a connection is the one that hears of hints.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ear {
    Open,
    Shut,
}

/// What a keeper is given.
pub(super) struct Keeper {
    pub(super) pool: Pool,
    pub(super) pushes: mpsc::UnboundedReceiver<PushInfo>,
    pub(super) state: watch::Sender<Link>,
    /// A call has met an error that may be the connection's.
    pub(super) doubts: Arc<Notify>,
    pub(super) inner: Arc<Inner>,
    pub(super) ear: Ear,
}

impl Keeper {
    /// Keeps the connection until the node is retired.
    pub(super) async fn keep(mut self) {
        let mut retired = self.inner.retired.subscribe();
        tokio::select! {
            () = self.keep_on() => (),
            _ = retired.wait_for(|retired| *retired) => (),
        }
        // Nobody may reach it any more, not even who waits for its connection.
        self.state.send_replace(Link::Down("another node has its place".into()));
    }

    async fn keep_on(&mut self) {
        loop {
            // What is left here is of the connection before.
            while self.pushes.try_recv().is_ok() {}
            match connect(&self.pool, &self.inner, self.ear).await {
                Ok(connection) => {
                    self.up(connection).await;
                    self.state.send_replace(Link::Connecting);
                    self.inner.metrics.redis_up(&self.inner.name, false);
                    self.inner.hints.away();
                }
                Err(reason) => {
                    if !matches!(&*self.state.borrow(), Link::Down(known) if **known == *reason) {
                        tracing::warn!(redis = self.inner.name, %reason, "cannot connect; retrying");
                    }
                    self.inner.metrics.redis_up(&self.inner.name, false);
                    self.state.send_replace(Link::Down(reason.into()));
                    sleep(RECONNECT_PAUSE).await;
                }
            }
        }
    }

    /// Serves a connection until it is lost, or leads to a node that takes no writes.
    async fn up(&mut self, mut connection: MultiplexedConnection) {
        let inner = self.inner.clone();
        let mut demotions = inner.demotions.subscribe();
        tracing::info!(redis = inner.name, "connected");
        inner.contacted.store(true, Ordering::Relaxed);
        inner.metrics.redis_up(&inner.name, true);
        self.state.send_replace(Link::Up(connection.clone()));
        inner.hints.lost();
        // What is pushed shows that the way here is open, not the way there; so it delays nothing.
        let mut heartbeats = every(HEARTBEAT);
        let mut settings = every(SETTINGS_EVERY);
        loop {
            let alive = tokio::select! {
                push = self.pushes.recv() => self.hear(push),
                _ = demotions.changed() => Err("it takes no writes any more".to_owned()),
                () = self.doubts.notified() => ping(&mut connection).await,
                _ = heartbeats.tick() => ping(&mut connection).await,
                _ = settings.tick(), if self.ear == Ear::Open => {
                    // Whether it is connected is for the heartbeats to say.
                    let _ = timeout(HEARTBEAT, look_at_eviction(&mut connection, &inner)).await;
                    Ok(())
                }
            };
            if let Err(reason) = alive {
                tracing::warn!(redis = inner.name, reason, "connection is of no use; reconnecting");
                return;
            }
        }
    }

    /// Hears what the node pushes: a hint, or that the connection is lost.
    fn hear(&self, push: Option<PushInfo>) -> Result<(), String> {
        match push {
            Some(PushInfo { kind: PushKind::Message, data }) => {
                if let Some(Value::BulkString(lock)) = data.get(1) {
                    self.inner.hints.handed(&String::from_utf8_lossy(lock));
                }
                Ok(())
            }
            None | Some(PushInfo { kind: PushKind::Disconnection, .. }) => {
                Err("the connection is lost".to_owned())
            }
            Some(_) => Ok(()),
        }
    }
}

/// Asks for a sign of life; the error says why the connection is of no use any more.
///
/// The client's own task may have ended without a word, for it does not report every failed write.
pub(super) async fn ping(connection: &mut MultiplexedConnection) -> Result<(), String> {
    let command = redis::cmd("PING");
    match timeout(HEARTBEAT, connection.send_packed_command(&command)).await {
        Err(_) => Err("the connection is silent".to_owned()),
        Ok(answer) => match answer.and_then(Value::extract_error) {
            Err(error) if !shows_life(&error) => Err(error.to_string()),
            _ => Ok(()),
        },
    }
}

/// Ticks so often, and once for all the ticks that were missed while this process was suspended.
pub(super) fn every(period: Duration) -> Interval {
    let mut ticks = interval_at(Instant::now() + period, period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.metrics.redis_forgotten(&self.name);
    }
}
