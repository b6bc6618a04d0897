//! Served in the order of arrival, over one, two and three instances.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use tokio::task::JoinSet;

use crate::support::Http;
use crate::waiting::{HOLDER, PATIENCE, Stage, held, hold, release, until_waiters};

const WAITERS: usize = 200;

/// Who was served, in that order.
#[derive(Clone, Default)]
struct Served(Arc<Mutex<Vec<Turn>>>);

#[derive(Clone, Copy)]
struct Turn {
    number: usize,
    fencing_token: u64,
}

impl Served {
    fn count(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_of_the_embedded_store_are_served_in_order() {
    served_in_order(&Stage::embedded().await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_of_one_instance_on_redis_are_served_in_order() {
    served_in_order(&Stage::redis(1).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_of_two_instances_on_redis_are_served_in_order() {
    served_in_order(&Stage::redis(2).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_of_three_instances_on_redis_are_served_in_order() {
    served_in_order(&Stage::redis(3).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_of_two_instances_on_the_master_of_sentinels_are_served_in_order() {
    served_in_order(&Stage::sentinel(2).await).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_of_two_instances_on_a_cluster_are_served_in_order() {
    served_in_order(&Stage::cluster(2).await).await;
}

async fn served_in_order(stage: &Stage) {
    let http = stage.http(0);
    let first = hold(&http, "fair").await.number("fencing_token");
    let served = Served::default();
    let mut waiting = JoinSet::new();
    for number in 0..WAITERS {
        waiting.spawn(wait_and_release(stage.http(number), number, served.clone()));
        until_waiters(&stage.http(number + 1), "fair", number as u64 + 1).await;
    }
    let refused = stage.http(1).post("/locks/fair", "").await;
    assert_eq!(refused.told(), held());
    assert_eq!(refused.number("waiters"), WAITERS as u64, "{refused:?}");

    let mut bargers = JoinSet::new();
    for number in 0..stage.services.len() {
        bargers.spawn(barge(stage.http(number), served.clone()));
    }
    release(&http, "fair", HOLDER).await;
    while let Some(token) = waiting.join_next().await {
        if let Some(last) = token.unwrap() {
            while let Some(barged) = bargers.join_next().await {
                barged.unwrap();
            }
            release(&http, "fair", &last).await;
        }
    }
    let turns = served.0.lock().unwrap().clone();
    assert_eq!(
        turns.iter().map(|turn| turn.number).collect::<Vec<_>>(),
        Vec::from_iter(0..WAITERS)
    );
    let tokens = turns.iter().map(|turn| turn.fencing_token);
    let tokens: Vec<_> = std::iter::once(first).chain(tokens).collect();
    assert!(tokens.is_sorted_by(|before, after| before < after), "{tokens:?}");
    let found = http.get("/locks/fair").await;
    assert_eq!((found.field("held"), found.number("waiters")), (false.into(), 0), "{found:?}");
}

/// Waits, notes its turn, and releases at once; gives its token if it is the last.
async fn wait_and_release(http: Http, number: usize, served: Served) -> Option<String> {
    let began = Instant::now();
    let request = http.post("/locks/fair?wait=25s&ttl=10m", "");
    let granted = tokio::time::timeout(PATIENCE, request).await.unwrap();
    assert_eq!(granted.status, 201, "{granted:?}");
    let waited = u128::from(granted.number("waited_ms"));
    assert!(waited <= began.elapsed().as_millis(), "{granted:?}");
    assert!(waited > 0 || number == WAITERS - 1, "{granted:?}");
    let turn = Turn { number, fencing_token: granted.number("fencing_token") };
    served.0.lock().unwrap().push(turn);
    if served.count() == WAITERS {
        return Some(granted.text("token"));
    }
    release(&http, "fair", &granted.text("token")).await;
    None
}

/// Tries to come before those who wait, until the last of them is served.
async fn barge(http: Http, served: Served) {
    while served.count() < WAITERS {
        let refused = http.post("/locks/fair", "").await;
        assert_eq!(refused.told(), held(), "{refused:?}");
        assert!(refused.number("waiters") <= WAITERS as u64, "{refused:?}");
    }
}
