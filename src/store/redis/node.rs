//! One Redis: its connections, and the calls of scripts within their deadlines.
//!
//! All requests share two connections, so that requests in flight share a pipeline; to take one out
//! of a pool for each command costs another round trip. `link.rs` keeps the connections,
//! `topology.rs` decides which node has a key.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use deadpool_redis::Connection;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, RedisError, ServerErrorKind, Value};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep_until, timeout, timeout_at};

use crate::lock::error::{Effect, StoreError, Verb};
use crate::lock::watched::sound;
use crate::metrics::Metrics;
use crate::store::redis::RedisSettings;
use crate::store::redis::beginning::Beginning;
use crate::store::redis::clock::StoreClock;
use crate::store::redis::connect::{Connector, RarePool, connection_info};
use crate::store::redis::deadline::When;
use crate::store::redis::keys::{make_tags, spread};
use crate::store::redis::link::{Hints, Inner, Link, LinkKeeper};
use crate::store::redis::place::Scheme;
use crate::store::redis::refusal::{NodeError, is_answer, takes_no_writes};
use crate::store::redis::replicas::Replicas;
use crate::store::redis::rights::RIGHTS;
use crate::store::redis::script::{Reply, Script};

/// Measured: two share the work of both cores; more only cost processor time.
const LINKS: usize = 2;

/// More than the store's time and the estimate of it differ by their rounding.
const ROUNDING: Duration = Duration::from_millis(2);

/// The nodes that this process has made.
static NODES: AtomicU64 = AtomicU64::new(0);

/// One Redis, single and independent.
pub(in crate::store) struct Node {
    links: Vec<SharedLink>,
    /// Beside the shared ones, for the list. One scan of the keyspace at a time has it: a scan takes a
    /// good part of a node.
    rare: RarePool,
    /// Its number in this process, which no other node has.
    number: u64,
    deadline: Duration,
    inner: Arc<Inner>,
    /// The task that asks the node's replicas, if the settings require it.
    replicas: Option<Replicas>,
    _keepers: JoinSet<()>,
}

/// A shared connection, for the calls.
struct SharedLink {
    state: watch::Receiver<Link>,
    /// Makes the keeper check the connection at once.
    doubts: Arc<Notify>,
}

/// A script with its keys and arguments, and the time when it may act.
#[derive(Clone, Copy)]
pub(in crate::store) struct ScriptCall<'a> {
    pub(in crate::store) script: &'static Script,
    pub(in crate::store) keys: &'a [&'a str],
    pub(in crate::store) args: &'a [&'a str],
    pub(in crate::store) when: When,
}

/// The common parts of every node.
pub(super) struct NodeFactory {
    pub(super) settings: RedisSettings,
    pub(super) channel: String,
    pub(super) hints: Arc<dyn Hints>,
    pub(super) metrics: Arc<Metrics>,
}

/// The reason to ask a node.
#[derive(Clone, Copy)]
pub(in crate::store) enum Way {
    /// It has the key.
    Straight,
    /// It is about to have the key, according to the node that still has its slot.
    Asking,
}

impl NodeFactory {
    /// A node at an address that other nodes named.
    pub(super) fn make(
        &self,
        scheme: &Scheme,
        address: &str,
        hints: Arc<dyn Hints>,
    ) -> Result<Node, RedisError> {
        let settings = RedisSettings { url: scheme.url(address), ..self.settings.clone() };
        Node::new(&settings, self.channel.clone(), hints, self.metrics.clone(), RIGHTS)
    }
}

impl Node {
    /// Checks the settings for [`Node::new`], which begins to connect.
    pub(in crate::store) fn check(settings: &RedisSettings) -> Result<(), RedisError> {
        connection_info(&settings.url).map(|_| ())
    }

    /// The Redis of the settings; connects in the background.
    pub(in crate::store) fn new(
        settings: &RedisSettings,
        channel: String,
        hints: Arc<dyn Hints>,
        metrics: Arc<Metrics>,
        rights: &'static str,
    ) -> Result<Self, RedisError> {
        make_tags();
        let info = connection_info(&settings.url)?;
        let tls = &settings.tls;
        let patience = settings.connect_timeout;
        let rare = RarePool::new(&info, tls, patience)?;
        let inner = Arc::new(Inner {
            name: info.addr().to_string(),
            clock: StoreClock::new(info.addr().to_string(), &metrics),
            contacted: AtomicBool::new(false),
            evicts: AtomicBool::new(false),
            beginning: Beginning::of_database(info.redis_settings().db()),
            channel,
            rights,
            hints,
            metrics,
            demotions: watch::Sender::new(0),
            retired: watch::Sender::new(false),
        });
        let mut links = Vec::new();
        let mut keepers = JoinSet::new();
        for number in 0..LINKS {
            let (pushes, lost) = mpsc::unbounded_channel();
            let config = AsyncConnectionConfig::new().set_push_sender(pushes);
            let connector = Connector::new(&info, tls, patience, config)?;
            let (state, link) = watch::channel(Link::Connecting);
            let doubts = Arc::default();
            links.push(SharedLink { state: link, doubts: Arc::clone(&doubts) });
            // One listens: two would hear each hint twice, and ask twice.
            let listens = number == 0;
            let inner = inner.clone();
            let keeper =
                LinkKeeper { connector, patience, pushes: lost, state, doubts, inner, listens };
            keepers.spawn(sound("the keeper of a connection to Redis", keeper.keep()));
        }
        let deadline = settings.command_timeout;
        let replicas = match settings.min_replicas {
            0 => None,
            _ => {
                let (replicas, asking) = Replicas::new(&info, settings)?;
                keepers.spawn(sound("the task that asks replicas for acknowledgements", asking));
                Some(replicas)
            }
        };
        let number = NODES.fetch_add(1, Ordering::Relaxed);
        Ok(Self { links, rare, number, deadline, inner, replicas, _keepers: keepers })
    }

    /// Its number in this process, which no other node has.
    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Its address, for logs and errors.
    pub(in crate::store) fn name(&self) -> &str {
        &self.inner.name
    }

    /// `Ok` once it was connected; the error says why it was not, but not its address: everybody may
    /// read it.
    pub(in crate::store) fn contacted(&self) -> Result<(), String> {
        if !self.inner.contacted.load(Ordering::Relaxed) {
            return Err(match &*self.links[0].state.borrow() {
                Link::Down(reason) => reason.to_string(),
                _ => "not connected yet".to_owned(),
            });
        }
        self.replicas.as_ref().map_or(Ok(()), Replicas::contacted)
    }

    /// Its age, if it is known to have begun without data.
    pub(super) fn began_empty(&self) -> Option<Duration> {
        self.inner.beginning.empty_since().map(|began| began.elapsed())
    }

    /// Returns true while it is connected.
    pub(super) fn is_up(&self) -> bool {
        self.links.iter().any(|link| matches!(*link.state.borrow(), Link::Up(_)))
    }

    /// Ends the use of a node that another one has replaced: its connections close, and callers
    /// fail instead of waiting.
    pub(super) fn retire(&self) {
        self.inner.retired.send_replace(true);
    }

    /// Waits until another node has replaced it.
    pub(super) async fn retired(&self) {
        let mut retired = self.inner.retired.subscribe();
        // The sender lives as long as this node.
        let _ = retired.wait_for(|retired| *retired).await;
    }

    pub(super) fn host(&self) -> &str {
        self.inner.name.rsplit_once(':').map_or(&self.inner.name, |(host, _)| host)
    }

    /// The task that asks its replicas, if the settings require it.
    pub(super) fn replicas(&self) -> Option<&Replicas> {
        self.replicas.as_ref()
    }

    pub(in crate::store) fn clock(&self) -> &StoreClock {
        &self.inner.clock
    }

    /// Makes a call.
    ///
    /// A call without an answer fails when it can act no more: Redis may have it still, or get it,
    /// after its connection broke. What its caller does then is not overtaken by it.
    ///
    /// If the estimate of the store's time was wrong, which a refusal shows, the script runs once
    /// more: the first run did nothing. But where the wall clock has leapt, this machine was stopped
    /// with its clocks, and the arguments are of before.
    pub(in crate::store) async fn call(
        &self,
        call: &ScriptCall<'_>,
        way: Way,
        patience: Duration,
    ) -> Result<Reply, NodeError> {
        let until = Instant::now() + patience;
        let Some(deadline) = call.when.deadline() else {
            return self.run_until(until, call, way).await;
        };
        for _ in 0..2 {
            let Some(ends) = deadline.ends(patience) else {
                return Err(NodeError::Unusable(Effect::None, "no time is left for the call"));
            };
            let not_after = self.clock().at(ends).to_string();
            let args: Vec<_> =
                std::iter::once(&*not_after).chain(call.args.iter().copied()).collect();
            let reply = self.run_until(until, &ScriptCall { args: &args, ..*call }, way).await;
            if reply.as_ref().is_err_and(NodeError::may_be_on_its_way) {
                sleep_until((ends + ROUNDING).into()).await;
            }
            let reply = reply?;
            if reply.word() != "late" {
                return Ok(reply);
            }
            if deadline.wall_clock_has_leapt() {
                break;
            }
        }
        Err(NodeError::Unusable(Effect::None, "the call was late on the clock of Redis"))
    }

    async fn run_until(
        &self,
        deadline: Instant,
        call: &ScriptCall<'_>,
        way: Way,
    ) -> Result<Reply, NodeError> {
        let ScriptCall { script, keys, args, .. } = *call;
        let (shared, mut link) = self.link(deadline, spread(keys[0])).await?;
        let sent = Instant::now();
        let asked = async {
            match send(&mut link, &script.by_hash(keys, args), way).await {
                Err(error) if error.kind() == ServerErrorKind::NoScript.into() => {
                    send(&mut link, &script.by_source(keys, args), way).await
                }
                answered => answered,
            }
        };
        let answered = timeout_at(deadline.into(), asked).await;
        self.inner.metrics.redis_call(script.verb().name(), sent.elapsed().as_secs_f64());
        let value = match answered {
            Ok(answered) => answered.map_err(|error| self.failed(shared, error))?,
            Err(_) => {
                self.inner.metrics.redis_error("timeout");
                return Err(self.unreachable(Effect::Unknown, "no answer in time"));
            }
        };
        let malformed = NodeError::Unusable(Effect::Unknown, "malformed answer");
        let reply = Reply::read(value).ok_or(malformed)?;
        self.inner.clock.learn(sent, reply.now);
        Ok(reply)
    }

    /// The connection for rare commands, as soon as no other caller has it.
    pub(super) async fn rare(&self) -> Result<Connection, NodeError> {
        let connection = self.rare.get().await;
        connection.map_err(|reason| self.unreachable(Effect::None, &reason))
    }

    /// Sends a read-only command over the connection for rare ones.
    pub(super) async fn query(
        &self,
        over: &mut Connection,
        command: &Cmd,
    ) -> Result<Value, NodeError> {
        let answer = timeout(self.deadline, send(over, command, Way::Straight)).await;
        let reason = match answer {
            Ok(Ok(value)) => return Ok(value),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "no answer in time".to_owned(),
        };
        Err(self.unreachable(Effect::None, &reason))
    }

    /// The shared connection of a key, as soon as it is up.
    async fn link(
        &self,
        deadline: Instant,
        spread: usize,
    ) -> Result<(&SharedLink, MultiplexedConnection), NodeError> {
        // While the key's own connection is being made, another one serves it.
        for number in 0..LINKS {
            let shared = &self.links[(spread + number) % LINKS];
            if let Link::Up(connection) = &*shared.state.borrow() {
                return Ok((shared, connection.clone()));
            }
        }
        let shared = &self.links[spread % LINKS];
        let mut watched = shared.state.clone();
        let known = watched.wait_for(|link| !matches!(link, Link::Connecting));
        let reason = match timeout_at(deadline.into(), known).await {
            Ok(Ok(link)) => match &*link {
                Link::Up(connection) => return Ok((shared, connection.clone())),
                Link::Down(reason) => reason.to_string(),
                Link::Connecting => "connecting".to_owned(),
            },
            _ => "not connected yet".to_owned(),
        };
        self.inner.metrics.redis_error("disconnected");
        Err(self.unreachable(Effect::None, &reason))
    }

    fn unreachable(&self, effect: Effect, reason: &str) -> NodeError {
        NodeError::Unreachable { node: self.inner.name.clone(), effect, reason: reason.to_owned() }
    }

    /// Converts the error of a call, and tells the keeper of its connection.
    fn failed(&self, shared: &SharedLink, error: RedisError) -> NodeError {
        if is_answer(&error) {
            self.inner.metrics.redis_error("refused");
        } else {
            self.inner.metrics.redis_error("broken");
            shared.doubts.notify_one();
        }
        if takes_no_writes(&error) {
            self.inner.demotions.send_modify(|count| *count += 1);
        }
        NodeError::Failed { node: self.inner.name.clone(), error }
    }
}

/// Sends a command; a refusal by the server is an error like any other.
async fn send(
    connection: &mut MultiplexedConnection,
    command: &Cmd,
    way: Way,
) -> Result<Value, RedisError> {
    if let Way::Straight = way {
        return connection.send_packed_command(command).await.and_then(Value::extract_error);
    }
    // Sent together: the permission counts for the next command on the connection.
    let mut both = redis::pipe();
    both.add_command(redis::cmd("ASKING")).add_command(command.clone());
    let mut answers = connection.send_packed_commands(&both, 1, 1).await?;
    answers.pop().unwrap_or(Value::Nil).extract_error()
}

/// A call without an answer.
pub(in crate::store) fn failure(
    verb: Verb,
    effect: Effect,
    reason: impl Into<String>,
) -> StoreError {
    StoreError { verb, effect, fault: "Redis failed", reason: reason.into().into() }
}
