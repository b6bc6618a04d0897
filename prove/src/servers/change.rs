//! Changes to what belongs together: masters, slots, lists of nodes.

use std::collections::HashMap;
use std::io;
use std::time::Duration;

use redis::Value;
use tokio::time::{Instant, sleep};

use crate::servers::redis::Server;
use crate::servers::topology::MASTER;
use crate::servers::{PATIENCE, Site, Store};

/// How many keys of a slot move at once.
const BATCH: &str = "100";

impl Site {
    /// Returns the epoch of the sentinels or of a Cluster with replicas: it rises whenever a replica takes
    /// over, also where the old master is back at the end.
    pub(crate) fn epoch(&self) -> Option<u64> {
        match self.store {
            Store::ClusterReplicas => self.servers.iter().filter_map(cluster_epoch).max(),
            _ => self.sentinels.iter().filter_map(sentinel_epoch).max(),
        }
    }

    /// Has the sentinels replace the master, or a replica of the Cluster, chosen by this number, its own;
    /// they may refuse.
    pub(crate) fn fail_over(&self, chosen: usize) {
        let _: io::Result<Value> = if self.store == Store::ClusterReplicas {
            let replicas: Vec<_> = self.servers.iter().filter(is_replica).collect();
            let Some(replica) = replicas.get(chosen % replicas.len().max(1)) else { return };
            // One whose master does not have to agree.
            replica.run(&["CLUSTER", "FAILOVER", "FORCE"])
        } else {
            self.sentinels[0].run(&["SENTINEL", "FAILOVER", MASTER])
        };
    }

    /// Waits until there is one master with the other server as its replica in step, or until all nodes of
    /// the Cluster see it whole.
    pub(crate) async fn until_whole(&self) -> io::Result<()> {
        let whole = match self.store {
            Store::Sentinel => Self::is_replicated,
            Store::Cluster | Store::ClusterReplicas => Self::is_whole,
            _ => return Ok(()),
        };
        self.until("the servers do not come back", whole).await
    }

    fn is_replicated(&self) -> bool {
        let roles: Vec<_> = self.servers.iter().map(|one| one.info("replication")).collect();
        let count = |text: &str| roles.iter().filter(|told| told.contains(text)).count();
        let epochs: Vec<_> = self.sentinels.iter().map(sentinel_epoch).collect();
        count("role:master\r") == 1
            && count("master_link_status:up\r") == 1
            && epochs.iter().all(|epoch| *epoch == epochs[0])
    }

    pub(crate) async fn move_slot(&self, key: u32) -> io::Result<()> {
        let end = Instant::now() + PATIENCE;
        loop {
            match self.try_move_slot(&format!("lock:k{key}")) {
                Ok(()) => return Ok(()),
                Err(error) if Instant::now() > end => return Err(error),
                // A node is struck as well, or not back yet: the same steps may be taken again.
                Err(_) => sleep(Duration::from_millis(100)).await,
            }
        }
    }

    fn try_move_slot(&self, key: &str) -> io::Result<()> {
        let slot: u32 = self.servers[0].run(&["CLUSTER", "KEYSLOT", key])?;
        let ids: io::Result<Vec<String>> =
            self.servers.iter().map(|server| server.run(&["CLUSTER", "MYID"])).collect();
        let (slot, ids) = (slot.to_string(), ids?);
        let owner = self.servers.iter().position(|server| server.has_slot_of(key)).unwrap_or(0);
        let next = (owner + 1) % self.servers.len();
        let (from, to) = (&self.servers[owner], &self.servers[next]);
        to.run::<Value>(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &ids[owner]])?;
        from.run::<Value>(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &ids[next]])?;
        loop {
            let keys: Vec<String> = from.run(&["CLUSTER", "GETKEYSINSLOT", &slot, BATCH])?;
            if keys.is_empty() {
                break;
            }
            let port = to.port.to_string();
            let mut words = vec!["MIGRATE", "127.0.0.1", &port, "", "0", "1000", "REPLACE", "KEYS"];
            words.extend(keys.iter().map(String::as_str));
            from.run::<Value>(&words)?;
        }
        for server in [to, from].into_iter().chain(&self.servers) {
            server.run::<Value>(&["CLUSTER", "SETSLOT", &slot, "NODE", &ids[next]])?;
        }
        Ok(())
    }
}

/// Returns the epoch of the master that a sentinel names.
fn sentinel_epoch(sentinel: &Server) -> Option<u64> {
    let told: HashMap<String, String> = sentinel.run(&["SENTINEL", "MASTER", MASTER]).ok()?;
    told.get("config-epoch")?.parse().ok()
}

fn is_replica(server: &&Server) -> bool {
    server.info("replication").contains("role:slave\r")
}

/// Returns the greatest epoch that a node of a Cluster knows: each replica that takes over has a new one.
fn cluster_epoch(server: &Server) -> Option<u64> {
    let told: String = server.run(&["CLUSTER", "INFO"]).ok()?;
    let line = told.lines().find_map(|line| line.strip_prefix("cluster_current_epoch:"))?;
    line.trim().parse().ok()
}
