//! The start of a lease in the records of the nodes: through losses.

use std::time::{Duration, Instant};

use crate::redlock::proxy::Flow;
use crate::redlock::{
    LONG, PATIENCE, PATIENT, Site, acquire, granted, held, look, refresh, serves,
};
use crate::support::{Http, Redis, Service, eventually};

const MINE: &str = "token-of-this-client";

/// The limit of a lease.
const LIMIT: Duration = Duration::from_secs(300);

/// The way of a message to a node.
const AWAY: Duration = Duration::from_millis(20);

/// The start of the lease of the key `k` on a node, in milliseconds.
fn start(node: &Redis) -> u64 {
    let names: Vec<String> = node.run("KEYS *}lock:k");
    let record: String = node.run_words(&["GET", &names[0]]);
    record.split(' ').nth(5).expect("a start").parse().unwrap()
}

/// Waits until the key is held for a while, and returns how long.
async fn held_a_while(http: &Http) -> u64 {
    let held = async || Some(look(http, "k").await.number("held_ms"));
    eventually(PATIENCE, async || held().await.filter(|held| *held >= 300)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_is_brought_back_to_a_node_has_not_begun_anew() {
    let site = Site::of(3).await;
    let service = site.service().await;
    let http = service.http();
    granted(&http, "k", MINE, LONG).await;
    let before = held_a_while(&http).await;
    let starts = [start(&site.nodes[0]), start(&site.nodes[1])];
    site.nodes[2].run::<()>("FLUSHALL");
    let asked = Instant::now();
    assert_eq!(refresh(&http, "k", MINE).await.status, 200);
    let took = asked.elapsed().as_millis() as u64 + 2;
    let brought = start(&site.nodes[2]);
    assert!(brought + 2 >= starts[0].min(starts[1]), "{brought} after {starts:?}");
    assert!(brought <= starts[0].max(starts[1]) + took, "{brought} after {starts:?} and {took}");
    assert_eq!([start(&site.nodes[0]), start(&site.nodes[1])], starts);
    let refused = acquire(&http, "k", "token-of-another-client", LONG).await;
    assert_eq!(refused.told(), held());
    assert!(refused.number("held_ms") + took >= before, "{refused:?} after {before}");
}

/// Its refreshes also go to the node that waits, and come late.
#[tokio::test(flavor = "multi_thread")]
async fn a_lease_with_a_limit_lasts_no_longer_while_a_node_waits() {
    let site = Site::of(3).await;
    let longest = format!("{}s", site.longest.as_secs());
    let urls = site.urls();
    let environment = [
        ("LOCKKEEPER_STORE", urls.as_str()),
        ("LOCKKEEPER_REDLOCK_LONGEST_LEASE", &longest),
        PATIENT[0],
    ];
    let limit = "[[prefixes]]\nprefix = \"k\"\nmax_hold = \"5m\"\n";
    let service = Service::start(&environment, limit).await;
    let http = service.http();
    serves(&http).await;
    site.nodes[2].run::<()>("FLUSHALL");
    granted(&http, "k", MINE, LONG).await;
    for proxy in &site.proxies {
        proxy.set(Flow::SlowThere(AWAY));
    }
    for _ in 0..20 {
        assert_eq!(refresh(&http, "k", MINE).await.status, 200);
    }
    for node in &site.nodes {
        let (start, end) = (start(node), node.run::<u64>("PEXPIRETIME lock:k"));
        let lasts = Duration::from_millis(end - start);
        assert!(lasts <= LIMIT + AWAY * 5, "{lasts:?}");
        assert!(lasts >= LIMIT - AWAY, "{lasts:?}");
    }
}
