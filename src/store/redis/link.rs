//! The shared connections to one Redis: while the node is in use, a task keeps each, notices its
//! loss at once and makes it again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{PushInfo, PushKind, RedisError, Value};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at, timeout};

use crate::metrics::Metrics;
use crate::store::redis::beginning::{Beginning, setting};
use crate::store::redis::clock::StoreClock;
use crate::store::redis::connect::{Connector, RETRIES};
use crate::store::redis::refusal::shows_life;
use crate::store::redis::rights::check;

/// The interval of heartbeats on a connection, and their time limit: something on the way to Redis may
/// accept data that it never forwards.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(3);

/// The interval of the eviction check: an operator can change the setting at any time.
const SETTINGS_EVERY: Duration = Duration::from_secs(10);

/// The state shared by the keepers of the connections and the node.
pub(super) struct Inner {
    pub(super) name: String,
    pub(super) clock: StoreClock,
    pub(super) contacted: AtomicBool,
    /// True if it may evict locks, by its last answer.
    pub(super) evicts: AtomicBool,
    pub(super) beginning: Beginning,
    pub(super) channel: String,
    /// The script that finds the rights that its user lacks.
    pub(super) rights: &'static str,
    pub(super) hints: Arc<dyn Hints>,
    pub(super) metrics: Arc<Metrics>,
    /// The number of answers that say that the node takes no writes.
    pub(super) demotions: watch::Sender<u64>,
    /// True once the node must not be used any more.
    pub(super) retired: watch::Sender<bool>,
}

/// The receiver of the hints that other instances publish.
pub(in crate::store) trait Hints: Send + Sync {
    /// Reports that the lock of this name was handed to this instance.
    fn handed(&self, lock: &str);

    /// Reports that hints may have been lost.
    fn lost(&self);

    /// Reports that the node is unreachable or takes no writes: another one may have replaced it.
    fn away(&self) {}
}

#[derive(Clone)]
pub(super) enum Link {
    /// Just lost, or not yet made: worth waiting for.
    Connecting,
    Up(MultiplexedConnection),
    /// The last attempt to connect failed; the next one follows by itself.
    Down(Arc<str>),
}

/// The task that keeps a connection.
pub(super) struct LinkKeeper {
    pub(super) connector: Connector,
    /// The time limit for the first answers on a new connection.
    pub(super) patience: Duration,
    pub(super) pushes: mpsc::UnboundedReceiver<PushInfo>,
    pub(super) state: watch::Sender<Link>,
    /// Notified when a call has met an error that may be the connection's.
    pub(super) doubts: Arc<Notify>,
    pub(super) inner: Arc<Inner>,
    /// True for the connection that receives the hints.
    pub(super) listens: bool,
}

impl LinkKeeper {
    /// Keeps the connection until the node is retired.
    pub(super) async fn keep(mut self) {
        let mut retired = self.inner.retired.subscribe();
        tokio::select! {
            () = self.keep_on() => (),
            _ = retired.wait_for(|retired| *retired) => (),
        }
        // No call may use it any more, and calls that wait for the connection fail now.
        self.state.send_replace(Link::Down("another node has replaced it".into()));
    }

    async fn keep_on(&mut self) {
        let mut retries = RETRIES;
        loop {
            // Older pushes belong to the previous connection.
            while self.pushes.try_recv().is_ok() {}
            match self.connect().await {
                Ok(connection) => {
                    retries = RETRIES;
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
                    retries.pause().await;
                }
            }
        }
    }

    /// Makes a connection to a node that takes writes, for a user that has the
    /// rights; reads its clock and its settings.
    async fn connect(&self) -> Result<MultiplexedConnection, String> {
        let mut connection = self.connector.connect().await?;
        let asked = async {
            let sent = std::time::Instant::now();
            let now = redis::cmd("TIME").query_async(&mut connection).await?;
            self.inner.clock.learn(sent, millis(now));
            if self.listens {
                self.inner.listen(&mut connection).await?;
            }
            redis::cmd("INFO").query_async::<String>(&mut connection).await
        };
        let told = timeout(self.patience, asked)
            .await
            .map_err(|_| "no answer in time".to_owned())?
            .map_err(|error| error.to_string())?;
        if setting(&told, "role:") == Some("slave") {
            return Err("it is a replica and takes no writes".to_owned());
        }
        if setting(&told, "loading:") == Some("1") {
            return Err("it is loading its data".to_owned());
        }
        self.inner.note_eviction(&told);
        let knew_it = self.inner.contacted.load(Ordering::Relaxed);
        if self.inner.beginning.note(&told) && knew_it {
            let redis = &self.inner.name;
            tracing::warn!(redis, "it has begun again without data; any earlier lease is lost");
        }
        let checked = timeout(self.patience, check(&mut connection, self.inner.rights)).await;
        let lacks = checked.map_err(|_| "no answer in time".to_owned())??;
        if self.listens && !lacks.is_empty() {
            let redis = &self.inner.name;
            tracing::warn!(
                redis,
                lacks,
                "the Redis user lacks rights; waiters are served late, or lists fail"
            );
        }
        Ok(connection)
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
        // A push proves only the way from Redis, not the way to it, so it delays no heartbeat.
        let mut heartbeats = every(HEARTBEAT);
        let mut settings = every(SETTINGS_EVERY);
        loop {
            let alive = tokio::select! {
                push = self.pushes.recv() => self.hear(push),
                _ = demotions.changed() => Err("it no longer takes writes".to_owned()),
                () = self.doubts.notified() => inner.beat(&mut connection).await,
                _ = heartbeats.tick() => inner.beat(&mut connection).await,
                _ = settings.tick(), if self.listens => {
                    // The heartbeats decide whether it is connected.
                    let _ = timeout(HEARTBEAT, inner.look_at_eviction(&mut connection)).await;
                    Ok(())
                }
            };
            if let Err(reason) = alive {
                tracing::warn!(redis = inner.name, reason, "connection unusable; reconnecting");
                return;
            }
        }
    }

    /// Handles a push of the node: a hint, or the loss of the connection.
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

/// The milliseconds of an answer to `TIME`.
fn millis((seconds, micros): (u64, u64)) -> u64 {
    seconds.saturating_mul(1_000).saturating_add(micros / 1_000)
}

/// Sends a `PING`; the error says why the connection is unusable.
pub(super) async fn ping(connection: &mut MultiplexedConnection) -> Result<(), String> {
    answer(connection, "PING").await.map(drop)
}

/// The answer to a command; an error says why the connection is unusable.
///
/// The client's own task may have ended silently, because it does not report every failed write.
async fn answer(
    connection: &mut MultiplexedConnection,
    command: &str,
) -> Result<Option<Value>, String> {
    let command = redis::cmd(command);
    match timeout(HEARTBEAT, connection.send_packed_command(&command)).await {
        Err(_) => Err("the connection is silent".to_owned()),
        Ok(answer) => match answer.and_then(Value::extract_error) {
            Err(error) if !shows_life(&error) => Err(error.to_string()),
            answer => Ok(answer.ok()),
        },
    }
}

/// Ticks every `period`, and once for all ticks missed while this process was suspended.
pub(super) fn every(period: Duration) -> Interval {
    let mut ticks = interval_at(Instant::now() + period, period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

impl Inner {
    /// Reads the node's clock, so that the estimate of it is never old; the error says why the
    /// connection is unusable.
    async fn beat(&self, connection: &mut MultiplexedConnection) -> Result<(), String> {
        let sent = std::time::Instant::now();
        let time = answer(connection, "TIME").await?;
        if let Some(time) = time.and_then(|time| redis::from_redis_value(time).ok()) {
            self.clock.learn(sent, millis(time));
        }
        Ok(())
    }

    /// Subscribes to hints. Without the permission, waiters are still served, by their own
    /// questions.
    async fn listen(&self, connection: &mut MultiplexedConnection) -> Result<(), RedisError> {
        match connection.subscribe(&self.channel).await {
            Err(error) if matches!(error.kind(), redis::ErrorKind::Server(_)) => {
                tracing::warn!(
                    redis = self.name,
                    %error,
                    "cannot subscribe; waiters are served late until the ACL allows channels lk//*"
                );
                Ok(())
            }
            listening => listening,
        }
    }

    /// Checks whether Redis may evict locks; without an answer the last state stays.
    async fn look_at_eviction(&self, connection: &mut MultiplexedConnection) {
        let told = redis::cmd("INFO").arg("memory").query_async::<String>(connection).await;
        if let Ok(told) = told {
            self.note_eviction(&told);
        }
    }

    /// Notes whether Redis may evict locks, and logs a change.
    fn note_eviction(&self, info: &str) {
        let limited = setting(info, "maxmemory:").is_some_and(|limit| limit != "0");
        let policy = setting(info, "maxmemory_policy:").unwrap_or("noeviction");
        let evicts = limited && policy != "noeviction";
        self.metrics.redis_evicts(&self.name, evicts);
        if self.evicts.swap(evicts, Ordering::Relaxed) == evicts {
            return;
        }
        let redis = &self.name;
        if evicts {
            tracing::warn!(redis, policy, "may evict locks: set maxmemory-policy noeviction");
        } else {
            tracing::info!(redis, "no longer evicts locks");
        }
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.metrics.redis_forgotten(&self.name);
    }
}
