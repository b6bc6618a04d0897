//! Several redis-servers that belong together: a master with its replica and its sentinels, and a
//! Cluster. Tests that do nothing to the servers share them; they end with the test's process.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, mpsc};
use std::time::Duration;

use crate::support::{Redis, eventually};

/// What the sentinels call the master.
pub(crate) const MASTER: &str = "the-master";

/// Far more than it takes until servers have found one another.
const PATIENCE: Duration = Duration::from_secs(60);

const SLOTS: usize = 16_384;

/// A master, its replica, and the sentinels that watch both.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) master: Redis,
    pub(crate) replica: Redis,
    pub(crate) sentinels: Vec<Redis>,
}

/// How the sentinels watch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Watch {
    pub(crate) sentinels: usize,
    /// After how many milliseconds a master that does not answer is down.
    pub(crate) down_after: u64,
}

impl Watched {
    /// Started, and known to one another.
    pub(crate) async fn start(watch: Watch) -> Self {
        let master = data(&[]);
        let replica = data(&["--replicaof", "127.0.0.1", &master.port().to_string()]);
        Self::watched(master, replica, watch).await
    }

    /// The sentinels for these two, once all know one another.
    pub(crate) async fn watched(master: Redis, replica: Redis, watch: Watch) -> Self {
        eventually(PATIENCE, async || in_step(&master).then_some(())).await;
        let quorum = watch.sentinels / 2 + 1;
        let settings = format!(
            "sentinel monitor {MASTER} 127.0.0.1 {} {quorum}\n\
             sentinel down-after-milliseconds {MASTER} {}\n",
            master.port(),
            watch.down_after,
        );
        let sentinels: Vec<_> = (0..watch.sentinels).map(|_| Redis::sentinel(&settings)).collect();
        let others = format!("num-other-sentinels {}", watch.sentinels - 1);
        for sentinel in &sentinels {
            eventually(PATIENCE, async || {
                let known: Vec<String> = sentinel.run(&format!("SENTINEL MASTER {MASTER}"));
                let told = known.chunks(2).map(|pair| pair.join(" ")).collect::<Vec<_>>();
                let has = |line: &str| told.iter().any(|one| one == line);
                (has(&others) && has("num-slaves 1") && has("flags master")).then_some(())
            })
            .await;
        }
        Self { master, replica, sentinels }
    }

    /// The URL of the store on it.
    pub(crate) fn url(&self) -> String {
        let hosts: Vec<_> = self.sentinels.iter().map(Redis::address).collect();
        format!("redis-sentinel://{}/{MASTER}", hosts.join(","))
    }
}

/// A Cluster.
#[derive(Debug)]
pub(crate) struct Clustered {
    /// The masters in the order of their slots.
    pub(crate) masters: Vec<Redis>,
    /// One for each master, or none.
    pub(crate) replicas: Vec<Redis>,
}

impl Clustered {
    /// Three masters.
    pub(crate) async fn masters() -> Self {
        let masters: Vec<_> = (0..3).map(|_| member()).collect();
        for (number, node) in masters.iter().enumerate() {
            node.run::<()>(&format!("CLUSTER SET-CONFIG-EPOCH {}", number + 1));
            let (first, end) = (number * SLOTS / 3, (number + 1) * SLOTS / 3);
            node.run::<()>(&format!("CLUSTER ADDSLOTSRANGE {first} {}", end - 1));
        }
        let clustered = Self { masters, replicas: Vec::new() };
        clustered.meet().await;
        clustered
    }

    /// Three masters, each with a replica.
    pub(crate) async fn replicated() -> Self {
        let mut clustered = Self::masters().await;
        clustered.replicas = (0..3).map(|_| member()).collect();
        clustered.meet().await;
        for (master, replica) in clustered.masters.iter().zip(&clustered.replicas) {
            let id: String = master.run("CLUSTER MYID");
            replica.run::<()>(&format!("CLUSTER REPLICATE {id}"));
            eventually(PATIENCE, async || in_step(master).then_some(())).await;
        }
        // Each has to know whose replicas the others are.
        for node in clustered.nodes() {
            eventually(PATIENCE, async || {
                let known: String = node.run("CLUSTER NODES");
                (known.matches("slave").count() == 3).then_some(())
            })
            .await;
        }
        clustered
    }

    /// The URL of the store on it.
    pub(crate) fn url(&self) -> String {
        let hosts: Vec<_> = self.masters.iter().map(Redis::address).collect();
        format!("redis-cluster://{}", hosts.join(","))
    }

    fn nodes(&self) -> impl Iterator<Item = &Redis> {
        self.masters.iter().chain(&self.replicas)
    }

    async fn meet(&self) {
        let first = &self.masters[0];
        for node in self.nodes().skip(1) {
            first.run::<()>(&format!("CLUSTER MEET 127.0.0.1 {}", node.port()));
        }
        let all = format!("cluster_known_nodes:{}\r", self.nodes().count());
        for node in self.nodes() {
            eventually(PATIENCE, async || {
                let info: String = node.run("CLUSTER INFO");
                (info.contains("cluster_state:ok\r") && info.contains(&all)).then_some(())
            })
            .await;
        }
    }
}

/// A server that keeps nothing on disk, brings a replica in step at once, and soon has a word for
/// it to confirm.
pub(crate) fn data(arguments: &[&str]) -> Redis {
    let mut all = vec!["--save", "", "--appendonly", "no"];
    all.extend(["--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1"]);
    all.extend_from_slice(arguments);
    Redis::start_with(&all)
}

fn member() -> Redis {
    data(&["--cluster-enabled", "yes", "--cluster-node-timeout", "1000"])
}

/// Whether a master's replica has confirmed something: before that the master keeps all for itself,
/// though the replica already calls its link up.
pub(crate) fn in_step(master: &Redis) -> bool {
    let told: String = master.run("INFO replication");
    let replica = told.lines().find(|line| line.starts_with("slave0:"));
    replica.is_some_and(|line| line.contains("state=online") && !line.contains(",offset=0,"))
}

/// The URL of a store on sentinels that all tests share.
pub(crate) fn sentinel() -> &'static str {
    static URL: LazyLock<String> = LazyLock::new(|| {
        kept(async || {
            // Nobody is to take a busy machine for a master that is down.
            let watched = Watched::start(Watch { sentinels: 3, down_after: 60_000 }).await;
            (watched.url(), watched)
        })
    });
    &URL
}

/// The URL of a store on a Cluster that all tests share.
pub(crate) fn cluster() -> &'static str {
    static URL: LazyLock<String> = LazyLock::new(|| {
        kept(async || {
            let clustered = Clustered::masters().await;
            (clustered.url(), clustered)
        })
    });
    &URL
}

/// A prefix of keys that no other test has.
pub(crate) fn prefix() -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    format!("test-{}:", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Keeps servers in a thread of their own, which lasts as long as the process: they would end with
/// the thread that started them.
fn kept<S>(start: impl AsyncFnOnce() -> (String, S) + Send + 'static) -> String {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let (url, _servers) = runtime.block_on(start());
        tell.send(url).unwrap();
        loop {
            std::thread::park();
        }
    });
    told.recv().unwrap()
}
