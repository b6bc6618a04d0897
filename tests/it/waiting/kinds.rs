//! Claims of several kinds in one line: readers, writers and counted ones, over several instances.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::task::JoinSet;

use crate::support::{Answer, Http, eventually};
use crate::waiting::{HOLDER, PATIENCE, Stage, granted, hold, post, release, until_waiters};

/// The embedded store, and one Redis with one to three instances.
async fn stages() -> Vec<Stage> {
    let mut stages = vec![Stage::embedded().await];
    for instances in 1..=3 {
        stages.push(Stage::redis(instances).await);
    }
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

/// Workers of an application, each with the limit of the release that it runs.
#[derive(Debug)]
struct Deploy {
    /// The limit of each worker.
    limits: Vec<AtomicU64>,
    /// The limits of those that work now.
    working: Mutex<Vec<u64>>,
    /// The turns that were worked.
    turns: AtomicU64,
    over: AtomicBool,
}

impl Deploy {
    fn of(workers: usize, limit: u64) -> Self {
        Self {
            limits: (0..workers).map(|_| AtomicU64::new(limit)).collect(),
            working: Mutex::default(),
            turns: AtomicU64::new(0),
            over: AtomicBool::new(false),
        }
    }

    /// Takes turns until it is over.
    async fn work(&self, worker: usize, http: Http) {
        while !self.over.load(Ordering::SeqCst) {
            let limit = self.limits[worker].load(Ordering::SeqCst);
            let path = format!("/locks/deployed?wait=25s&ttl=10m&slots={limit}");
            let grant = granted(post(&http, path, String::new())).await;
            {
                let mut working = self.working.lock().unwrap();
                working.push(limit);
                let least = *working.iter().min().unwrap();
                assert!(working.len() as u64 <= least, "{working:?} work at once");
            }
            http.get("/locks/deployed").await;
            {
                let mut working = self.working.lock().unwrap();
                let place = working.iter().position(|other| *other == limit).unwrap();
                working.swap_remove(place);
            }
            release(&http, "deployed", &grant.text("token")).await;
            self.turns.fetch_add(1, Ordering::SeqCst);
        }
    }

    async fn turns_go_on(&self, turns: u64) {
        let until = self.turns.load(Ordering::SeqCst) + turns;
        eventually(PATIENCE, async || (self.turns.load(Ordering::SeqCst) >= until).then_some(()))
            .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_deploy_from_five_slots_to_three_and_back_keeps_every_limit() {
    for stage in stages().await {
        let deploy = Arc::new(Deploy::of(12, 5));
        let mut workers = JoinSet::new();
        for worker in 0..12 {
            let (deploy, http) = (deploy.clone(), stage.http(worker));
            workers.spawn(async move { deploy.work(worker, http).await });
        }
        let http = stage.http(0);
        for limit in [5, 3, 5] {
            for worker in &deploy.limits {
                worker.store(limit, Ordering::SeqCst);
                deploy.turns_go_on(5).await;
            }
            // As many as all of them allow, once those who asked before have had their turn.
            until_holders(&http, "deployed", limit).await;
        }
        deploy.over.store(true, Ordering::SeqCst);
        tokio::time::timeout(PATIENCE, workers.join_all()).await.unwrap();
        assert_eq!(http.get("/locks/deployed").await.field("held"), false);
    }
}
