//! A Cluster: each call goes to the master of its slot, over this store's own nodes, and follows
//! redirections. Only a refused call is sent again.
//!
//! The map of the slots is read again when a node is lost, when the Cluster is down, and every few
//! seconds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use redis::{RedisError, ServerErrorKind};
use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio::time::{timeout, timeout_at};

use crate::lock::backoff::Backoff;
use crate::lock::error::{Effect, StoreError, Verb};
use crate::lock::watched::endless;
use crate::store::redis::connect::{RETRIES, connection_info};
use crate::store::redis::keys::{SLOTS, slot};
use crate::store::redis::link::Hints;
use crate::store::redis::node::{Node, NodeFactory, ScriptCall, Way, failure};
use crate::store::redis::place::Scheme;
use crate::store::redis::refusal::NodeError;
use crate::store::redis::script::Reply;
use crate::store::redis::slots::{Lookouts, SlotView, whole};

/// The most redirections of a call: more means that the nodes do not agree.
const MAX_HOPS: u32 = 8;

/// The pauses between attempts while a slot moves: its keys take milliseconds, but many calls may
/// wait, and many keys may move.
const ATTEMPTS: Backoff = Backoff::new(Duration::from_millis(5), Duration::from_millis(160));

/// The lock and its record: of a moving slot's keys, no node has those that there are not.
const ALWAYS: usize = 2;

/// The longest time between two reads of the map. Calls fail while masters are elected, which takes
/// seconds; after this time without a failed call the pauses between reads begin anew.
const LOOK_EVERY: Duration = Duration::from_secs(5);

/// The time for the other nodes to answer after a node that serves has answered.
const GRACE: Duration = Duration::from_millis(100);

/// A node without a slot is dropped after this time: it may be about to get some.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(60);

/// The store on a Cluster.
pub(super) struct Cluster {
    shared: Arc<ClusterState>,
    _surveyor: JoinSet<()>,
}

/// The state shared by the store and the task that keeps the map.
struct ClusterState {
    factory: NodeFactory,
    scheme: Scheme,
    seeds: Vec<String>,
    map: watch::Sender<Map>,
    outdated: Notify,
}

struct Map {
    /// The address of each slot's master; shared, because most of them are equal.
    owners: Vec<Option<Arc<str>>>,
    /// All connected nodes, with the time when each was last named.
    nodes: BTreeMap<Arc<str>, (Arc<Node>, Instant)>,
    replicas: BTreeSet<String>,
}

/// The redirection in a node's refusal.
enum Redirection {
    /// To the slot's new master.
    Moved(String),
    /// To the master-to-be, for this call only.
    Ask(String),
    /// To the same slot in a moment: some of the keys have moved, others have not.
    Again,
}

impl Cluster {
    /// Starts to read the slots in the background.
    pub(super) fn new(
        scheme: Scheme,
        seeds: Vec<String>,
        factory: NodeFactory,
    ) -> Result<Self, RedisError> {
        for seed in &seeds {
            connection_info(&scheme.url(seed))?;
        }
        let map =
            Map { owners: vec![None; SLOTS], nodes: BTreeMap::new(), replicas: BTreeSet::new() };
        let map = watch::Sender::new(map);
        let outdated = Notify::new();
        let shared = Arc::new(ClusterState { factory, scheme, seeds, map, outdated });
        let mut surveyor = JoinSet::new();
        surveyor.spawn(endless("the surveyor of the Cluster", shared.clone().survey()));
        Ok(Self { shared, _surveyor: surveyor })
    }

    /// `Ok` if all masters have been connected; the error says why one has not.
    pub(super) fn contacted(&self) -> Result<(), String> {
        self.owners()?.iter().try_for_each(|node| node.contacted())
    }

    /// All masters; an error if a slot has none.
    pub(super) fn owners(&self) -> Result<Vec<Arc<Node>>, String> {
        let map = self.shared.map.borrow();
        let addresses: Option<BTreeSet<_>> = map.owners.iter().cloned().collect();
        let nodes = addresses.ok_or("not every slot of the Cluster has a master")?;
        Ok(nodes.iter().filter_map(|address| map.node(address)).collect())
    }

    /// The master of a lock's slot; waits for one until `until`.
    pub(super) async fn owner(&self, lock: &str, until: Instant) -> Result<Arc<Node>, String> {
        let slot = slot(lock.as_bytes());
        if let Some(node) = self.shared.map.borrow().owner(slot) {
            return Ok(node);
        }
        let mut map = self.shared.map.subscribe();
        let known = map.wait_for(|map| map.owner(slot).is_some());
        match timeout_at(until.into(), known).await {
            Ok(Ok(map)) => Ok(map.owner(slot).expect("it is waited for")),
            _ => Err("no master is known for the slot".to_owned()),
        }
    }

    /// Calls the master of the first key, and follows redirections.
    pub(super) async fn call(
        &self,
        call: &ScriptCall<'_>,
        patience: Duration,
    ) -> Result<(Reply, Arc<Node>), StoreError> {
        let until = Instant::now() + patience;
        let verb = call.script.verb();
        let lock = call.keys[0];
        let owner = async || {
            let owner = self.owner(lock, until).await;
            owner.map_err(|reason| failure(verb, Effect::None, reason))
        };
        let mut node = owner().await?;
        let mut way = Way::Straight;
        let mut hops = 0;
        let mut attempts = ATTEMPTS;
        let mut keys = call.keys;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let error = match node.call(&ScriptCall { keys, ..*call }, way, left).await {
                Ok(reply) if reply.word() == "torn" => torn(node.name()),
                Ok(reply) => return Ok((reply, node)),
                Err(error) => error,
            };
            let Some(redirection) = redirection(&error, node.host()) else {
                if error.suggests_other_masters() {
                    self.shared.outdated.notify_one();
                }
                return Err(error.of(verb));
            };
            if !matches!(redirection, Redirection::Again) {
                hops += 1;
            }
            if hops > MAX_HOPS || Instant::now() + attempts.next() >= until {
                return Err(error.of(verb));
            }
            let next = match redirection {
                Redirection::Moved(address) => {
                    self.shared.factory.metrics.redis_rerouted("moved");
                    self.shared.outdated.notify_one();
                    self.shared.moved(lock, &address).map(|node| (node, Way::Straight))
                }
                Redirection::Ask(address) => {
                    self.shared.factory.metrics.redis_rerouted("ask");
                    self.shared.node(&address).map(|node| (node, Way::Asking))
                }
                Redirection::Again => {
                    self.shared.factory.metrics.redis_rerouted("try_again");
                    attempts.pause().await;
                    // Every second time the keys alone that there always are, if they may suffice.
                    let few = matches!(verb, Verb::Release | Verb::Inspect) && keys.len() > ALWAYS;
                    keys = if few { &call.keys[..ALWAYS] } else { call.keys };
                    Some((owner().await?, Way::Straight))
                }
            };
            (node, way) = next.ok_or_else(|| error.of(verb))?;
        }
    }
}

impl Map {
    fn node(&self, address: &str) -> Option<Arc<Node>> {
        self.nodes.get(address).map(|(node, _)| node.clone())
    }

    fn owner(&self, slot: usize) -> Option<Arc<Node>> {
        self.node(self.owners[slot].as_deref()?)
    }
}

impl ClusterState {
    /// Notes and returns the master of a lock's slot that another node named.
    fn moved(self: &Arc<Self>, lock: &str, address: &str) -> Option<Arc<Node>> {
        let node = self.node(address)?;
        self.map.send_modify(|map| map.owners[slot(lock.as_bytes())] = Some(address.into()));
        Some(node)
    }

    /// The node at this address; begins to connect to a new one.
    fn node(self: &Arc<Self>, address: &str) -> Option<Arc<Node>> {
        if let Some(node) = self.map.borrow().node(address) {
            return Some(node);
        }
        let hints = NodeHints { shared: Arc::downgrade(self), address: address.to_owned() };
        let made = match self.factory.make(&self.scheme, address, Arc::new(hints)) {
            Ok(node) => Arc::new(node),
            Err(error) => {
                tracing::warn!(redis = address, %error, "invalid node address");
                return None;
            }
        };
        let mut kept = None;
        self.map.send_modify(|map| {
            let entry = map.nodes.entry(address.into());
            kept = Some(entry.or_insert_with(|| (made, Instant::now())).0.clone());
        });
        kept
    }

    /// Keeps the map up to date for as long as the store lives.
    async fn survey(self: Arc<Self>) {
        let patience = self.factory.settings.connect_timeout;
        let tls = self.factory.settings.tls.clone();
        let mut lookouts = Lookouts::new(self.scheme.clone(), tls, patience);
        let mut known = None;
        let mut retries = RETRIES;
        loop {
            lookouts.turn_to(self.addresses());
            let failed = match look_around(&lookouts, patience).await {
                Ok(view) => {
                    self.learn(view);
                    if timeout(LOOK_EVERY, self.outdated.notified()).await.is_err() {
                        retries = RETRIES;
                    }
                    None
                }
                Err(reason) => Some(reason),
            };
            if let Some(reason) = failed.as_ref().filter(|_| failed != known) {
                tracing::warn!(%reason, "cannot read the slots from any Cluster node; retrying");
            }
            known = failed;
            retries.pause().await;
        }
    }

    /// The addresses of all known nodes.
    fn addresses(&self) -> BTreeSet<String> {
        let map = self.map.borrow();
        let mut addresses: BTreeSet<String> = self.seeds.iter().cloned().collect();
        addresses.extend(map.nodes.keys().map(|address| address.to_string()));
        addresses.extend(map.replicas.iter().cloned());
        addresses
    }

    /// Replaces the map by a view, until a node contradicts it.
    fn learn(self: &Arc<Self>, view: SlotView) {
        let mut owners = vec![None; SLOTS];
        let mut named = BTreeSet::new();
        for (first, last, address) in view.ranges {
            let address: Arc<str> = address.into();
            if self.node(&address).is_none() {
                continue;
            }
            named.insert(address.clone());
            for owner in owners.iter_mut().take(last + 1).skip(first) {
                *owner = Some(address.clone());
            }
        }
        self.map.send_modify(|map| {
            (map.owners, map.replicas) = (owners, view.replicas.into_iter().collect());
            map.nodes.retain(|address, (node, at)| {
                if named.contains(address) {
                    *at = Instant::now();
                }
                let stays = at.elapsed() < FORGOTTEN_AFTER;
                if !stays {
                    node.retire();
                }
                stays
            });
        });
    }
}

/// Asks all nodes; the view of the highest rank wins.
async fn look_around(lookouts: &Lookouts, patience: Duration) -> Result<SlotView, String> {
    let mut looks = lookouts.look();
    let mut best: Result<SlotView, String> = Err("no node answers".to_owned());
    let mut until = Instant::now() + 2 * patience;
    while let Ok(Some(view)) = timeout_at(until.into(), looks.next()).await {
        match (view, &best) {
            (Ok(view), Ok(known)) if view.rank() <= known.rank() => (),
            (Err(_), Ok(_)) => (),
            (view, _) => best = view,
        }
        if best.as_ref().is_ok_and(|view| view.serving) {
            until = until.min(Instant::now() + GRACE);
        }
    }
    best
}

/// The refusal of a call that needs more keys than the lock and the record.
fn torn(node: &str) -> NodeError {
    let reason = "the hash slot moves, and claims wait for the key or leases share it";
    let error = RedisError::from((ServerErrorKind::TryAgain.into(), reason));
    NodeError::Failed { node: node.to_owned(), error }
}

/// The redirection in the refusal of a node at `host`.
fn redirection(error: &NodeError, host: &str) -> Option<Redirection> {
    let NodeError::Failed { error, .. } = error else { return None };
    if error.kind() == ServerErrorKind::TryAgain.into() {
        return Some(Redirection::Again);
    }
    let address = whole(error.redirect_node()?.0, host);
    let moved = error.kind() == ServerErrorKind::Moved.into();
    Some(if moved { Redirection::Moved(address) } else { Redirection::Ask(address) })
}

/// Receives a node's hints and its loss.
struct NodeHints {
    shared: Weak<ClusterState>,
    address: String,
}

impl Hints for NodeHints {
    fn handed(&self, lock: &str) {
        // The Cluster's bus repeats each hint on every node; only the slot's master counts.
        let Some(shared) = self.shared.upgrade() else { return };
        let mine =
            shared.map.borrow().owners[slot(lock.as_bytes())].as_deref() == Some(&self.address);
        if mine {
            shared.factory.hints.handed(lock);
        }
    }

    fn lost(&self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.factory.hints.lost();
        }
    }

    fn away(&self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.outdated.notify_one();
        }
    }
}
