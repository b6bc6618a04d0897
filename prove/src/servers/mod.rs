//! A store, the instances of the service on it, and the network between all of them.
//!
//! Everything has a port of loopback and a directory below one temporary one, and ends with the
//! [`Site`], also when a panic ends it.

mod change;
pub(crate) mod instance;
pub(crate) mod process;
pub(crate) mod redis;
pub(crate) mod shim;
mod topology;

use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use crate::http::Connection;
use crate::proxy::Proxy;
use crate::servers::instance::Instance;
use crate::servers::process::free_port;
use crate::servers::redis::Server;
use crate::servers::shim::Shim;

/// How long a site may take until it grants and releases.
const PATIENCE: Duration = Duration::from_secs(60);

/// The longest lease on Redlock: short, so that a run can contain nodes that forget and vote again.
pub(crate) const LONGEST_LEASE: &str = "3s";

/// How long a message takes to a Redis that is far away: a client may go long before it can be answered.
const FAR: Duration = Duration::from_millis(20);

/// The longest that a request to a store may take, as in the settings.
pub(crate) const DEADLINE: Duration = Duration::from_secs(1);

/// The settings of all instances: they know the API key of the clients, and no other.
const SETTINGS: &str = r#"
ttl.default = "1500ms"
quotas.leases = 1000000
embedded.command_timeout = "1s"
redis.command_timeout = "1s"
redlock.node_timeout = "150ms"
[[api_keys]]
name = "proof"
sha256 = "31e3bcf3cb4bcddf7e386f9c325e1669066093f20d908a7c7b34b7b9e330df1f"
prefixes = [""]
permissions = ["acquire", "read", "admin"]
"#;

/// A store, and how many instances are on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Store {
    Embedded,        // One instance with its own file.
    Redis,           // One Redis that syncs each write, one instance.
    Redis3,          // The same with three instances.
    RedisFar,        // One Redis that is 20 ms away, and one instance.
    Sentinel,        // A master, a replica, three sentinels, two instances.
    Cluster,         // Three masters, two instances.
    ClusterReplicas, // Three masters with a replica each, two instances.
    Redlock,         // Three independent nodes that keep nothing, two instances.
}

impl Store {
    pub(crate) const ALL: [Self; 8] = [
        Self::Embedded,
        Self::Redis,
        Self::Redis3,
        Self::RedisFar,
        Self::Sentinel,
        Self::Cluster,
        Self::ClusterReplicas,
        Self::Redlock,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Embedded => "embedded",
            Self::Redis => "redis",
            Self::Redis3 => "redis-3",
            Self::RedisFar => "redis-far",
            Self::Sentinel => "sentinel",
            Self::Cluster => "cluster",
            Self::ClusterReplicas => "cluster-replicas",
            Self::Redlock => "redlock",
        }
    }

    pub(crate) fn of(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|store| store.name() == name)
    }

    pub(crate) fn instances(self) -> usize {
        match self {
            Self::Embedded | Self::Redis | Self::RedisFar => 1,
            Self::Redis3 => 3,
            Self::Sentinel | Self::Cluster | Self::ClusterReplicas | Self::Redlock => 2,
        }
    }

    /// Returns whether a replica may take over, and forget what it had not received.
    pub(crate) fn fails_over(self) -> bool {
        matches!(self, Self::Sentinel | Self::ClusterReplicas)
    }

    /// Returns whether leases can share a key.
    pub(crate) fn shares(self) -> bool {
        self != Self::Redlock
    }

    /// Returns what is taken off a lease for clocks of different speed.
    pub(crate) fn drift_ppm(self) -> u32 {
        if self == Self::Redlock { 10_000 } else { 0 }
    }
}

/// The network between an instance and a server, or in front of a server for all who use it.
#[derive(Debug)]
pub(crate) struct Link {
    /// The instance that uses it; all if there is none.
    pub(crate) instance: Option<usize>,
    pub(crate) server: usize,
    pub(crate) proxy: Proxy,
}

#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) store: Store,
    pub(crate) instances: Vec<Instance>,
    /// The servers that have locks.
    pub(crate) servers: Vec<Server>,
    pub(crate) sentinels: Vec<Server>,
    /// The network between clients and each instance.
    pub(crate) fronts: Vec<Proxy>,
    /// The network between instances and servers.
    pub(crate) links: Vec<Link>,
    library: PathBuf,
    pub(crate) directory: PathBuf,
}

#[derive(Clone, Debug)]
pub(crate) struct Routes {
    /// Each instance itself.
    pub(crate) direct: Vec<SocketAddr>,
    /// The proxy in front of each.
    pub(crate) proxied: Vec<SocketAddr>,
}

impl Site {
    /// Starts a site in this directory, once it grants and releases. On Redlock the longest lease is so
    /// long, and the nodes do not vote before.
    pub(crate) async fn start(
        store: Store,
        binary: &Path,
        directory: &Path,
        longest_lease: &str,
    ) -> io::Result<Self> {
        let library = shim::build(directory)?;
        let mut site = Self {
            store,
            instances: Vec::new(),
            servers: Vec::new(),
            sentinels: Vec::new(),
            fronts: Vec::new(),
            links: Vec::new(),
            library,
            directory: directory.to_owned(),
        };
        site.start_servers().await?;
        site.start_instances(binary, longest_lease).await?;
        site.until_it_serves().await?;
        Ok(site)
    }

    pub(crate) fn routes(&self) -> Routes {
        Routes {
            direct: self.instances.iter().map(Instance::address).collect(),
            proxied: self.fronts.iter().map(Proxy::address).collect(),
        }
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.directory.join("data")
    }

    /// Waits until each instance grants and releases.
    pub(crate) async fn until_it_serves(&mut self) -> io::Result<()> {
        let end = Instant::now() + PATIENCE;
        for (number, instance) in self.instances.iter_mut().enumerate() {
            loop {
                let asked = serves(instance.address(), "is-it-served", "token-of-the-site-itself");
                if let Ok(Ok(true)) = timeout(Duration::from_secs(2), asked).await {
                    break;
                }
                if !instance.process.runs() {
                    instance.restart().await?;
                }
                if Instant::now() > end {
                    return Err(io::Error::other(format!("instance {number} does not grant")));
                }
                sleep(Duration::from_millis(50)).await;
            }
        }
        Ok(())
    }

    async fn start_instances(&mut self, binary: &Path, longest_lease: &str) -> io::Result<()> {
        let settings = self.directory.join("lockkeeper.toml");
        let longest_lease = format!("redlock.longest_lease = \"{longest_lease}\"\n");
        std::fs::write(&settings, longest_lease + SETTINGS)?;
        for number in 0..self.store.instances() {
            let store = self.url(number).await?;
            let named = |end: &str| self.directory.join(format!("instance-{number}.{end}"));
            let shim = Shim::new(&self.library, named("shim"))?;
            let log = named("log");
            let instance = Instance::start(binary, settings.clone(), log, store, shim).await?;
            self.fronts.push(Proxy::start(free_port(), instance.port, Duration::ZERO).await?);
            self.instances.push(instance);
        }
        Ok(())
    }
}

/// Whether an instance grants a lease of a key and takes it back.
pub(crate) async fn serves(address: SocketAddr, key: &str, token: &str) -> io::Result<bool> {
    let mut connection = Connection::open(address).await?;
    let acquire = format!("POST /locks/{key}?ttl=1s");
    let (granted, _) = connection.call(&acquire, Some(token)).await?;
    let (released, _) = connection.call(&format!("DELETE /locks/{key}"), Some(token)).await?;
    Ok(matches!((granted, released), (200 | 201, 204)))
}
