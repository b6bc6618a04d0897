//! Several instances want one key at once: somebody gets it soon, and never two.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::redlock::ledger::Ledger;
use crate::redlock::{LONG, PATIENCE, Site, Way, acquire, granted, quantiles, release};
use crate::support::Http;

/// Within what somebody has the key.
const SOON: Duration = Duration::from_secs(5);

const INSTANCES: usize = 3;

#[tokio::test(flavor = "multi_thread")]
async fn one_of_three_instances_that_ask_at_once_gets_the_key_of_two_nodes() {
    race(&Site::of(2).await, 40).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_three_instances_that_ask_at_once_gets_the_key_of_three_nodes() {
    race(&Site::of(3).await, 40).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_three_instances_that_ask_at_once_gets_the_key_with_a_minority_away() {
    let mut site = Site::of(3).await;
    // A bare majority: each of its nodes has to vote for the same one.
    let services = site.services(INSTANCES).await;
    drop(services);
    site.away(2, Way::Stopped);
    race(&site, 10).await;
}

/// Rounds in which each instance asks, again and again, until somebody has the key.
async fn race(site: &Site, rounds: usize) {
    let mut services = Vec::new();
    for _ in 0..INSTANCES {
        services.push(site.service().await);
    }
    let (mut took, mut asked) = (Vec::new(), 0);
    for round in 0..rounds {
        let (key, start) = (format!("race/{round}"), Arc::new(Barrier::new(INSTANCES)));
        let won = Arc::new(Mutex::new(Vec::new()));
        let mut racers = JoinSet::new();
        for (number, service) in services.iter().enumerate() {
            let (http, key, start) = (service.http(), key.clone(), start.clone());
            let won = won.clone();
            racers.spawn(async move {
                start.wait().await;
                let began = Instant::now();
                for tries in 1.. {
                    let token = format!("token-of-the-racer-{number}-{tries}");
                    let answer = acquire(&http, &key, &token, LONG).await;
                    if answer.status == 201 {
                        won.lock().unwrap().push(token);
                        return (began.elapsed(), tries);
                    }
                    assert_eq!(answer.told(), crate::redlock::held(), "{answer:?}");
                    if !won.lock().unwrap().is_empty() {
                        return (Duration::ZERO, tries);
                    }
                    assert!(began.elapsed() < SOON, "nobody has it");
                }
                unreachable!()
            });
        }
        let done = racers.join_all().await;
        took.extend(done.iter().map(|(took, _)| *took).max());
        asked += done.iter().map(|(_, tries)| *tries).sum::<usize>();
        let won = won.lock().unwrap().clone();
        assert_eq!(won.len(), 1, "{won:?}");
    }
    let most = took.iter().max().copied().unwrap();
    let (median, late) = quantiles(&mut took);
    let nodes = site.nodes.len();
    eprintln!(
        "{nodes} nodes, 3 instances, {rounds} rounds: somebody has it after {median:?} / \
         {late:?} / {most:?} (p50/p99/max), with {asked} questions"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_at_three_instances_of_two_nodes_are_served_one_by_one() {
    relay(Site::of(2).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_at_three_instances_of_three_nodes_are_served_one_by_one() {
    relay(Site::of(3).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_are_served_one_by_one_with_a_minority_away() {
    let mut site = Site::of(3).await;
    drop(site.services(1).await);
    site.away(0, Way::Dropped);
    relay(site).await;
}

/// Waiters come one by one at all instances; each releases as soon as it has the key.
async fn relay(site: Site) {
    const WAITERS: usize = 30;
    let mut services = Vec::new();
    for _ in 0..INSTANCES {
        services.push(site.service().await);
    }
    let first = services[0].http();
    granted(&first, "relay", "token-of-the-first", LONG).await;
    let ledger = Arc::new(Ledger::default());
    let served = Arc::new(Mutex::new(vec![(usize::MAX, Instant::now(), Instant::now())]));
    let mut waiting = JoinSet::new();
    for number in 0..WAITERS {
        let http = services[number % INSTANCES].http();
        let (ledger, served) = (ledger.clone(), served.clone());
        waiting.spawn(async move { wait_and_release(&http, number, &ledger, &served).await });
        let here = services[number % INSTANCES].http();
        let wanted = number / INSTANCES + 1;
        crate::support::eventually(PATIENCE, async || {
            let waiters = crate::redlock::look(&here, "relay").await.number("waiters");
            (waiters as usize >= wanted).then_some(())
        })
        .await;
    }
    served.lock().unwrap()[0].2 = Instant::now();
    assert_eq!(release(&first, "relay", "token-of-the-first").await.status, 204);
    waiting.join_all().await;
    assert_eq!(ledger.rises(), WAITERS);
    let served = served.lock().unwrap().clone();
    for instance in 0..INSTANCES {
        let order = served.iter().skip(1).map(|(number, ..)| *number);
        let order: Vec<_> = order.filter(|number| number % INSTANCES == instance).collect();
        assert!(order.is_sorted(), "at one instance those who came first come first: {order:?}");
    }
    let hand_overs = served.windows(2).map(|two| two[1].1.saturating_duration_since(two[0].2));
    let mut hand_overs: Vec<_> = hand_overs.collect();
    let most = hand_overs.iter().max().copied().unwrap();
    let (median, late) = quantiles(&mut hand_overs);
    let nodes = site.nodes.len();
    eprintln!("{nodes} nodes, 3 instances: hand-over {median:?} / {late:?} / {most:?}");
    assert!(most < SOON, "{most:?}");
}

async fn wait_and_release(
    http: &Http,
    number: usize,
    ledger: &Ledger,
    served: &Mutex<Vec<(usize, Instant, Instant)>>,
) {
    let sent = Instant::now();
    let token = format!("token-of-the-waiter-{number}");
    let body = format!(r#"{{"token":"{token}","ttl_ms":600000,"wait_ms":25000}}"#);
    let answer = http.post("/locks/relay", &body).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    let fencing_token = answer.number("fencing_token");
    ledger.won("relay", (&token, fencing_token), sent, LONG);
    let has = Instant::now();
    ledger.gives_up("relay", &token);
    served.lock().unwrap().push((number, has, Instant::now()));
    assert_eq!(release(http, "relay", &token).await.status, 204);
}
