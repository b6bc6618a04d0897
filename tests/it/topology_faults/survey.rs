//! Whom a service asks for the slots of a Cluster, how often, and whom it believes.

use std::time::{Duration, Instant};

use crate::redis_faults::{LONG, PATIENCE, acquire, unavailable};
use crate::support::fleet::{Clustered, data};
use crate::support::{Http, Redis, eventually};
use crate::topology_faults::service;

const TOKEN: &str = "token-of-the-client";

/// Longer than a survey that only time calls for.
const WATCHED: Duration = Duration::from_secs(6);

/// How often a node was sent this command.
fn calls(node: &Redis, command: &str) -> u128 {
    let told: String = node.run("INFO commandstats");
    let line = told.lines().find_map(|line| {
        line.strip_prefix(&format!("cmdstat_{command}:calls="))
            .and_then(|rest| rest.split(',').next())
    });
    line.map_or(0, |calls| calls.parse().unwrap())
}

/// Asks for keys on all masters for a while, all in vain; how long it was.
async fn refused_for_a_while(http: &Http) -> Duration {
    let began = Instant::now();
    for number in 0.. {
        let answer = acquire(http, &format!("refused/{number}"), TOKEN, LONG).await;
        assert_eq!(answer.told(), unavailable(), "{answer:?}");
        if began.elapsed() > WATCHED {
            break;
        }
    }
    began.elapsed()
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_that_are_refused_have_nobody_ask_for_the_slots() {
    let clustered = Clustered::masters().await;
    let service = service(&clustered.url(), &[]).await;
    let http = service.http();
    let [first, ..] = clustered.masters.as_slice() else { panic!("no masters") };
    clustered.masters.iter().for_each(|node| node.run("CONFIG SET maxmemory 1"));
    let before = (calls(first, "cluster|slots"), calls(first, "hello"));
    let took = refused_for_a_while(&http).await;
    let surveys = calls(first, "cluster|slots") - before.0;
    assert!(surveys <= took.as_millis() / 5_000 + 1, "{surveys} surveys in {took:?}");
    assert_eq!(calls(first, "hello"), before.1, "connections were made for surveys");
}

#[tokio::test(flavor = "multi_thread")]
async fn surveys_of_a_cluster_that_is_down_grow_rare() {
    let mut clustered = Clustered::masters().await;
    let service = service(&clustered.url(), &[]).await;
    let http = service.http();
    clustered.masters[2].kill();
    eventually(PATIENCE, async || {
        let told: String = clustered.masters[0].run("CLUSTER INFO");
        told.contains("cluster_state:fail").then_some(())
    })
    .await;
    let first = &clustered.masters[0];
    let before = (calls(first, "cluster|slots"), calls(first, "hello"));
    let took = refused_for_a_while(&http).await;
    let surveys = calls(first, "cluster|slots") - before.0;
    assert!(surveys >= 3, "{surveys} surveys in {took:?}");
    assert!(surveys <= took.as_millis() / 500 + 2, "{surveys} surveys in {took:?}");
    assert_eq!(calls(first, "hello"), before.1, "connections were made for surveys");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_cut_off_is_not_believed_whatever_its_epoch() {
    let clustered = Clustered::masters().await;
    let cut_off = data(&["--cluster-enabled", "yes"]);
    cut_off.run::<()>("CLUSTER SET-CONFIG-EPOCH 99");
    cut_off.run::<()>("CLUSTER ADDSLOTSRANGE 0 9");
    let told: String = cut_off.run("CLUSTER INFO");
    assert!(told.contains("cluster_state:fail") && told.contains("current_epoch:99"), "{told}");
    let service = service(&format!("{},{}", clustered.url(), cut_off.address()), &[]).await;
    let http = service.http();
    let began = Instant::now();
    for number in 0.. {
        let answer = acquire(&http, &format!("spread/{number}"), TOKEN, LONG).await;
        assert_eq!(answer.status, 201, "{answer:?}");
        if began.elapsed() > WATCHED {
            break;
        }
    }
}
