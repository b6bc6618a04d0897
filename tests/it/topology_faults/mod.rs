//! Several Redis that belong together, on bad days: masters die, come back, and hand their slots
//! on.

mod cluster;
mod demoted;
mod doubles;
mod failover;
mod replicas;
mod reshard;
mod survey;
mod tls;

use redis::RedisResult;

use crate::redis_faults::PATIENCE;
use crate::support::fleet::{Watch, Watched, data};
use crate::support::wire::Wire;
use crate::support::{Http, Redis, Service, eventually};

/// A service on this store, with these variables as well, once it has reached all of it.
async fn service(url: &str, variables: &[(&str, &str)]) -> Service {
    let mut all = vec![("LOCKKEEPER_STORE", url)];
    all.extend_from_slice(variables);
    let service = Service::start(&all, "").await;
    let http = service.http();
    eventually(PATIENCE, async || (http.get("/readyz").await.status == 200).then_some(())).await;
    service
}

/// A master and a replica with a wire between them, and one sentinel: so no election can fail.
async fn wired(down_after: u64) -> (Watched, Wire) {
    let master = data(&[]);
    let wire = Wire::to(master.port()).await;
    let replica = data(&["--replicaof", "127.0.0.1", &wire.port().to_string()]);
    let watch = Watch { sentinels: 1, down_after };
    (Watched::watched(master, replica, watch).await, wire)
}

/// A figure of the service, 0 if there is none yet.
async fn figure(http: &Http, name: &str) -> u64 {
    let text = String::from_utf8(http.get("/metrics").await.body.to_vec()).unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line.map_or(0, |value| value.trim().parse().unwrap())
}

/// Whether a server takes itself for a master; one that drops its clients is being made a replica.
fn is_master(redis: &Redis) -> bool {
    let told: RedisResult<String> = redis.try_words(&["INFO", "replication"]);
    told.is_ok_and(|told| told.contains("role:master\r"))
}
