//! `lockkeeper redlock`: what operators see of the nodes, and letting one vote at once.

use std::process::Output;
use std::time::Duration;

use crate::redlock::{LONG, LONGEST, PATIENCE, SAFE, Site, Way, acquire, granted, refresh};
use crate::support::process::{BINARY, command};
use crate::support::{Process, Redis, eventually};

const MINE: &str = "token-of-this-client";
const OTHER: &str = "token-of-another-client";

/// What the binary says of these nodes, and its exit code.
fn redlock(site: &Site, words: &[&str]) -> (String, String, Option<i32>) {
    let stores = site.nodes.iter().map(Redis::url).collect::<Vec<_>>().join(" ");
    run(&stores, words, site.longest)
}

pub(super) fn run(
    stores: &str,
    words: &[&str],
    longest: Duration,
) -> (String, String, Option<i32>) {
    let mut asked = command("timeout");
    asked.args(["20", BINARY, "redlock"]).args(words).env("LOCKKEEPER_STORE", stores);
    asked.env("LOCKKEEPER_REDLOCK_LONGEST_LEASE", format!("{}ms", longest.as_millis()));
    asked.env("LOCKKEEPER_TTL_DEFAULT", "1s");
    let Output { stdout, stderr, status } = asked.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (text(stdout), text(stderr), status.code())
}

pub(super) fn name(node: &Redis) -> String {
    node.url().trim_start_matches("redis://").to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_nodes_and_what_they_do_are_shown_with_an_exit_code_for_a_majority() {
    let longest = Duration::from_secs(8);
    let mut site = Site::new((0..3).map(|_| Redis::start()).collect(), longest).await;
    let (told, error, code) = redlock(&site, &["status"]);
    assert_eq!((told.matches("  new: ").count(), code), (3, Some(1)), "{told}{error}");
    assert!(error.starts_with("lockkeeper: 0 of 3 nodes vote"), "{error}");
    // Looking changes nothing.
    assert!(site.nodes.iter().all(|node| node.run::<Vec<String>>("KEYS *").is_empty()));

    let service = site.started_with(&[]).await;
    let shown = async |expected: &str, nodes: usize| {
        eventually(PATIENCE, async || {
            let shown = redlock(&site, &["status"]);
            (shown.0.matches(expected).count() == nodes).then_some(shown)
        })
        .await
    };
    assert_eq!(shown("  waiting: votes in ", 3).await.2, Some(1));
    site.all_vote().await;
    let (told, error, code) = redlock(&site, &["status"]);
    let expected: String =
        site.nodes.iter().map(|node| format!("{}  voting\n", name(node))).collect();
    assert_eq!((told, error.as_str(), code), (expected, "", Some(0)));

    site.nodes[0].run::<()>("FLUSHALL");
    let (told, _, code) = shown("  waiting: votes in ", 1).await;
    assert_eq!((told.matches("  voting\n").count(), code), (2, Some(0)), "{told}");
    drop(service);
    site.away(1, Way::Killed);
    let (told, error, code) = redlock(&site, &["status"]);
    assert!(told.contains(&format!("{}  unreachable: ", name(&site.nodes[1]))), "{told}");
    assert!(error.starts_with("lockkeeper: 1 of 3 nodes vote"), "{error}");
    assert_eq!((told.lines().count(), code), (3, Some(1)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_stopped_is_shown_away_in_time() {
    let mut site = Site::of(3).await;
    drop(site.services(1).await);
    site.away(0, Way::Stopped);
    let began = std::time::Instant::now();
    let (told, _, code) = redlock(&site, &["status"]);
    assert!(told.contains("  unreachable: ") && began.elapsed() < Duration::from_secs(5), "{told}");
    assert_eq!(code, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_lets_a_node_vote_that_would_wait_for_hours() {
    let mut site = Site::of(3).await;
    let service = site.service().await;
    site.all_vote().await;
    let http = service.http();
    granted(&http, "long", MINE, LONG).await;
    let node = name(&site.nodes[0]);
    let (told, _, code) = redlock(&site, &["admit", &node]);
    assert_eq!((told, code), (format!("{node} already votes\n"), Some(0)));
    site.nodes[0].run::<()>("FLUSHALL");
    eventually(PATIENCE, async || site.nodes[0].run::<Option<String>>("GET lk//guard:lock:")).await;
    site.away(1, Way::Dropped);
    assert_eq!(acquire(&http, "other", OTHER, LONG).await.status, 503);
    let (told, error, code) = redlock(&site, &["admit", &node]);
    assert_eq!(code, Some(0), "{told}{error}");
    assert!(told.starts_with(&format!("{node} votes. Leases that it has forgotten")), "{told}");
    let left = told.split("at most ").nth(1).and_then(|rest| rest.split(' ').next()).unwrap();
    assert!((800_000..=909_002).contains(&left.parse::<u64>().unwrap()), "{told}");
    let token = format!("{OTHER}-again");
    eventually(PATIENCE, async || {
        (acquire(&http, "other", &token, LONG).await.status == 201).then_some(())
    })
    .await;
    // What it forgot may be had twice, as it was told; the number tells who is late.
    site.back(1, Way::Dropped);
    assert_ne!(refresh(&http, "long", MINE).await.status, 500);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_begins_to_vote_is_in_the_audit_with_the_reason() {
    let nodes: Vec<_> = (0..3).map(|_| Redis::start()).collect();
    let stores = nodes.iter().map(Redis::url).collect::<Vec<_>>().join(" ");
    let longest = Duration::from_secs(900);
    let service = Process::start_with(
        &[],
        &[
            ("LOCKKEEPER_STORE", &stores),
            ("LOCKKEEPER_REDLOCK_LONGEST_LEASE", "15m"),
            ("LOCKKEEPER_TTL_DEFAULT", "1s"),
            ("LOCKKEEPER_LOG_LEVEL", "error"),
        ],
    );
    // The service has to know that they wait: it has, once it asks again.
    eventually(PATIENCE, async || {
        let asked = |node: &Redis| {
            let calls = node.run::<String>("INFO commandstats");
            let calls = calls.split("cmdstat_evalsha:calls=").nth(1).unwrap_or_default().to_owned();
            calls.split(',').next().unwrap_or_default().parse().unwrap_or(0)
        };
        nodes.iter().all(|node| asked(node) >= 6).then_some(())
    })
    .await;
    let (told, error, code) = run(&stores, &["admit", &name(&nodes[0])], longest);
    assert_eq!(code, Some(0), "{told}{error}");
    let line = eventually(PATIENCE, async || {
        let log = service.log();
        log.lines().find(|line| line.contains("\"node_votes\"")).map(str::to_owned)
    })
    .await;
    for part in [
        format!("\"node\":\"{}\"", name(&nodes[0])),
        "\"reason\":\"an operator has admitted it\"".to_owned(),
        "\"wait_cut_ms\":".to_owned(),
        "\"target\":\"audit\"".to_owned(),
    ] {
        assert!(line.contains(&part), "{line} has no {part}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_dashboard_tells_which_nodes_vote_and_from_when() {
    let longest = Duration::from_secs(8);
    let mut site = Site::new((0..3).map(|_| Redis::start()).collect(), longest).await;
    let service = site.started_with(&[]).await;
    let http = service.http();
    let told = async |expected: [&str; 3]| {
        eventually(PATIENCE, async || {
            let status = http.get("/ui/status").await.json();
            let nodes = status["store"]["nodes"].as_array().unwrap().clone();
            let votes: Vec<_> = nodes.iter().map(|node| node["votes"].as_str().unwrap()).collect();
            (votes == expected).then_some(nodes)
        })
        .await
    };
    for node in told(["later"; 3]).await {
        let left = node["votes_in_ms"].as_u64().unwrap();
        assert!(left <= 9_000, "{node}");
    }
    let nodes = told(["now"; 3]).await;
    let of_site: Vec<_> = site.proxies.iter().map(|proxy| proxy.url()).collect();
    for (node, url) in nodes.iter().zip(of_site) {
        assert!(url.ends_with(node["node"].as_str().unwrap()), "{node} {url}");
    }
    site.away(1, Way::Killed);
    told(["now", "unreachable", "now"]).await;
}

/// All that an operator can do where nobody is left to ask.
#[tokio::test(flavor = "multi_thread")]
async fn a_majority_that_restarted_empty_serves_once_it_is_admitted() {
    let mut site = Site::of(3).await;
    let service = site.service().await;
    site.all_vote().await;
    let http = service.http();
    let first = granted(&http, "before", MINE, Duration::from_secs(4)).await;
    for node in 0..2 {
        site.away(node, Way::Killed);
        site.back(node, Way::Killed);
    }
    let guarded = |node: &Redis| node.run::<Option<String>>("GET lk//guard:lock:").is_some();
    eventually(PATIENCE, async || site.nodes.iter().all(guarded).then_some(())).await;
    assert_eq!(acquire(&http, "before", OTHER, LONG).await.status, 503);
    // Most nodes cannot say that nobody has it.
    for key in ["before", "unknown"] {
        let target = format!("/admin/locks/{key}?fencing_token=1");
        assert_eq!(http.delete(&target).await.status, 503, "{target}");
    }
    let names = [0, 1].map(|node| name(&site.nodes[node]));
    let (told, error, code) = redlock(&site, &["admit", &names[0], &names[1]]);
    assert_eq!((told.lines().count(), code), (2, Some(0)), "{told}{error}");
    let token = format!("{OTHER}-again");
    let next = eventually(PATIENCE, async || {
        let next = acquire(&http, "before", &token, LONG).await;
        (next.status == 201).then_some(next)
    })
    .await;
    assert!(next.number("fencing_token") > first.number("fencing_token"));
    assert_eq!(redlock(&site, &["status"]).2, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_cannot_be_admitted_is_told_in_a_sentence() {
    let mut site = Site::of(3).await;
    let node = name(&site.nodes[0]);
    let refused = |site: &Site, node: &str, expected: &str| {
        let (told, error, code) = redlock(site, &["admit", node]);
        assert_eq!((told.as_str(), code), ("", Some(1)), "{error}");
        assert!(error.starts_with("lockkeeper: ") && error.contains(expected), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    };
    refused(&site, "elsewhere:1", &format!("is not a node: name one of {node}, "));
    let longest = std::mem::replace(&mut site.longest, Duration::from_secs(5));
    assert_eq!(redlock(&site, &["status"]).0.matches("  foreign: ").count(), 3);
    site.longest = longest;
    site.away(0, Way::Killed);
    refused(&site, &node, &node);
    let (told, error, code) = run("embedded:./nowhere", &["status"], longest);
    assert_eq!((told.as_str(), code), ("", Some(1)));
    assert!(error.contains("`store` is not several redis:// nodes"), "{error}");
    assert!(!std::path::Path::new("./nowhere").exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_syncs_every_write_votes_at_once_after_its_restart_where_that_is_trusted() {
    let mut site = Site::on((0..3).map(|_| Redis::start_with(SAFE)).collect(), LONGEST).await;
    let trusts = [("LOCKKEEPER_REDLOCK_TRUST_RESTARTED", "true")];
    let service = site.service_with(&trusts).await;
    site.all_vote().await;
    let http = service.http();
    let lease = granted(&http, "trusted", MINE, LONG).await;
    eventually(PATIENCE, async || (0..3).all(|node| site.locks_on(node).len() == 1).then_some(()))
        .await;
    for node in 0..3 {
        site.away(node, Way::Killed);
        site.back(node, Way::Killed);
    }
    // All of them have restarted, and the lease holds.
    let began = std::time::Instant::now();
    let kept = eventually(PATIENCE, async || {
        let kept = refresh(&http, "trusted", MINE).await;
        (kept.status != 503).then_some(kept)
    })
    .await;
    eprintln!("three trusted nodes restarted: the lease is refreshed {:?} on", began.elapsed());
    assert_eq!(kept.status, 200, "{kept:?}");
    assert_eq!(kept.number("fencing_token"), lease.number("fencing_token"));
    assert_eq!(acquire(&http, "trusted", OTHER, LONG).await.status, 409);
    // On a busy machine a node that syncs may be too slow for one of the calls.
    eventually(PATIENCE, async || {
        let answer = acquire(&http, "another", OTHER, LONG).await;
        [200, 201].contains(&answer.status).then_some(())
    })
    .await;
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}", began.elapsed());
    // Whoever does not trust them sees the same nodes as such that may have forgotten.
    assert_eq!(redlock(&site, &["status"]).0.matches("  new: ").count(), 3);
}

/// A service on these nodes, whose leases last a minute at most.
fn service(nodes: &[Redis], user: &str) -> Process {
    let urls = nodes.iter().map(|node| format!("redis://{user}{}", node.address()));
    let stores = urls.collect::<Vec<_>>().join(" ");
    Process::start_with(&[], &[("LOCKKEEPER_STORE", &stores)])
}

/// Until `/readyz` says this.
async fn unready(service: &Process, why: &str) -> String {
    eventually(PATIENCE, async || {
        let told = service.http().get("/readyz").await;
        assert_eq!(told.status, 503, "{told:?}");
        Some(told.text("detail")).filter(|detail| detail.contains(why))
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_refuse_writes_are_told_so_with_the_reason() {
    for (setting, code) in [("maxmemory", "OOM "), ("min-replicas-to-write", "NOREPLICAS ")] {
        let site = Site::new((0..3).map(|_| Redis::start()).collect(), LONGEST).await;
        let nodes = &site.nodes;
        nodes.iter().for_each(|node| node.run(&format!("CONFIG SET {setting} 1")));
        let service = service(nodes, "");
        let told = unready(&service, "refuse writes").await;
        assert!(told.contains(code) && !told.contains("settings"), "{told}");
        service.logs(&format!("nodes cannot vote, because they refuse writes: {code}")).await;
        let refused = service.http().post("/locks/key", "").await;
        assert_eq!(refused.text("outcome"), "not_acquired", "{refused:?}");
        let log = service.log();
        assert!(!log.contains("other settings"), "{log}");
        let (told, error, _) = redlock(&site, &["status"]);
        assert_eq!(told.matches("  refusing: cannot vote").count(), 3, "{told}");
        assert_eq!(told.matches(code).count(), 3, "{told}{error}");
        let (_, error, exit) = redlock(&site, &["admit", &name(&nodes[0])]);
        let expected =
            format!("{} cannot vote, because it refuses writes: {code}", name(&nodes[0]));
        assert!(exit == Some(1) && error.contains(&expected), "{error}");
        nodes.iter().for_each(|node| node.run(&format!("CONFIG SET {setting} 0")));
        unready(&service, "3 may have forgotten leases").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn new_nodes_are_told_with_the_time_and_the_command_that_lets_them_vote() {
    let nodes: Vec<_> = (0..3).map(|_| Redis::start()).collect();
    let service = service(&nodes, "");
    let told = unready(&service, "3 may have forgotten leases").await;
    assert!(told.starts_with("0 of 3 nodes vote; "), "{told}");
    assert!(
        told.contains("vote within 6") && told.contains("`lockkeeper redlock admit`"),
        "{told}"
    );
    let names: Vec<_> = nodes.iter().map(name).collect();
    let command = format!("`lockkeeper redlock admit {}` lets them vote now", names.join(" "));
    service.logs(&command).await;
    assert_eq!(service.log().matches("may have forgotten leases").count(), 1, "{}", service.log());
    let stores = nodes.iter().map(Redis::url).collect::<Vec<_>>().join(" ");
    let words: Vec<_> = ["admit"].into_iter().chain(names.iter().map(String::as_str)).collect();
    let (told, error, code) = run(&stores, &words, Duration::from_secs(60));
    assert_eq!((told.lines().count(), code), (3, Some(0)), "{told}{error}");
    let http = service.http();
    eventually(PATIENCE, async || (http.get("/readyz").await.status == 200).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_right_that_the_user_of_the_nodes_lacks_is_told() {
    let nodes: Vec<_> = (0..3).map(|_| Redis::start()).collect();
    let rights =
        "+eval +evalsha +get +set +del +pttl +pexpire +time +info +publish +subscribe +scan";
    let words = format!("ACL SETUSER locks on >s3cret ~lock:* ~lk//* &lk//* -@all {rights}");
    nodes.iter().for_each(|node| node.run(&words));
    let all = service(&nodes, "locks:s3cret@");
    unready(&all, "3 may have forgotten leases").await;
    assert!(!all.log().contains("lacks"), "{}", all.log());
    for right in ["pexpire", "set", "evalsha"] {
        nodes.iter().for_each(|node| node.run(&format!("ACL SETUSER locks -{right}")));
        let less = service(&nodes, "locks:s3cret@");
        unready(&less, &format!("the Redis user lacks the rights +{right}")).await;
        nodes.iter().for_each(|node| node.run(&format!("ACL SETUSER locks +{right}")));
    }
}
