//! Nodes that answer late, and an instance that is stopped in the middle: no lease that is over
//! when it is granted, and nothing that stays behind.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::redlock::proxy::Flow;
use crate::redlock::{
    LASTING, LONG, PATIENCE, PATIENT, Site, acquire, granted, refresh, release, serves, unavailable,
};
use crate::support::{Process, eventually};

const MINE: &str = "token-of-this-client";

/// Longer than the short lease below, and than any deadline of a node.
const LATE: Duration = Duration::from_millis(300);

/// node-redlock, pottery, Redisson: validity is not looked at after the quorum. rslock: it is, and
/// the keys stay for the TTL.
#[tokio::test(flavor = "multi_thread")]
async fn nodes_slower_than_the_lease_grant_nothing_and_keep_nothing() {
    for flow in [Flow::SlowThere(LATE), Flow::SlowBack(LATE)] {
        let site = Site::of(3).await;
        let service = site.service().await;
        site.all_vote().await;
        let http = service.http();
        for proxy in &site.proxies {
            proxy.set(flow);
        }
        for number in 0..5 {
            let key = format!("late/{number}");
            let answer = acquire(&http, &key, MINE, Duration::from_millis(200)).await;
            assert_eq!(answer.told(), unavailable(), "{answer:?}");
            assert_eq!(answer.text("outcome"), "unknown");
            let answer = acquire(&http, &key, MINE, Duration::from_secs(5)).await;
            assert_eq!(answer.told(), unavailable(), "{answer:?}");
        }
        for proxy in &site.proxies {
            proxy.set(Flow::Passing);
        }
        let bare = site.bare().await;
        eprintln!("{flow:?}: nothing left {bare:?} on");
        assert!(bare < Duration::from_secs(3), "{bare:?}");
        serves(&http).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn slow_nodes_that_keep_within_their_deadline_grant_less_by_the_time_they_took() {
    let site = Site::of(3).await;
    let service = site.service().await;
    site.all_vote().await;
    let http = service.http();
    for proxy in &site.proxies {
        proxy.set(Flow::SlowBack(Duration::from_millis(150)));
    }
    let answer = granted(&http, "slow", MINE, Duration::from_secs(10)).await;
    assert!(answer.number("ttl_ms") <= 10_000 - 102 - 150, "{answer:?}");
    // The same for a refresh.
    let again = eventually(PATIENCE, async || {
        let again = refresh(&http, "slow", MINE).await;
        (again.status == 200).then_some(again)
    })
    .await;
    assert!(again.number("ttl_ms") <= 10_000 - 102 - 150, "{again:?}");
}

/// pottery: extend does not look at the validity.
#[tokio::test(flavor = "multi_thread")]
async fn a_refresh_by_nodes_that_are_too_slow_is_not_confirmed() {
    let site = Site::of(3).await;
    let service = site.service_with(&[]).await;
    site.all_vote().await;
    let http = service.http();
    let first = granted(&http, "slow", MINE, LONG).await;
    for proxy in &site.proxies {
        proxy.set(Flow::SlowBack(LATE));
    }
    let refreshed = refresh(&http, "slow", MINE).await;
    assert_eq!(refreshed.told(), unavailable(), "{refreshed:?}");
    assert_eq!(refreshed.text("outcome"), "unknown");
    for proxy in &site.proxies {
        proxy.set(Flow::Passing);
    }
    let refreshed = eventually(PATIENCE, async || {
        let refreshed = refresh(&http, "slow", MINE).await;
        (refreshed.status != 503).then_some(refreshed)
    })
    .await;
    assert_eq!(refreshed.status, 200, "it was never lost: {refreshed:?}");
    assert_eq!(refreshed.number("fencing_token"), first.number("fencing_token"));
}

/// An instance that is stopped between the votes and the answer does not grant when it goes on.
#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_was_stopped_meanwhile_grants_nothing_that_is_over() {
    let site = Site::of(3).await;
    let urls: Vec<_> = site.proxies.iter().map(|proxy| proxy.url()).collect();
    let stores: Vec<_> = urls.iter().flat_map(|url| ["--store", url.as_str()]).collect();
    let process = Process::start_with(&stores, &[PATIENT, &[LASTING]].concat());
    let http = process.http();
    serves(&http).await;
    site.all_vote().await;
    let back = Duration::from_millis(350);
    for proxy in &site.proxies {
        proxy.set(Flow::SlowBack(back));
    }
    let mut stopped_in_time = 0;
    for number in 0..3 {
        let (key, mut asking) = (format!("stopped/{number}"), JoinSet::new());
        let (there, name) = (http.clone(), key.clone());
        let began = Instant::now();
        asking.spawn(async move { acquire(&there, &name, MINE, Duration::from_secs(9)).await });
        eventually(PATIENCE, async || (site.locks_on(0).len() == 1).then_some(())).await;
        process.stop();
        let in_time = began.elapsed() < back;
        eventually(PATIENCE, async || {
            // Less than half of the lease is left.
            (began.elapsed() > Duration::from_secs(5)).then_some(())
        })
        .await;
        process.signal("CONT");
        let answer = asking.join_next().await.unwrap().unwrap();
        if in_time {
            stopped_in_time += 1;
            assert_eq!(answer.told(), unavailable(), "{answer:?}");
        }
        eventually(PATIENCE, async || {
            let gone = release(&http, &key, MINE).await.status != 503;
            (gone || site.locks_on(0).is_empty()).then_some(())
        })
        .await;
    }
    assert!(stopped_in_time > 0, "it was never stopped in time");
    for proxy in &site.proxies {
        proxy.set(Flow::Passing);
    }
    site.bare().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn jittery_nodes_never_lead_to_two_holders() {
    let site = Site::of(3).await;
    let services = site.services(2).await;
    let instances: Vec<_> = services.iter().map(|service| service.http()).collect();
    let contest = crate::redlock::contest::Contest::begin(&instances);
    for round in 0..30 {
        let late = Duration::from_millis(fastrand::u64(1..12));
        let flow = if fastrand::bool() { Flow::SlowThere(late) } else { Flow::SlowBack(late) };
        site.proxies[round % 3].set(flow);
        contest.goes_on(5).await;
        site.proxies[(round + 1) % 3].set(Flow::Passing);
    }
    for proxy in &site.proxies {
        proxy.set(Flow::Passing);
    }
    contest.goes_on(10).await;
    let (grants, unavailable) = contest.finish().await;
    eprintln!("nodes late by chance: {grants} grants, {unavailable} times 503");
}
