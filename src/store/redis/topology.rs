//! The choice of a Redis node for a call: a single node, the master that sentinels name, or the
//! master of the key's slot in a Cluster.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::lock::error::{Effect, StoreError, Verb};
use crate::lock::slots::Slots;
use crate::lock::store::Guarantees;
use crate::store::redis::SettingsError;
use crate::store::redis::cluster::Cluster;
use crate::store::redis::node::{Node, NodeFactory, ScriptCall, Way, failure};
use crate::store::redis::place::Place;
use crate::store::redis::refusal::NodeError;
use crate::store::redis::rights::RIGHTS;
use crate::store::redis::script::Reply;
use crate::store::redis::sentinel::Sentinel;

/// The promised order where all instances use one master for a key.
const ORDER: &str = "first come, first served, among waiting requests, across instances";

/// The nodes in their arrangement.
pub(super) enum Topology {
    Single(Arc<Node>),
    Sentinel(Sentinel),
    Cluster(Cluster),
}

impl Topology {
    /// The nodes that the URL of the settings leads to; connects in the background.
    pub(super) fn new(factory: NodeFactory) -> Result<Self, SettingsError> {
        Ok(match Place::parse(&factory.settings.url).map_err(SettingsError::Place)? {
            Place::Single => {
                let NodeFactory { settings, channel, hints, metrics } = factory;
                Self::Single(Arc::new(Node::new(&settings, channel, hints, metrics, RIGHTS)?))
            }
            Place::Sentinel(sentinels) => Self::Sentinel(Sentinel::new(sentinels, factory)?),
            Place::Cluster { nodes: scheme, seeds } => {
                Self::Cluster(Cluster::new(scheme, seeds, factory)?)
            }
        })
    }

    /// `Ok` if the present nodes have been connected; the error says why one has not.
    pub(super) fn contacted(&self) -> Result<(), String> {
        match self {
            Self::Single(node) => node.contacted(),
            Self::Sentinel(sentinel) => sentinel.contacted(),
            Self::Cluster(cluster) => cluster.contacted(),
        }
    }

    /// The age of the youngest node that is known to have begun without data.
    pub(super) fn began_empty(&self) -> Option<Duration> {
        match self {
            Self::Single(node) => node.began_empty(),
            Self::Sentinel(sentinel) => sentinel.known_master()?.began_empty(),
            Self::Cluster(cluster) => {
                cluster.owners().ok()?.iter().filter_map(|node| node.began_empty()).min()
            }
        }
    }

    /// Calls the node of the first key, and tells which it was.
    pub(super) async fn call(
        &self,
        call: &ScriptCall<'_>,
        patience: Duration,
    ) -> Result<(Reply, Arc<Node>), StoreError> {
        if let Self::Cluster(cluster) = self {
            return cluster.call(call, patience).await;
        }
        let until = Instant::now() + patience;
        let verb = call.script.verb();
        let node = self.node_of(verb, call.keys[0], until).await?;
        let left = until.saturating_duration_since(Instant::now());
        let answer = node.call(call, Way::Straight, left);
        let reply = match self {
            Self::Sentinel(_) => tokio::select! {
                reply = answer => reply,
                () = node.retired() => {
                    let reason = "another node became the master before the old one answered";
                    Err(NodeError::Unusable(Effect::Unknown, reason))
                }
            },
            _ => answer.await,
        };
        Ok((reply.map_err(|error| error.of(verb))?, node))
    }

    /// The node that has a lock; waits for one until `until`.
    pub(super) async fn node_of(
        &self,
        verb: Verb,
        lock: &str,
        until: Instant,
    ) -> Result<Arc<Node>, StoreError> {
        let known = match self {
            Self::Single(node) => Ok(node.clone()),
            Self::Sentinel(sentinel) => sentinel.master(until).await,
            Self::Cluster(cluster) => cluster.owner(lock, until).await,
        };
        known.map_err(|reason| failure(verb, Effect::None, reason))
    }

    /// All nodes that have locks.
    pub(super) async fn nodes(
        &self,
        verb: Verb,
        until: Instant,
    ) -> Result<Vec<Arc<Node>>, StoreError> {
        match self {
            Self::Cluster(cluster) => {
                cluster.owners().map_err(|reason| failure(verb, Effect::None, reason))
            }
            _ => Ok(vec![self.node_of(verb, "", until).await?]),
        }
    }

    /// The promises for locks on these nodes.
    pub(super) fn guarantees(&self) -> Guarantees {
        let fencing = "rises with every lease, also after a loss of Redis' data, if no instance's \
                       clock is more than a second behind, or a step of its clock; after both at \
                       once only while this process lives";
        let (store, fencing, survives) = match self {
            Self::Single(_) => (
                "redis",
                fencing,
                "crash and restart of the service; a restart of Redis, as far as it persists its \
                 data; not an asynchronous failover or a step of Redis' clock, where the fencing \
                 token protects",
            ),
            Self::Sentinel(_) => (
                "redis-sentinel",
                "rises with every lease, also after failovers between nodes whose clocks agree \
                 within a second, and after a loss of Redis' data, if no instance's clock is more \
                 than a second behind",
                "crash and restart of the service; a failover, if the lease was replicated before \
                 it: other leases are forgotten, and their keys may have two holders (fewer with \
                 redis.min_replicas); not a step of Redis' clock; in both, the fencing token \
                 protects",
            ),
            Self::Cluster(_) => (
                "redis-cluster",
                "rises with every lease, also after failovers and moved slots between nodes whose \
                 clocks agree within a second, and after a loss of Redis' data, if no instance's \
                 clock is more than a second behind",
                "crash and restart of the service; moved slots; a failover, if the lease was \
                 replicated before it: other leases are forgotten, and their keys may have two \
                 holders (fewer with redis.min_replicas); not a step of Redis' clock; in both, the \
                 fencing token protects",
            ),
        };
        let (sharing, most_slots) = ("up to 1 000 holders a key", Slots::MOST);
        let forced_by_number = false;
        Guarantees { store, order: ORDER, fencing, survives, sharing, most_slots, forced_by_number }
    }
}
