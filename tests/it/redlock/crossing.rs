//! What happens between the two questions of a refresh that brings a lease to a node that missed it.

use std::time::Duration;

use tokio::task::JoinSet;

use crate::redis_faults::calls_of;
use crate::redlock::proxy::Flow;
use crate::redlock::{PATIENCE, PATIENT, Site, acquire, granted, look, release, serves};
use crate::support::{Answer, Http, Redis, Service, eventually};

const MINE: &str = "token-of-this-client";

/// What the way there takes: time for somebody else, on an instance beside the nodes.
const AWAY: Duration = Duration::from_millis(40);

const SHORT: Duration = Duration::from_secs(10);
const REFRESHED: &str = r#"{"ttl_ms":20000}"#;
const LONG: Duration = Duration::from_secs(60);

const ROUNDS: usize = 10;

/// An instance that is far from its nodes, and one that is beside them.
struct Crossing {
    site: Site,
    far: Service,
    near: Service,
}

impl Crossing {
    async fn begin() -> Self {
        let site = Site::lasting(3, LONG).await;
        let far = site.service().await;
        let urls = site.nodes.iter().map(Redis::url).collect::<Vec<_>>().join(" ");
        let near = Service::start(&[PATIENT, &[("LOCKKEEPER_STORE", &urls)]].concat(), "").await;
        serves(&near.http()).await;
        Self { site, far, near }
    }

    /// A refresh of a lease that one node has lost, once the others have refreshed it.
    async fn refreshing(&self, key: &str) -> JoinSet<Answer> {
        granted(&self.near.http(), key, MINE, SHORT).await;
        self.set(Flow::SlowThere(AWAY));
        self.refreshing_of(key).await
    }

    /// The same of a lease that is there.
    async fn refreshing_of(&self, key: &str) -> JoinSet<Answer> {
        // On a busy machine a node may have missed the grant: without the third it would be lost.
        eventually(PATIENCE, async || {
            let have_it = || self.site.nodes[..2].iter().all(|node| !left(node, key).is_zero());
            if !have_it() {
                let path = format!("/locks/{key}/refresh");
                self.near.http().token(MINE).put(&path, r#"{"ttl_ms":10000}"#).await;
            }
            have_it().then_some(())
        })
        .await;
        self.site.nodes[2].run::<()>(&format!("DEL lock:{key}"));
        let (http, path) = (self.far.http().token(MINE), format!("/locks/{key}/refresh"));
        let mut refreshing = JoinSet::new();
        refreshing.spawn(async move { told(&http, &path, REFRESHED).await });
        eventually(PATIENCE, async || {
            let all = self.site.nodes[..2].iter().all(|node| left(node, key) > SHORT);
            all.then_some(())
        })
        .await;
        refreshing
    }

    fn set(&self, flow: Flow) {
        self.site.proxies.iter().for_each(|proxy| proxy.set(flow));
    }

    fn near(&self) -> Http {
        self.near.http()
    }
}

/// The answer to a refresh; on a busy machine the nodes may be too late for it.
async fn told(http: &Http, path: &str, body: &str) -> Answer {
    loop {
        let answer = http.put(path, body).await;
        if answer.status != 503 {
            return answer;
        }
    }
}

/// What is left of a lock on a node; nothing if there is none.
fn left(node: &Redis, key: &str) -> Duration {
    let left = node.run::<i64>(&format!("PTTL lock:{key}"));
    Duration::from_millis(u64::try_from(left).unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refresh_that_crosses_a_release_brings_nothing_back() {
    let crossing = Crossing::begin().await;
    for round in 0..ROUNDS {
        let key = format!("given-up/{round}");
        let refreshing = crossing.refreshing(&key).await;
        let ended = match round % 2 {
            0 => release(&crossing.near(), &key, MINE).await.status == 204,
            _ => crossing.near().delete(&format!("/admin/locks/{key}")).await.status == 200,
        };
        assert!(ended, "round {round}");
        refreshing.join_all().await;
        crossing.set(Flow::Passing);
        assert_eq!(look(&crossing.near(), &key).await.field("held"), false, "round {round}");
        let kept: Vec<_> = crossing.site.nodes[..2].iter().map(|node| left(node, &key)).collect();
        assert_eq!(kept, [Duration::ZERO; 2], "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refresh_that_crosses_a_longer_repeat_leaves_it_alone() {
    let crossing = Crossing::begin().await;
    for round in 0..ROUNDS {
        let key = format!("repeated/{round}");
        let refreshing = crossing.refreshing(&key).await;
        assert_eq!(acquire(&crossing.near(), &key, MINE, LONG).await.status, 200, "{round}");
        refreshing.join_all().await;
        crossing.set(Flow::Passing);
        for node in &crossing.site.nodes {
            assert!(left(node, &key) > LONG / 2, "round {round}: {:?}", left(node, &key));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_refreshes_that_cross_the_shorter_one_cuts_no_node_that_missed_an_earlier_one() {
    let crossing = Crossing::begin().await;
    let nodes = &crossing.site.nodes;
    for round in 0..ROUNDS / 2 {
        let key = format!("twice/{round}");
        let refresh = async |ttl: Duration| {
            let (http, body) =
                (crossing.near().token(MINE), format!(r#"{{"ttl_ms":{}}}"#, ttl.as_millis()));
            let path = format!("/locks/{key}/refresh");
            let answer = told(&http, &path, &body).await;
            assert_eq!(answer.status, 200, "round {round}: {answer:?}");
        };
        granted(&crossing.near(), &key, MINE, SHORT).await;
        nodes[1].pause();
        refresh(SHORT).await;
        nodes[1].resume();
        crossing.set(Flow::SlowThere(AWAY * 4));
        crossing.site.proxies[2].set(Flow::Passing);
        let refreshing = crossing.refreshing_of(&key).await;
        // Only the refresh from afar has been told that the lease is missed there.
        nodes[2].pause();
        refresh(LONG).await;
        nodes[2].resume();
        refreshing.join_all().await;
        crossing.set(Flow::Passing);
        for node in &nodes[..2] {
            assert!(left(node, &key) > LONG / 2, "round {round}: {:?}", left(node, &key));
        }
        release(&crossing.near(), &key, MINE).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_vote_that_arrives_after_the_release_of_its_token_is_refused() {
    let crossing = Crossing::begin().await;
    let node = &crossing.site.nodes[2];
    for round in 0..ROUNDS {
        let key = format!("late/{round}");
        crossing.site.proxies[2].set(Flow::SlowThere(AWAY));
        granted(&crossing.far.http(), &key, MINE, LONG).await;
        let before = calls_of(node, "evalsha");
        let released = release(&crossing.near(), &key, MINE).await;
        assert_eq!(released.status, 204, "round {round}: {released:?}");
        // The release was one call, and the vote is another one.
        eventually(PATIENCE, async || (calls_of(node, "evalsha") > before + 1).then_some(())).await;
        crossing.site.proxies[2].set(Flow::Passing);
        assert_eq!(left(node, &key), Duration::ZERO, "round {round}");
        // The token may be used again at once.
        let again = acquire(&crossing.near(), &key, MINE, LONG).await;
        assert_eq!(again.status, 201, "round {round}: {again:?}");
        assert_eq!(release(&crossing.near(), &key, MINE).await.status, 204, "round {round}");
        let at_once = acquire(&crossing.near(), &key, MINE, LONG).await;
        assert_eq!(at_once.status, 201, "round {round}: {at_once:?}");
    }
}

/// A node that has the lease is out of reach, and another one missed it.
#[tokio::test(flavor = "multi_thread")]
async fn a_replacement_that_too_few_nodes_take_is_unknown_and_leaves_nothing_of_its_lease() {
    let crossing = Crossing::begin().await;
    let nodes = &crossing.site.nodes;
    for round in 0..ROUNDS / 2 {
        let key = format!("replaced/{round}");
        let lease = granted(&crossing.near(), &key, MINE, LONG).await.number("fencing_token");
        nodes[2].run::<()>(&format!("DEL lock:{key}"));
        crossing.site.proxies[1].set(Flow::Swallowing);
        let replace = async || {
            let path = format!("/locks/{key}?ttl=60s&fencing_token={lease}");
            crossing.far.http().token(MINE).post(&path, "").await
        };
        let first = replace().await;
        assert_eq!(first.told(), (503, "store_unavailable".into()), "round {round}");
        assert_eq!(first.text("outcome"), "unknown", "round {round}: {first:?}");
        crossing.set(Flow::Passing);
        let again = eventually(PATIENCE, async || {
            Some(replace().await).filter(|answer| answer.status != 503)
        });
        assert_eq!(again.await.told(), (409, "lock_lost".into()), "round {round}");
        let is_free = || nodes.iter().all(|node| left(node, &key) == Duration::ZERO);
        eventually(PATIENCE, async || is_free().then_some(())).await;
    }
}
