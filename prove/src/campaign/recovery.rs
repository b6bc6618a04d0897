//! How soon the service grants again after something was killed.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

use crate::http::Connection;
use crate::servers::instance::Errors;
use crate::servers::{LONGEST_LEASE, Site, Store};

/// How many leases the embedded store has when its process is killed.
const LEASES: usize = 100_000;
const CLIENTS: usize = 64;

/// How long one question may take before the next is asked, and the pause between two.
const QUESTION: Duration = Duration::from_millis(500);
const PAUSE: Duration = Duration::from_millis(2);

/// How long the service may take until it grants.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Killed {
    /// The one instance, which is restarted at once.
    Instance,
    /// A Redis that syncs each write, which is restarted at once.
    Redis,
    /// The master of a Sentinel set, which stays away.
    Master,
    /// A master of a Cluster with replicas, which stays away.
    MasterOfCluster,
    /// One of three nodes of Redlock, which stays away.
    Node,
}

impl Killed {
    const ALL: [Self; 5] =
        [Self::Instance, Self::Redis, Self::Master, Self::MasterOfCluster, Self::Node];

    fn store(self) -> Store {
        match self {
            Self::Instance => Store::Embedded,
            Self::Redis => Store::Redis,
            Self::Master => Store::Sentinel,
            Self::MasterOfCluster => Store::ClusterReplicas,
            Self::Node => Store::Redlock,
        }
    }

    fn about(self) -> &'static str {
        match self {
            Self::Instance => "embedded: the process with 100 000 leases, restarted",
            Self::Redis => "Redis, restarted",
            Self::Master => "Sentinel: the master, noticed after 1 s",
            Self::MasterOfCluster => "Cluster: the master of the key, noticed after 1 s",
            Self::Node => "Redlock: one node of three",
        }
    }
}

/// Kills each of them so many times, and prints how long it was to the first 201.
pub(crate) async fn measure(binary: &Path, below: &Path, rounds: usize) -> io::Result<()> {
    println!("| killed | median ms | least | most |\n|---|---|---|---|");
    for killed in Killed::ALL {
        let mut times = Vec::new();
        for round in 0..rounds {
            let directory = below.join(format!("recovery-{killed:?}-{round}"));
            std::fs::create_dir_all(&directory)?;
            times.push(one(killed, binary, &directory).await?);
            std::fs::remove_dir_all(&directory)?;
        }
        times.sort_unstable();
        let [median, least, most] = [rounds / 2, 0, rounds - 1].map(|at| times[at].as_millis());
        println!("| {} | {median} | {least} | {most} |", killed.about());
    }
    Ok(())
}

async fn one(killed: Killed, binary: &Path, directory: &Path) -> io::Result<Duration> {
    let mut site = Site::start(killed.store(), binary, directory, LONGEST_LEASE).await?;
    let address = site.instances[0].address();
    if killed == Killed::Instance {
        fill(address).await?;
    }
    let began = Instant::now();
    match killed {
        Killed::Instance => {
            site.instances[0].process.kill();
            site.instances[0].restart(Errors::File).await?;
        }
        Killed::Redis => {
            site.servers[0].process.kill();
            site.servers[0].restart().await?;
        }
        // The first is the master.
        Killed::Master | Killed::Node => site.servers[0].process.kill(),
        Killed::MasterOfCluster => {
            let master = site.master_of("lock:first").map_err(io::Error::other)?;
            site.servers[master].process.kill();
        }
    }
    while began.elapsed() < PATIENCE {
        if let Ok(Ok(201)) = timeout(QUESTION, acquire(address)).await {
            return Ok(began.elapsed());
        }
        sleep(PAUSE).await;
    }
    Err(io::Error::other(format!("{}: nothing is granted any more", killed.about())))
}

/// Takes a lease of an hour on so many keys.
async fn fill(address: SocketAddr) -> io::Result<()> {
    let mut clients = JoinSet::new();
    for client in 0..CLIENTS {
        clients.spawn(async move {
            let mut connection = Connection::open(address).await?;
            for number in (client..LEASES).step_by(CLIENTS) {
                let question = format!("POST /locks/lease-{number}?ttl=1h");
                let (status, _) = connection.call(&question, None).await?;
                if status != 201 {
                    return Err(io::Error::other(format!("lease {number}: {status}")));
                }
            }
            io::Result::Ok(())
        });
    }
    clients.join_all().await.into_iter().collect()
}

async fn acquire(address: SocketAddr) -> io::Result<u16> {
    let mut connection = Connection::open(address).await?;
    Ok(connection.call("POST /locks/first?ttl=1s", None).await?.0)
}
