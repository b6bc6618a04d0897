//! Nodes that answer late, and an instance that is stopped in the middle: no lease that is over
//! when it is granted, and nothing that stays behind.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::redlock::proxy::Flow;
use crate::redlock::{LASTING, PATIENCE, PATIENT, Site, acquire, release, serves, unavailable};
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
