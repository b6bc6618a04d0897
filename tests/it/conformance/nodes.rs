//! Independent Redis nodes for the tests of one process: the servers are shared, each set of nodes
//! has a database of its own on them, and each test its keys.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use lockkeeper::lock::prefixes::Prefixes;
use lockkeeper::lock::store::Store;
use lockkeeper::lock::time::Ttl;
use lockkeeper::metrics::Metrics;
use lockkeeper::store::redis::{NodeTls, RedisSettings};
use lockkeeper::store::redlock::operator::Operator;
use lockkeeper::store::redlock::{RedlockSettings, Restarted, Rules};
use lockkeeper::store::{StoreSettings, open};

use crate::support::{PATIENCE, Redis, eventually};

/// The largest set.
const MOST: usize = 5;

/// Far more than a node takes on a busy machine; short leases still have their twentieth.
const NODE_TIMEOUT: Duration = Duration::from_millis(400);

/// The longest lease in the tests.
const LONGEST: Ttl = Ttl::from_millis(86_400_000);

/// The keys of one test on so many nodes.
#[derive(Debug)]
pub(crate) struct Nodes {
    urls: Vec<String>,
    key_prefix: String,
}

impl Nodes {
    /// So many nodes.
    pub(crate) fn of(nodes: usize) -> Self {
        static TESTS: AtomicU32 = AtomicU32::new(0);
        let test = TESTS.fetch_add(1, Ordering::Relaxed);
        let urls = servers().iter().take(nodes).map(|url| format!("{url}/{nodes}")).collect();
        Self { urls, key_prefix: format!("{test}:") }
    }

    /// An instance on them, once they vote.
    pub(crate) async fn store(&self, kept: Ttl, prefixes: Prefixes) -> Arc<dyn Store> {
        let mut settings = settings(&self.urls, &self.key_prefix, kept);
        settings.nodes.iter_mut().for_each(|node| node.prefixes = prefixes.clone());
        admit(&settings).await;
        let store =
            open(StoreSettings::Redlock(settings), Arc::new(Metrics::for_redlock())).unwrap();
        eventually(PATIENCE, async || store.contacted().ok()).await;
        store
    }
}

/// Lets new nodes vote at once, instead of after the longest lease.
pub(crate) async fn admit(settings: &RedlockSettings) {
    let operator = Operator::new(settings).unwrap();
    for status in operator.status().await {
        eventually(PATIENCE, async || operator.admit(&status.node).await.ok()).await;
    }
}

/// What a store on these nodes has to know.
pub(crate) fn settings(urls: &[String], key_prefix: &str, kept: Ttl) -> RedlockSettings {
    let node = |url: &String| RedisSettings {
        url: url.clone(),
        key_prefix: key_prefix.to_owned(),
        command_timeout: PATIENCE,
        connect_timeout: PATIENCE,
        tls: NodeTls::default(),
        min_replicas: 0,
        default_ttl: Ttl::from_millis(30_000),
        position_kept: kept,
        prefixes: Prefixes::default(),
    };
    RedlockSettings {
        nodes: urls.iter().map(node).collect(),
        restarted: Restarted::Doubted,
        rules: Rules { node_timeout: NODE_TIMEOUT, longest_lease: LONGEST },
    }
}

/// The servers of this process. They end with the thread that started them, so that one stays.
fn servers() -> &'static [String] {
    static URLS: OnceLock<Vec<String>> = OnceLock::new();
    URLS.get_or_init(|| {
        let (started, urls) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let servers: Vec<_> = (0..MOST).map(|_| Redis::start()).collect();
            started.send(servers.iter().map(Redis::url).collect()).unwrap();
            loop {
                std::thread::park();
            }
        });
        urls.recv().unwrap()
    })
}
