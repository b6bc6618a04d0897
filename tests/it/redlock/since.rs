//! The start of a lease in the records of the nodes: through losses, and beside an older version.

use std::time::{Duration, Instant};

use redis::Value;

use crate::redlock::proxy::Flow;
use crate::redlock::{
    LONG, PATIENCE, PATIENT, Site, acquire, granted, held, look, refresh, serves,
};
use crate::support::{Http, Redis, Service, eventually};

/// The scripts of the version before records had the start of a lease.
const REFRESH: &str = include_str!("older/refresh.lua");
const INSPECT: &str = include_str!("older/inspect.lua");

const MINE: &str = "token-of-this-client";

/// The limit of a lease.
const LIMIT: Duration = Duration::from_secs(300);

/// The way of a message to a node.
const AWAY: Duration = Duration::from_millis(20);

/// Later than every call, in milliseconds.
const NEVER: &str = "9000000000000";

/// The name and the text of the record of the key `k` on a node.
fn record(node: &Redis) -> (String, String) {
    let names: Vec<String> = node.run("KEYS *}lock:k");
    let text = node.run_words(&["GET", &names[0]]);
    (names[0].clone(), text)
}

/// The start of the lease on a node, in milliseconds.
fn start(node: &Redis) -> u64 {
    let (_, text) = record(node);
    let (_, end) = text.split_once('\n').expect("a start");
    end.split(' ').next().unwrap().parse().unwrap()
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

#[tokio::test(flavor = "multi_thread")]
async fn an_older_version_reads_a_nodes_newer_record_and_its_refresh_keeps_the_start() {
    let site = Site::of(3).await;
    let service = site.service().await;
    let http = service.http();
    let lease = http.token(MINE).post("/locks/k?ttl=10m&owner=new", "").await;
    assert_eq!(lease.status, 201, "{lease:?}");
    let number = lease.number("fencing_token");
    let before = held_a_while(&http).await;
    for node in &site.nodes {
        let guard: Vec<String> = node.run("KEYS lk//guard:*");
        let served: String = node.run_words(&["GET", &guard[0]]);
        let served: Vec<_> = served.split('|').collect();
        let settings = format!("{}|{}|", served[2], served[3]);
        let (name, text) = record(node);
        let run = |script: &str, arguments: &[&str]| {
            let names = ["EVAL", script, "3", "lock:k", &name, &guard[0]];
            let answer: Vec<Value> =
                node.run_words(&[&names[..], arguments, &[settings.as_str()]].concat());
            answer
        };
        let seen = run(INSPECT, &[]);
        assert_eq!(seen[1], Value::BulkString(b"held".to_vec()), "{seen:?}");
        assert_eq!(
            (&seen[3], &seen[4]),
            (&Value::BulkString(MINE.into()), &Value::Int(number as i64))
        );
        let late = format!("{NEVER}000");
        let arguments = [NEVER, MINE, "", "30000", "86400000", &late, "1", "", "", ""];
        let refreshed = run(REFRESH, &arguments);
        assert_eq!(refreshed[1], Value::BulkString(b"again".to_vec()), "{refreshed:?}");
        assert_eq!(refreshed[2], Value::Int(number as i64));
        let after = record(node).1;
        assert_eq!(after.split_once('\n').unwrap().1, text.split_once('\n').unwrap().1);
    }
    let seen = look(&http, "k").await;
    assert_eq!((seen.text("owner").as_str(), seen.number("fencing_token")), ("new", number));
    assert!(seen.number("held_ms") + 50 >= before, "{seen:?} after {before}");
    assert!(refresh(&http, "k", MINE).await.status == 200);
}
