//! A node that forgot does not vote until all that it may have forgotten is over.

use std::time::Duration;
use std::time::Instant;

use crate::redlock::LONG;
use crate::redlock::PATIENCE;
use crate::redlock::Site;
use crate::redlock::Way;
use crate::redlock::acquire;
use crate::redlock::granted;
use crate::redlock::refresh;
use crate::redlock::release;
use crate::redlock::serves;
use crate::redlock::votes;
use crate::support::Http;
use crate::support::Redis;
use crate::support::eventually;

const MINE: &str = "token-of-this-client";
const OTHER: &str = "token-of-another-client";

#[tokio::test(flavor = "multi_thread")]
async fn nobody_gets_a_key_whose_lease_a_node_forgot_before_the_lease_is_over() {
    let ttl = Duration::from_secs(7);
    let mut site = Site::of(3).await;
    // A node that is away must not keep the instances from finding out about the others.
    let quick = [
        ("LOCKKEEPER_REDIS_COMMAND_TIMEOUT", "200ms"),
        ("LOCKKEEPER_REDLOCK_NODE_TIMEOUT", "150ms"),
    ];
    let services = [site.service_with(&quick).await, site.service_with(&quick).await];
    site.all_vote().await;
    let (http, second) = (services[0].http(), services[1].http());
    site.away(2, Way::Dropped);
    let began = Instant::now();
    let lease = granted(&http, "forgotten", MINE, ttl).await;
    site.nodes[0].run::<()>("FLUSHALL");
    site.away(1, Way::Dropped);
    site.back(2, Way::Dropped);
    // Two of three answer that the key is free, but one of them forgot.
    let (mut asked, mut early) = (0, Duration::ZERO);
    while began.elapsed() < Duration::from_secs(5) {
        asked += 1;
        let token = format!("token-of-the-one-in-a-hurry-{asked}");
        let answer = acquire(&second, "forgotten", &token, ttl).await;
        assert_eq!(answer.status, 503, "{:?}: {answer:?}", began.elapsed());
        early = began.elapsed();
    }
    site.back(1, Way::Dropped);
    let next = eventually(PATIENCE, async || {
        let answer = acquire(&second, "forgotten", OTHER, LONG).await;
        (answer.status == 201).then_some(answer)
    })
    .await;
    let took = began.elapsed();
    assert!(took + Duration::from_millis(5) >= Duration::from_millis(lease.number("ttl_ms")));
    assert!(next.number("fencing_token") > lease.number("fencing_token"));
    eprintln!("a forgotten lease of {ttl:?}: {asked} noes until {early:?}, granted {took:?} on");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_goes_on_while_one_of_its_nodes_has_forgotten_it() {
    let site = Site::of(3).await;
    let service = site.service().await;
    site.all_vote().await;
    let http = service.http();
    let lease = granted(&http, "goes-on", MINE, LONG).await;
    eventually(PATIENCE, async || (0..3).all(|node| site.locks_on(node).len() == 1).then_some(()))
        .await;
    site.nodes[1].run::<()>("FLUSHALL");
    let refreshed = refresh(&http, "goes-on", MINE).await;
    assert_eq!(refreshed.status, 200, "{refreshed:?}");
    assert_eq!(refreshed.number("fencing_token"), lease.number("fencing_token"));
    assert_eq!(acquire(&http, "goes-on", OTHER, LONG).await.status, 409);
    assert_eq!(release(&http, "goes-on", MINE).await.status, 204);
    let began = Instant::now();
    site.all_vote().await;
    eprintln!("a node that forgot votes again {:?} after the last lease ended", began.elapsed());
}

/// A node comes back as soon as the leases of others are over, however long the settings allow.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_forgot_votes_again_soon_where_no_lease_is_left() {
    let mut site = Site::of(3).await;
    let service = site.service().await;
    site.all_vote().await;
    for way in ["flushed", "restarted"] {
        match way {
            "flushed" => site.nodes[0].run::<()>("FLUSHALL"),
            _ => {
                site.away(0, Way::Killed);
                site.back(0, Way::Killed);
            }
        }
        let began = Instant::now();
        // It has a moment in which it is not yet told that it forgot.
        eventually(PATIENCE, async || (!votes(&site.nodes[0])).then_some(())).await;
        site.all_vote().await;
        let took = began.elapsed();
        assert!(took > Duration::from_millis(1_800), "{took:?}: commands may be on their way");
        assert!(took < Duration::from_secs(10), "{took:?}");
        eprintln!("a node that was {way} votes again {took:?} on, where no lease is left");
    }
    serves(&service.http()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_set_serves_at_once() {
    for nodes in [2, 3, 5] {
        let site = Site::of(nodes).await;
        let began = Instant::now();
        let service = site.started_with(&[]).await;
        let http = service.http();
        let answer = first(&http).await;
        let took = began.elapsed();
        assert_eq!(answer, 201);
        assert!(took < Duration::from_secs(2), "{took:?}");
        eventually(PATIENCE, async || (http.get("/readyz").await.status == 200).then_some(()))
            .await;
        eprintln!("a new set of {nodes}: the first grant {took:?} after the start");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_that_meet_a_new_set_at_once_make_one_of_it() {
    let site = Site::of(4).await;
    let mut services = Vec::new();
    for _ in 0..4 {
        services.push(site.started_with(&[]).await);
    }
    for service in &services {
        first(&service.http()).await;
    }
    site.all_vote().await;
    let set = |node: &Redis| {
        let guard: String = node.run("GET lk//guard");
        guard.split(['|', ':']).nth(1).map(str::to_owned)
    };
    let sets: Vec<_> = site.nodes.iter().map(set).collect();
    assert!(sets.iter().all(|other| *other == sets[0]), "{sets:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_new_set_with_a_node_away_starts_once_it_is_seen_whole() {
    let mut site = Site::of(3).await;
    site.away(2, Way::Killed);
    let service = site.started_with(&[]).await;
    let http = service.http();
    assert_eq!(http.get("/healthz").await.status, 200);
    for _ in 0..20 {
        // The others cannot know that nothing was forgotten.
        let answer = acquire(&http, "whole", MINE, LONG).await;
        assert_eq!(answer.status, 503, "{answer:?}");
        assert_eq!(answer.text("outcome"), "not_acquired");
    }
    assert_eq!(http.get("/readyz").await.status, 503);
    assert!(!site.nodes[..2].iter().any(votes));
    site.back(2, Way::Killed);
    let back = Instant::now();
    first(&http).await;
    eprintln!("a set of three with one away: served {:?} after it came", back.elapsed());
}

/// More than a minority forgot: nobody is left who knows, so the longest lease is waited for.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_that_forgot_without_enough_others_wait_for_the_longest_lease_there_can_be() {
    let longest = Duration::from_secs(4);
    let site = Site::of(3).await;
    let short = [("LOCKKEEPER_TTL_MAX", "4s"), ("LOCKKEEPER_TTL_DEFAULT", "4s")];
    let service = site.service_with(&short).await;
    site.all_vote().await;
    let http = service.http();
    granted(&http, "short", MINE, longest).await;
    let began = Instant::now();
    site.nodes[0].run::<()>("FLUSHALL");
    site.nodes[1].run::<()>("FLUSHALL");
    eventually(PATIENCE, async || {
        let token = format!("{OTHER}-{}", fastrand::u64(..));
        (acquire(&http, "short", &token, longest).await.status == 201).then_some(())
    })
    .await;
    assert!(began.elapsed() > longest + Duration::from_secs(2), "{:?}", began.elapsed());
    eprintln!("two of three forgot, longest lease {longest:?}: served {:?} on", began.elapsed());
}

/// A lock of an application on Redis directly counts like any other.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_forgot_waits_for_the_locks_of_clients_on_redis_too() {
    let site = Site::of(3).await;
    let service = site.service().await;
    site.all_vote().await;
    let began = Instant::now();
    for node in &site.nodes {
        node.run::<()>("SET lock:direct its-own-value NX PX 5000");
    }
    site.nodes[0].run::<()>("FLUSHALL");
    site.all_vote().await;
    assert!(began.elapsed() > Duration::from_millis(4_990), "{:?}", began.elapsed());
    serves(&service.http()).await;
}

/// The status of the first answer that is not 503.
async fn first(http: &Http) -> u16 {
    eventually(PATIENCE, async || {
        let token = format!("token-of-the-very-first-{}", fastrand::u64(..));
        let answer = acquire(http, "first", &token, Duration::from_millis(200)).await;
        (answer.status == 201).then_some(answer.status)
    })
    .await
}
