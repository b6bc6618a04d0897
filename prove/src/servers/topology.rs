//! The servers of each store, and the links to them.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::proxy::Proxy;
use crate::servers::instance::Log;
use crate::servers::process::free_port;
use crate::servers::redis::Server;
use crate::servers::{FAR, Link, PATIENCE, Site, Store};

/// What the sentinels call the master.
pub(super) const MASTER: &str = "locks";

/// The slots of a Cluster, and the masters that share them.
const SLOTS: usize = 16_384;
const MASTERS: usize = 3;

/// A server that has on disk what it has answered.
const SAFE: &[&str] = &["--save", "", "--appendonly", "yes", "--appendfsync", "always"];

/// A server that keeps nothing.
const FORGETFUL: &[&str] = &["--save", "", "--appendonly", "no"];

/// What all servers have: faults need `DEBUG`, and a replica is to be in step at once.
const COMMON: &[&str] = &[
    "--enable-debug-command",
    "local",
    "--repl-diskless-sync-delay",
    "0",
    "--repl-ping-replica-period",
    "1",
];

impl Site {
    /// Starts the servers and whatever belongs to them.
    pub(super) async fn start_servers(&mut self) -> io::Result<()> {
        match self.store {
            Store::Embedded => std::fs::create_dir_all(self.data()),
            Store::Redis | Store::Redis3 | Store::RedisFar => {
                self.start_server(SAFE, free_port()).await
            }
            Store::Redlock => {
                for _ in 0..3 {
                    self.start_server(FORGETFUL, free_port()).await?;
                }
                Ok(())
            }
            Store::Sentinel => self.start_sentinels().await,
            Store::Cluster => self.start_cluster(0).await,
            Store::ClusterReplicas => self.start_cluster(MASTERS).await,
        }
    }

    /// Returns the store's URL for an instance, whose own links it makes.
    pub(super) async fn url(&mut self, instance: usize) -> io::Result<String> {
        Ok(match self.store {
            Store::Embedded => format!("embedded:{}", self.data().display()),
            Store::Redis | Store::Redis3 | Store::RedisFar | Store::Redlock => {
                let mut urls = Vec::new();
                for server in 0..self.servers.len() {
                    let port = self.link(free_port(), Some(instance), server).await?;
                    urls.push(format!("redis://127.0.0.1:{port}"));
                }
                urls.join(" ")
            }
            Store::Sentinel => {
                let hosts: Vec<_> = self.sentinels.iter().map(Server::address).collect();
                format!("redis-sentinel://{}/{MASTER}", hosts.join(","))
            }
            Store::Cluster | Store::ClusterReplicas => {
                let hosts = self.links.iter().map(|link| link.proxy.address().to_string());
                format!("redis-cluster://{}", hosts.collect::<Vec<_>>().join(","))
            }
        })
    }

    /// Restarts the instances of Redlock one after another with the first so many nodes; a fourth is
    /// started if it has to be.
    pub(crate) async fn use_nodes(&mut self, nodes: usize) -> io::Result<()> {
        if self.servers.len() < nodes {
            let server = self.servers.len();
            self.start_server(FORGETFUL, free_port()).await?;
            for instance in 0..self.instances.len() {
                self.link(free_port(), Some(instance), server).await?;
            }
        }
        for (number, instance) in self.instances.iter_mut().enumerate() {
            let own = |link: &&Link| link.instance == Some(number) && link.server < nodes;
            let urls = self.links.iter().filter(own);
            let urls: Vec<_> =
                urls.map(|link| format!("redis://127.0.0.1:{}", link.proxy.port)).collect();
            instance.store = urls.join(" ");
            instance.roll(Log::File).await?;
        }
        Ok(())
    }

    async fn link(&mut self, port: u16, instance: Option<usize>, server: usize) -> io::Result<u16> {
        let distance = if self.store == Store::RedisFar { FAR } else { Duration::ZERO };
        let proxy = Proxy::start(port, self.servers[server].port, distance).await?;
        self.links.push(Link { instance, server, proxy });
        Ok(port)
    }

    async fn start_server(&mut self, arguments: &[&str], port: u16) -> io::Result<()> {
        let directory = self.directory.join(format!("server-{}", self.servers.len()));
        let arguments = [arguments, COMMON].concat();
        let server = Server::start(directory, &self.library, port, &arguments).await?;
        self.servers.push(server);
        Ok(())
    }

    /// A master and a replica, which all others know by the ports of the links to them.
    async fn start_sentinels(&mut self) -> io::Result<()> {
        let links = [free_port(), free_port()];
        let [master, replica] = links.map(|port| port.to_string());
        for (number, announced) in [&master, &replica].into_iter().enumerate() {
            let announce = ["--replica-announce-ip", "127.0.0.1", "--replica-announce-port"];
            let arguments = [SAFE, &announce, &[announced]].concat();
            self.start_server(&arguments, free_port()).await?;
            self.link(links[number], None, number).await?;
        }
        self.servers[1].run::<()>(&["REPLICAOF", "127.0.0.1", &master])?;
        self.until("no replica in step", |site| {
            let told = site.servers[0].info("replication");
            told.contains("state=online") && !told.contains(",offset=0,")
        })
        .await?;
        let settings = format!(
            "sentinel monitor {MASTER} 127.0.0.1 {master} 2\n\
             sentinel down-after-milliseconds {MASTER} 1000\n\
             sentinel failover-timeout {MASTER} 4000\n",
        );
        for number in 0..3 {
            let directory = self.directory.join(format!("sentinel-{number}"));
            std::fs::create_dir_all(&directory)?;
            std::fs::write(directory.join("redis.conf"), &settings)?;
            let arguments = ["redis.conf", "--sentinel"];
            let server = Server::start(directory, &self.library, free_port(), &arguments);
            self.sentinels.push(server.await?);
        }
        self.until("the sentinels do not find one another", |site| {
            site.sentinels.iter().all(|sentinel| {
                let known: io::Result<Vec<String>> = sentinel.run(&["SENTINEL", "MASTER", MASTER]);
                let known = known.unwrap_or_default();
                let has = |name, value| known.chunks(2).any(|pair| *pair == [name, value]);
                has("num-other-sentinels", "2") && has("num-slaves", "1") && has("flags", "master")
            })
        })
        .await
    }

    /// Three masters and so many replicas, which all others know by the ports of the links to them.
    async fn start_cluster(&mut self, replicas: usize) -> io::Result<()> {
        for number in 0..MASTERS + replicas {
            let link = free_port();
            let announced = link.to_string();
            let port = free_port();
            let bus = (port + 10_000).to_string();
            let arguments = [
                SAFE,
                &["--cluster-enabled", "yes", "--cluster-node-timeout", "1000"],
                &["--cluster-announce-ip", "127.0.0.1", "--cluster-announce-port", &announced],
                &["--cluster-announce-bus-port", &bus],
            ]
            .concat();
            self.start_server(&arguments, port).await?;
            self.link(link, None, number).await?;
        }
        for (number, node) in self.servers.iter().enumerate() {
            node.run::<()>(&["CLUSTER", "SET-CONFIG-EPOCH", &(number + 1).to_string()])?;
            if number < MASTERS {
                let [first, next] = [number, number + 1].map(|number| number * SLOTS / MASTERS);
                let (first, last) = (first.to_string(), (next - 1).to_string());
                node.run::<()>(&["CLUSTER", "ADDSLOTSRANGE", &first, &last])?;
            }
            if number > 0 {
                let (port, bus) = (node.port.to_string(), (node.port + 10_000).to_string());
                self.servers[0].run::<()>(&["CLUSTER", "MEET", "127.0.0.1", &port, &bus])?;
            }
        }
        let lonely = "the nodes of the Cluster do not find one another";
        self.until(lonely, Self::is_connected).await?;
        for (master, replica) in self.servers.iter().zip(&self.servers[MASTERS..]) {
            let id: String = master.run(&["CLUSTER", "MYID"])?;
            replica.run::<()>(&["CLUSTER", "REPLICATE", &id])?;
        }
        self.until("the replicas of the Cluster are not in step", Self::is_whole).await
    }

    /// Whether all nodes of the Cluster see all slots and one another.
    fn is_connected(&self) -> bool {
        let all = format!("cluster_known_nodes:{}\r", self.servers.len());
        self.servers.iter().all(|node| {
            let info: io::Result<String> = node.run(&["CLUSTER", "INFO"]);
            info.is_ok_and(|info| info.contains("cluster_state:ok\r") && info.contains(&all))
        })
    }

    /// Whether all nodes of the Cluster see it whole, and each master has its replica in step.
    pub(super) fn is_whole(&self) -> bool {
        let replicas = self.servers.len() - MASTERS;
        let infos: Vec<_> = self.servers.iter().map(|node| node.info("replication")).collect();
        let count = |text: &str| infos.iter().filter(|told| told.contains(text)).count();
        self.is_connected()
            && count("role:master\r") == MASTERS
            && count("master_link_status:up\r") == replicas
            && count("state=online") == replicas
    }

    pub(super) async fn until(
        &self,
        otherwise: &str,
        done: impl Fn(&Self) -> bool,
    ) -> io::Result<()> {
        let end = Instant::now() + PATIENCE;
        while !done(self) {
            if Instant::now() > end {
                return Err(io::Error::other(otherwise.to_owned()));
            }
            sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.data().join("locks.sqlite")
    }
}
