//! One Redis under two names would have two votes.

use std::time::{Duration, Instant};

use crate::redlock::{PATIENCE, Site, acquire, refresh, unavailable};
use crate::support::{Process, Redis, eventually};

const MINE: &str = "token-of-this-client";
const TTL: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread")]
async fn one_redis_under_two_names_is_refused_with_a_clear_word() {
    let nodes = [Redis::start(), Redis::start()];
    let same = format!("redis://localhost:{}", nodes[0].port());
    let urls = [nodes[0].url(), nodes[1].url(), same];
    refuses(&urls).await;
    // Nothing was granted on it, and nothing is left.
    for node in &nodes {
        assert_eq!(node.run::<Vec<String>>("KEYS lock:*"), [""; 0]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_databases_of_one_redis_are_refused_with_a_clear_word() {
    let nodes = [Redis::start(), Redis::start()];
    let urls = [nodes[0].url(), format!("{}/1", nodes[0].url()), nodes[1].url()];
    refuses(&urls).await;
}

/// It votes already.
#[tokio::test(flavor = "multi_thread")]
async fn one_redis_under_two_names_is_refused_also_if_it_votes() {
    let site = Site::of(2).await;
    drop(site.services(1).await);
    let other = Redis::start();
    let urls = [site.nodes[0].url(), site.proxies[0].url_by("localhost"), other.url()];
    refuses(&urls).await;
    assert_eq!(site.locks_on(0), [""; 0]);
}

async fn refuses(urls: &[String]) {
    let stores: Vec<_> = urls.iter().flat_map(|url| ["--store", url.as_str()]).collect();
    let process = Process::start_with(&stores, &[]);
    let http = process.http();
    let began = Instant::now();
    let mut answer = acquire(&http, "twice", MINE, TTL).await;
    while began.elapsed() < Duration::from_secs(3) {
        assert_eq!(answer.told(), unavailable(), "{answer:?}");
        // The token is a client's, so an earlier call may have got it a lease.
        assert_eq!(answer.text("outcome"), "unknown");
        // Two votes of one server keep no lease either.
        assert_eq!(refresh(&http, "twice", MINE).await.status, 503);
        answer = acquire(&http, "twice", MINE, TTL).await;
    }
    let line = eventually(PATIENCE, async || {
        let log = process.log();
        // A call that failed for it may be in the log first.
        let mut errors = log.lines().filter(|line| line.contains("ERROR"));
        errors.find(|line| line.contains("two nodes are the same Redis")).map(str::to_owned)
    })
    .await;
    let host = |url: &String| url.trim_start_matches("redis://").trim_end_matches("/1").to_owned();
    let named = urls.iter().map(host).filter(|host| line.contains(host)).count();
    assert_eq!(named, 2, "{line}");
    assert_eq!(http.get("/readyz").await.status, 503);
}
