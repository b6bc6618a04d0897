//! Redlock on real servers: what holds while nodes die, hang, forget, and disagree about the time.

mod certain;
mod contest;
mod contract;
mod direct;
mod forgetting;
mod hold;
mod late;
mod ledger;
mod libraries;
mod majority;
mod minority;
mod operator;
mod proxy;
mod restarts;
mod rolling;
mod settings;
mod since;
mod twins;

use std::time::{Duration, Instant};

use lockkeeper::lock::time::Ttl;
use lockkeeper::store::redlock::{RedlockSettings, Rules};

use crate::conformance::KEPT;
use crate::conformance::nodes::{admit, settings};
use crate::redlock::proxy::{Flow, Proxy};
use crate::support::{Answer, Http, Redis, Service, eventually};

/// Far more than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// Longer than any test takes.
const LONG: Duration = Duration::from_secs(600);

/// A syncing server: what it has said stays said.
const SAFE: &[&str] = &["--save", "", "--appendonly", "yes", "--appendfsync", "always"];

/// More than a node takes on a machine that is busy, where its deadline is not what is shown.
pub(crate) const PATIENT: &[(&str, &str)] = &[("LOCKKEEPER_REDLOCK_NODE_TIMEOUT", "400ms")];

/// The longest lease where no node forgets, or none is to vote again.
pub(crate) const LONGEST: Duration = Duration::from_secs(900);

/// Says so to an instance.
pub(crate) const LASTING: (&str, &str) = ("LOCKKEEPER_REDLOCK_LONGEST_LEASE", "15m");

/// Nodes, each behind a proxy of its own, which is the network to it.
struct Site {
    nodes: Vec<Redis>,
    proxies: Vec<Proxy>,
    longest: Duration,
}

/// How a node can be away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// The process is gone, and its data with it.
    Killed,
    /// The process is stopped: its machine takes what is sent, and nobody answers.
    Stopped,
    /// The network takes connections and swallows what is sent.
    Dropped,
}

impl Way {
    const ALL: [Self; 3] = [Self::Killed, Self::Stopped, Self::Dropped];
}

impl Site {
    /// So many nodes that keep nothing on disk, and vote.
    async fn of(nodes: usize) -> Self {
        Self::lasting(nodes, LONGEST).await
    }

    /// So many nodes that vote; one that forgets waits for `longest`.
    async fn lasting(nodes: usize, longest: Duration) -> Self {
        Self::on((0..nodes).map(|_| Redis::start()).collect(), longest).await
    }

    /// These nodes, which vote.
    async fn on(nodes: Vec<Redis>, longest: Duration) -> Self {
        let site = Self::new(nodes, longest).await;
        admit(&site.settings()).await;
        site
    }

    /// These nodes, which no instance has seen yet.
    async fn new(nodes: Vec<Redis>, longest: Duration) -> Self {
        let mut proxies = Vec::new();
        for node in &nodes {
            proxies.push(Proxy::to(node.port()).await);
        }
        Self { nodes, proxies, longest }
    }

    /// What an instance of this site has to know.
    fn settings(&self) -> RedlockSettings {
        let urls: Vec<_> = self.nodes.iter().map(Redis::url).collect();
        let settings = settings(&urls, "lock:", KEPT);
        let longest_lease = Ttl::from_millis(self.longest.as_millis() as u64);
        RedlockSettings { rules: Rules { longest_lease, ..settings.rules }, ..settings }
    }

    fn urls(&self) -> String {
        self.proxies.iter().map(Proxy::url).collect::<Vec<_>>().join(" ")
    }

    /// An instance that is patient with its nodes, once it serves.
    async fn service(&self) -> Service {
        self.service_with(PATIENT).await
    }

    /// An instance with these variables, once it serves.
    async fn service_with(&self, variables: &[(&str, &str)]) -> Service {
        let service = self.started_with(variables).await;
        let http = service.http();
        serves(&http).await;
        service
    }

    /// An instance with these variables, whether it serves or not.
    async fn started_with(&self, variables: &[(&str, &str)]) -> Service {
        self.started_by(variables, "").await
    }

    /// The same with a settings file.
    async fn started_by(&self, variables: &[(&str, &str)], settings: &str) -> Service {
        let urls = self.urls();
        let longest = format!("{}ms", self.longest.as_millis());
        let default = format!("{}ms", self.longest.as_millis().min(30_000));
        let mut all = vec![
            ("LOCKKEEPER_STORE", urls.as_str()),
            ("LOCKKEEPER_REDLOCK_LONGEST_LEASE", &longest),
            ("LOCKKEEPER_TTL_DEFAULT", &default),
        ];
        all.extend_from_slice(variables);
        Service::start(&all, settings).await
    }

    /// So many instances, once all nodes vote.
    async fn services(&self, instances: usize) -> Vec<Service> {
        let mut services = Vec::new();
        for _ in 0..instances {
            services.push(self.service().await);
        }
        self.all_vote().await;
        services
    }

    fn away(&mut self, node: usize, way: Way) {
        match way {
            Way::Killed => self.nodes[node].kill(),
            Way::Stopped => self.nodes[node].pause(),
            Way::Dropped => self.proxies[node].set(Flow::Swallowing),
        }
    }

    fn back(&mut self, node: usize, way: Way) {
        match way {
            Way::Killed => self.nodes[node].restart(),
            Way::Stopped => self.nodes[node].resume(),
            Way::Dropped => self.proxies[node].set(Flow::Passing),
        }
    }

    async fn all_vote(&self) {
        let all = || self.nodes.iter().all(votes);
        eventually(PATIENCE, async || all().then_some(())).await;
    }

    /// The names of the locks on a node, whoever's they are.
    fn locks_on(&self, node: usize) -> Vec<String> {
        self.nodes[node].run("KEYS lock:*")
    }

    /// Until no node has any lock; how long that took.
    async fn bare(&self) -> Duration {
        let began = Instant::now();
        let bare = || (0..self.nodes.len()).all(|node| self.locks_on(node).is_empty());
        eventually(PATIENCE, async || bare().then_some(())).await;
        began.elapsed()
    }
}

/// Until it grants and takes back.
pub(crate) async fn serves(http: &Http) {
    let key = "is-it-served";
    eventually(PATIENCE, async || {
        let token = format!("token-of-the-question-{}", fastrand::u64(..));
        let asked = acquire(http, key, &token, Duration::from_secs(1)).await;
        (asked.status == 201).then_some(())?;
        (release(http, key, &token).await.status == 204).then_some(())
    })
    .await;
}

/// Whether a node votes, as it knows itself.
fn votes(node: &Redis) -> bool {
    let Some(guard) = node.run::<Option<String>>("GET lk//guard:lock:") else { return false };
    let info: String = node.run("INFO server");
    let run = info.lines().find_map(|line| line.strip_prefix("run_id:")).unwrap();
    let (seconds, micros): (u64, u64) = node.run("TIME");
    let from = guard.split('|').nth(1).and_then(|from| from.parse::<u64>().ok()).unwrap();
    guard.starts_with(run) && from <= seconds * 1_000 + micros / 1_000
}

/// Asks for a key with a token of the client's own.
async fn acquire(http: &Http, key: &str, token: &str, ttl: Duration) -> Answer {
    let body = format!(r#"{{"token":"{token}","ttl_ms":{}}}"#, ttl.as_millis());
    let answer = http.post(&format!("/locks/{key}"), &body).await;
    assert!([200, 201, 409, 503].contains(&answer.status), "{answer:?}");
    answer
}

/// The grant to a token of the client's own.
async fn granted(http: &Http, key: &str, token: &str, ttl: Duration) -> Answer {
    let answer = acquire(http, key, token, ttl).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    answer
}

async fn refresh(http: &Http, key: &str, token: &str) -> Answer {
    http.token(token).put(&format!("/locks/{key}/refresh"), "").await
}

async fn release(http: &Http, key: &str, token: &str) -> Answer {
    http.token(token).delete(&format!("/locks/{key}")).await
}

async fn look(http: &Http, key: &str) -> Answer {
    http.get(&format!("/locks/{key}")).await
}

fn held() -> (u16, String) {
    (409, "lock_held".to_owned())
}

fn lost() -> (u16, String) {
    (409, "lock_lost".to_owned())
}

fn unavailable() -> (u16, String) {
    (503, "store_unavailable".to_owned())
}

/// The median and the 99th percentile.
fn quantiles(took: &mut [Duration]) -> (Duration, Duration) {
    took.sort_unstable();
    (took[took.len() / 2], took[took.len() * 99 / 100])
}
