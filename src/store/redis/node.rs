//! One Redis: the connections to it, and a script's way there and back within its deadline.
//!
//! Commands of all requests share two connections that were taken out of a deadpool pool, so that
//! requests in flight share a pipeline; a checkout for each command costs a round trip more. Each
//! is kept by a task that notices its loss at once and makes it anew.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::time::Instant;

use deadpool_redis::Pool;
use redis::AsyncConnectionConfig;
use redis::Cmd;
use redis::RedisError;
use redis::ServerErrorKind;
use redis::Value;
use redis::aio::MultiplexedConnection;
use tokio::sync::mpsc;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio::time::timeout_at;

use crate::lock::error::Effect;
use crate::lock::error::StoreError;
use crate::lock::error::Verb;
use crate::metrics::Metrics;
use crate::store::redis::RedisSettings;
use crate::store::redis::clock::StoreClock;
use crate::store::redis::connect::connect;
use crate::store::redis::connect::connection_info;
use crate::store::redis::connect::pool;
use crate::store::redis::keys::spread;
use crate::store::redis::script::Reply;
use crate::store::redis::script::Script;

/// Measured: two share the work of both cores, more only cost processor time.
const LINKS: usize = 2;

/// Connections for rare and long work, the list, beside the shared ones.
const POOL_SIZE: usize = 4;

/// Between two tries to connect: Redis is served again well within a second of its return.
pub(super) const RECONNECT_PAUSE: Duration = Duration::from_millis(200);

/// One Redis, single and independent.
pub(super) struct Node {
    links: Vec<watch::Receiver<Link>>,
    pool: Pool,
    deadline: Duration,
    inner: Arc<Inner>,
    _keepers: JoinSet<()>,
}

/// What the keepers of the connections share with the node.
pub(super) struct Inner {
    pub(super) name: String,
    pub(super) clock: StoreClock,
    contacted: AtomicBool,
    pub(super) channel: String,
    hints: Arc<dyn Hints>,
    metrics: Arc<Metrics>,
}

/// Who takes the hints that other instances publish.
pub(super) trait Hints: Send + Sync {
    /// The lock of this name was handed to this instance.
    fn handed(&self, lock: &str);

    /// Some hints may have been lost.
    fn lost(&self);
}

/// A shared connection as it stands.
#[derive(Clone)]
enum Link {
    /// Lost a moment ago, or not yet made: worth waiting for.
    Connecting,
    /// There.
    Up(MultiplexedConnection),
    /// The last try to make it failed; the next one comes by itself.
    Down(Arc<str>),
}

impl Node {
    /// The Redis of the settings; connects in the background.
    pub(super) fn new(
        settings: &RedisSettings,
        channel: String,
        hints: Arc<dyn Hints>,
        metrics: Arc<Metrics>,
    ) -> Result<Self, RedisError> {
        let info = connection_info(settings)?;
        let rare = pool(&info, settings.connect_timeout, POOL_SIZE, AsyncConnectionConfig::new())?;
        let inner = Arc::new(Inner {
            name: info.addr().to_string(),
            clock: StoreClock::new(),
            contacted: AtomicBool::new(false),
            channel,
            hints,
            metrics,
        });
        let (mut links, mut keepers) = (Vec::new(), JoinSet::new());
        for number in 0..LINKS {
            let (pushes, lost) = mpsc::unbounded_channel();
            let config = AsyncConnectionConfig::new().set_push_sender(pushes);
            let one = pool(&info, settings.connect_timeout, 1, config)?;
            let (state, link) = watch::channel(Link::Connecting);
            links.push(link);
            // One listens: two would hear each hint twice, and ask twice.
            let listens = number == 0;
            keepers.spawn(keep(one, lost, state, inner.clone(), listens));
        }
        let deadline = settings.command_timeout;
        Ok(Self { links, pool: rare, deadline, inner, _keepers: keepers })
    }

    /// Whether it was ever connected.
    pub(super) fn contacted(&self) -> bool {
        self.inner.contacted.load(Ordering::Relaxed)
    }

    /// The store's time, about.
    pub(super) fn clock(&self) -> &StoreClock {
        &self.inner.clock
    }

    /// How long a call may take.
    pub(super) fn deadline(&self) -> Duration {
        self.deadline
    }

    /// Runs a script that refuses to act once `patience` is over: its first argument is that
    /// moment in the store's time.
    ///
    /// If the service's idea of the store's time was wrong, which a refusal tells, the script is
    /// run once more: the first run did nothing.
    pub(super) async fn run_in_time(
        &self,
        script: &'static Script,
        keys: &[&str],
        args: &[&str],
        patience: Duration,
    ) -> Result<Reply, StoreError> {
        let began = Instant::now();
        for _ in 0..2 {
            let not_after = self.clock().now() + millis(patience);
            let not_after = not_after.to_string();
            let mut all = vec![not_after.as_str()];
            all.extend_from_slice(args);
            let reply = self.run_until(began + patience, script, keys, &all).await?;
            if reply.word() != "late" {
                return Ok(reply);
            }
        }
        Err(failure(script.verb(), Effect::None, "the clock of Redis steps too often"))
    }

    /// Runs a script that may act at any time.
    pub(super) async fn run(
        &self,
        script: &'static Script,
        keys: &[&str],
        args: &[&str],
        patience: Duration,
    ) -> Result<Reply, StoreError> {
        self.run_until(Instant::now() + patience, script, keys, args).await
    }

    async fn run_until(
        &self,
        deadline: Instant,
        script: &'static Script,
        keys: &[&str],
        args: &[&str],
    ) -> Result<Reply, StoreError> {
        let verb = script.verb();
        let mut link = self.link(deadline, verb, spread(keys[0])).await?;
        let sent = Instant::now();
        let asked = async {
            match send(&mut link, &script.by_hash(keys, args)).await {
                Err(error) if error.kind() == ServerErrorKind::NoScript.into() => {
                    send(&mut link, &script.by_source(keys, args)).await
                }
                answered => answered,
            }
        };
        let answered = timeout_at(deadline.into(), asked).await;
        self.inner.metrics.redis_call(verb.name(), sent.elapsed().as_secs_f64());
        let value = match answered {
            Ok(answered) => answered.map_err(|error| self.failed(verb, &error))?,
            Err(_) => {
                self.inner.metrics.redis_error("timeout");
                let reason = format!("{} did not answer in time", self.inner.name);
                return Err(failure(verb, Effect::Unknown, reason));
            }
        };
        let reply = Reply::read(value)
            .ok_or_else(|| failure(verb, Effect::Unknown, "an answer of unknown form"))?;
        self.inner.clock.learn(sent, reply.now);
        Ok(reply)
    }

    /// Sends a command that changes nothing over a connection of its own.
    pub(super) async fn query(&self, verb: Verb, command: &Cmd) -> Result<Value, StoreError> {
        let deadline = Instant::now() + self.deadline;
        let asked = async {
            let mut connection = self.pool.get().await.map_err(|error| error.to_string())?;
            send(&mut connection, command).await.map_err(|error| error.to_string())
        };
        timeout_at(deadline.into(), asked)
            .await
            .unwrap_or_else(|_| Err("it did not answer in time".to_owned()))
            .map_err(|reason| failure(verb, Effect::None, format!("{}: {reason}", self.inner.name)))
    }

    /// The shared connection of a key, once it is there.
    async fn link(
        &self,
        deadline: Instant,
        verb: Verb,
        spread: usize,
    ) -> Result<MultiplexedConnection, StoreError> {
        // While the key's own connection is made anew, another one serves it.
        for number in 0..LINKS {
            if let Link::Up(connection) = &*self.links[(spread + number) % LINKS].borrow() {
                return Ok(connection.clone());
            }
        }
        let watched = &self.links[spread % LINKS];
        let mut watched = watched.clone();
        let known = watched.wait_for(|link| !matches!(link, Link::Connecting));
        let reason = match timeout_at(deadline.into(), known).await {
            Ok(Ok(link)) => match &*link {
                Link::Up(connection) => return Ok(connection.clone()),
                Link::Down(reason) => reason.to_string(),
                Link::Connecting => "it is being connected".to_owned(),
            },
            _ => "it is not connected yet".to_owned(),
        };
        self.inner.metrics.redis_error("disconnected");
        Err(failure(verb, Effect::None, format!("{}: {reason}", self.inner.name)))
    }

    fn failed(&self, verb: Verb, error: &RedisError) -> StoreError {
        // An answer of the server says that it refused; a broken connection says nothing.
        let refused = matches!(error.kind(), redis::ErrorKind::Server(_))
            || error.kind() == redis::ErrorKind::Extension;
        let effect = if refused { Effect::None } else { Effect::Unknown };
        self.inner.metrics.redis_error(if refused { "refused" } else { "broken" });
        failure(verb, effect, format!("{}: {error}", self.inner.name))
    }
}

impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Node").field(&self.inner.name).finish()
    }
}

/// Keeps one shared connection: makes it, waits for its loss, makes it anew.
async fn keep(
    pool: Pool,
    mut pushes: mpsc::UnboundedReceiver<redis::PushInfo>,
    state: watch::Sender<Link>,
    inner: Arc<Inner>,
    listens: bool,
) {
    loop {
        match connect(&pool, &inner, listens).await {
            Ok(connection) => {
                tracing::info!(redis = inner.name, "connected");
                inner.contacted.store(true, Ordering::Relaxed);
                inner.metrics.redis_up(true);
                state.send_replace(Link::Up(connection));
                inner.hints.lost();
                while let Some(push) = pushes.recv().await
                    && push.kind != redis::PushKind::Disconnection
                {
                    if let (redis::PushKind::Message, Some(Value::BulkString(lock))) =
                        (push.kind, push.data.get(1))
                    {
                        inner.hints.handed(&String::from_utf8_lossy(lock));
                    }
                }
                tracing::warn!(redis = inner.name, "the connection is lost");
                inner.metrics.redis_up(false);
                state.send_replace(Link::Connecting);
            }
            Err(reason) => {
                if !matches!(&*state.borrow(), Link::Down(known) if **known == *reason) {
                    tracing::warn!(redis = inner.name, %reason, "cannot connect, trying on");
                }
                state.send_replace(Link::Down(reason.into()));
                sleep(RECONNECT_PAUSE).await;
            }
        }
    }
}

/// Sends a command; a refusal by the server is an error like any other.
async fn send(connection: &mut MultiplexedConnection, command: &Cmd) -> Result<Value, RedisError> {
    connection.send_packed_command(command).await.and_then(Value::extract_error)
}

/// A call without an answer.
pub(super) fn failure(verb: Verb, effect: Effect, reason: impl Into<String>) -> StoreError {
    StoreError { verb, effect, reason: reason.into().into() }
}

pub(super) fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
