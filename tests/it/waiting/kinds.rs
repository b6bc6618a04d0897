//! Claims of several kinds in one line: readers, writers and counted ones, over several instances.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::task::JoinSet;

use crate::support::{Answer, Http, eventually};
use crate::waiting::{HOLDER, PATIENCE, Stage, granted, hold, post, release, until_waiters};

/// One of each store, the single Redis with one to three instances.
async fn stages() -> Vec<Stage> {
    let mut stages = vec![Stage::embedded().await];
    for instances in 1..=3 {
        stages.push(Stage::redis(instances).await);
    }
    stages.push(Stage::sentinel(2).await);
    stages.push(Stage::cluster(2).await);
    stages
}

async fn until_holders(http: &Http, key: &str, wanted: u64) {
    let told = async || {
        let look = http.get(&format!("/locks/{key}")).await;
        (look.json().get("holders").and_then(|number| number.as_u64()) == Some(wanted))
            .then_some(())
    };
    eventually(PATIENCE, told).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_share_a_key_before_and_after_the_writer_between_them() {
    for stage in stages().await {
        let http = stage.http(0);
        hold(&http, "mixed").await;
        let mut line = Vec::new();
        for number in 0..11 {
            let kind = if number == 5 { "" } else { "&shared=true" };
            let path = format!("/locks/mixed?wait=25s&ttl=10m{kind}");
            line.push(post(&stage.http(number), path, String::new()));
            until_waiters(&http, "mixed", number as u64 + 1).await;
        }
        let mut line = line.into_iter();
        release(&http, "mixed", HOLDER).await;
        let mut numbers = Vec::new();
        let mut readers = async |http: &Http| {
            let mut tokens = Vec::new();
            for request in line.by_ref().take(5) {
                let grant: Answer = granted(request).await;
                assert_eq!(grant.number("slots"), 1_000);
                numbers.push(grant.number("fencing_token"));
                tokens.push(grant.text("token"));
            }
            until_holders(http, "mixed", 5).await;
            tokens
        };
        let first = readers(&http).await;
        until_waiters(&http, "mixed", 6).await;
        for token in first {
            release(&http, "mixed", &token).await;
        }
        let writer = granted(line.next().unwrap()).await;
        assert_eq!(http.get("/locks/mixed").await.json().get("holders"), None);
        release(&http, "mixed", &writer.text("token")).await;
        let mut last = Vec::new();
        for request in line {
            last.push(granted(request).await);
        }
        until_holders(&http, "mixed", 5).await;
        let number = writer.number("fencing_token");
        assert!(numbers.iter().all(|earlier| *earlier < number));
        assert!(last.iter().all(|later| later.number("fencing_token") > number));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn never_more_than_three_work_and_each_of_them_in_a_slot_of_its_own() {
    for stage in stages().await {
        let working: Arc<[AtomicU64; 3]> = Arc::default();
        let mut clients = JoinSet::new();
        for number in 0..12 {
            let (http, working) = (stage.http(number), working.clone());
            clients.spawn(async move {
                for _ in 0..4 {
                    let path = "/locks/counted?wait=25s&ttl=10m&slots=3".to_owned();
                    let grant = granted(post(&http, path, String::new())).await;
                    let slot = grant.number("slot") as usize;
                    let fence = grant.number("fencing_token");
                    let last = working[slot - 1].swap(u64::MAX, Ordering::SeqCst);
                    assert!(last < fence, "slot {slot} is taken, or has seen {last}: {fence}");
                    http.get("/locks/counted").await;
                    working[slot - 1].store(fence, Ordering::SeqCst);
                    release(&http, "counted", &grant.text("token")).await;
                }
            });
        }
        tokio::time::timeout(PATIENCE, clients.join_all()).await.unwrap();
        let http = stage.http(0);
        assert_eq!(http.get("/locks/counted").await.field("held"), false);
    }
}
