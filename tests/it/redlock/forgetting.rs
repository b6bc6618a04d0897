//! A node that forgot does not vote until all that it may have forgotten is over.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use crate::redlock::{
    LONG, PATIENCE, PATIENT, Site, Way, acquire, granted, held, refresh, serves, votes,
};
use crate::support::{Http, Redis, eventually};

const MINE: &str = "token-of-this-client";
const OTHER: &str = "token-of-another-client";

/// What two clocks that count the same time may differ by, and what a millisecond cuts off.
const PRECISION: Duration = Duration::from_millis(5);

#[tokio::test(flavor = "multi_thread")]
async fn nobody_gets_a_key_whose_lease_a_node_forgot_before_the_lease_is_over() {
    let ttl = Duration::from_secs(7);
    let mut site = Site::lasting(3, ttl).await;
    let quick = [("LOCKKEEPER_REDLOCK_NODE_TIMEOUT", "150ms")];
    let services = [site.service_with(&quick).await, site.service_with(&quick).await];
    let (http, second) = (services[0].http(), services[1].http());
    site.away(2, Way::Dropped);
    let began = Instant::now();
    let lease = granted(&http, "forgotten", MINE, ttl).await;
    site.nodes[0].run::<()>("FLUSHALL");
    site.away(1, Way::Dropped);
    site.back(2, Way::Dropped);
    // Two of three answer that the key is free, but one of them forgot.
    while began.elapsed() < Duration::from_secs(5) {
        let token = format!("token-of-the-one-in-a-hurry-{}", fastrand::u64(..));
        let answer = acquire(&second, "forgotten", &token, ttl).await;
        assert_eq!(answer.status, 503, "{:?}: {answer:?}", began.elapsed());
    }
    site.back(1, Way::Dropped);
    let next = eventually(PATIENCE, async || {
        let answer = acquire(&second, "forgotten", OTHER, ttl).await;
        (answer.status == 201).then_some(answer)
    })
    .await;
    assert!(began.elapsed() + PRECISION >= Duration::from_millis(lease.number("ttl_ms")));
    assert!(next.number("fencing_token") > lease.number("fencing_token"));
}

/// In one moment, or one after another so that never two are away together.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_gets_a_key_whose_lease_all_nodes_forgot_before_the_lease_is_over() {
    for together in [true, false] {
        let longest = Duration::from_secs(6);
        let mut site = Site::lasting(3, longest).await;
        let service = site.service().await;
        let http = service.http();
        let began = Instant::now();
        let lease = granted(&http, "forgotten", MINE, longest).await;
        for node in 0..3 {
            if together {
                site.nodes[node].run::<()>("FLUSHALL");
                continue;
            }
            site.away(node, Way::Killed);
            site.back(node, Way::Killed);
            seen(&site.nodes[node]).await;
        }
        let next = eventually(PATIENCE, async || {
            let token = format!("{OTHER}-{}", fastrand::u64(..));
            let answer = acquire(&http, "forgotten", &token, Duration::from_secs(1)).await;
            (answer.status == 201).then_some(answer)
        })
        .await;
        let took = began.elapsed();
        assert!(took + PRECISION >= Duration::from_millis(lease.number("ttl_ms")), "{took:?}");
        assert!(next.number("fencing_token") > lease.number("fencing_token"));
        // Within the wait of the last one.
        assert!(took < longest * 2 + Duration::from_secs(3), "{took:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_starts_anew_does_not_make_a_node_wait_again() {
    let longest = Duration::from_secs(4);
    let mut site = Site::lasting(3, longest).await;
    drop(site.service().await);
    let began = Instant::now();
    for node in 0..2 {
        site.away(node, Way::Killed);
        site.back(node, Way::Killed);
    }
    while !votes(&site.nodes[0]) || !votes(&site.nodes[1]) {
        assert!(began.elapsed() < longest * 2 + Duration::from_secs(4), "still waiting");
        let service = site.started_with(&[]).await;
        seen(&site.nodes[0]).await;
        seen(&site.nodes[1]).await;
        drop(service);
    }
    assert!(began.elapsed() >= longest, "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_goes_on_while_one_of_its_nodes_has_forgotten_it() {
    let site = Site::of(3).await;
    let service = site.service().await;
    let http = service.http();
    let lease = granted(&http, "goes-on", MINE, LONG).await;
    eventually(PATIENCE, async || (0..3).all(|node| site.locks_on(node).len() == 1).then_some(()))
        .await;
    site.nodes[1].run::<()>("FLUSHALL");
    let refreshed = refresh(&http, "goes-on", MINE).await;
    assert_eq!(refreshed.status, 200, "{refreshed:?}");
    assert_eq!(refreshed.number("fencing_token"), lease.number("fencing_token"));
    assert_eq!(acquire(&http, "goes-on", OTHER, LONG).await.told(), held());
    // It has it again, before it votes.
    assert_eq!(site.locks_on(1), ["lock:goes-on"]);
    assert!(!votes(&site.nodes[1]));
}

#[tokio::test(flavor = "multi_thread")]
async fn new_nodes_serve_once_the_longest_lease_is_over_or_an_operator_lets_them() {
    let longest = Duration::from_secs(3);
    for nodes in [2, 3, 5] {
        let site = Site::new((0..nodes).map(|_| Redis::start()).collect(), longest).await;
        let began = Instant::now();
        let service = site.started_with(PATIENT).await;
        let http = service.http();
        let before = first(&http).await;
        assert!(began.elapsed() >= longest, "{:?}", began.elapsed());
        assert!(before.iter().any(|outcome| outcome == "not_acquired"), "{before:?}");
        eventually(PATIENCE, async || (http.get("/readyz").await.status == 200).then_some(()))
            .await;
    }
    let site = Site::of(3).await;
    serves(&site.started_with(&[]).await.http()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_with_two_key_prefixes_do_not_count_over_one_another_after_a_loss() {
    let longest = Duration::from_secs(5);
    let site = Site::lasting(3, longest).await;
    let prefix = ("LOCKKEEPER_REDIS_KEY_PREFIX", "other:");
    let other = site.started_with(&[prefix]).await;
    let service = site.service().await;
    serves(&other.http()).await;
    let began = Instant::now();
    let lease = granted(&service.http(), "mine", MINE, longest).await;
    site.nodes.iter().for_each(|node| node.run::<()>("FLUSHALL"));
    let http = service.http();
    eventually(PATIENCE, async || {
        let token = format!("{OTHER}-{}", fastrand::u64(..));
        let answer = acquire(&http, "mine", &token, Duration::from_secs(1)).await;
        (answer.status == 201).then_some(())
    })
    .await;
    let lasted = Duration::from_millis(lease.number("ttl_ms"));
    assert!(began.elapsed() + PRECISION >= lasted, "{:?}", began.elapsed());
}

/// Until an instance has seen a node that had no data.
async fn seen(node: &Redis) {
    eventually(PATIENCE, async || node.run::<Option<String>>("GET lk//guard:lock:")).await;
}

/// Acquires a key with tokens of the service. Returns the outcomes of the attempts before the grant.
async fn first(http: &Http) -> Vec<String> {
    let before = RefCell::new(Vec::new());
    eventually(PATIENCE, async || {
        let answer = http.post("/locks/first?ttl=3s", "").await;
        if answer.status != 201 {
            assert_eq!(answer.status, 503, "{answer:?}");
            before.borrow_mut().push(answer.text("outcome"));
        }
        (answer.status == 201).then_some(())
    })
    .await;
    before.into_inner()
}
