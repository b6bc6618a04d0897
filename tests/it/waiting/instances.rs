//! An instance dies or ends while clients wait on it.

use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::support::{Redis, eventually};
use crate::waiting::{
    HOLDER, PATIENCE, Stage, answer, granted, hold, process, release, until_waiters, wait, wait_as,
};

/// How long the waiters of a dead instance may keep the line waiting: its window, the next
/// question of a living one, and what a busy machine adds.
const WINDOW: Duration = Duration::from_millis(3_000 + 500 + 1_000);

#[tokio::test(flavor = "multi_thread")]
async fn a_line_goes_on_however_many_stood_first_on_an_instance_that_was_killed() {
    for first in [1, 20, 100] {
        for killed_first in [true, false] {
            let redis = Redis::start();
            let (dies, lives) =
                (process(&redis.url(), &[]).await, process(&redis.url(), &[]).await);
            let http = lives.http();
            hold(&http, "killed").await;
            let doomed = dies.http();
            let mut waiting = JoinSet::new();
            for _ in 0..first {
                let doomed = doomed.clone();
                // Nobody answers it.
                waiting.spawn(async move {
                    drop(doomed.try_send("POST", "/locks/killed?wait=25s", "").await);
                });
            }
            until_waiters(&http, "killed", first).await;
            let next = wait(&http, "killed", "25s");
            until_waiters(&http, "killed", first + 1).await;
            let began = Instant::now();
            if killed_first {
                dies.kill();
                release(&http, "killed", HOLDER).await;
            } else {
                // Handed to one that cannot take it any more.
                dies.stop();
                release(&http, "killed", HOLDER).await;
                dies.kill();
            }
            let next = granted(next).await;
            let took = began.elapsed();
            assert!(took < WINDOW, "{first} waiters: {took:?}");
            eprintln!("the next after {first} dead waiters has the key after {took:?}");
            until_waiters(&http, "killed", 0).await;
            release(&http, "killed", &next.text("token")).await;
            waiting.join_all().await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_ends_tells_its_waiters_and_keeps_the_leases() {
    const TOKEN: &str = "token-of-the-waiter";
    let redis = Redis::start();
    let (ends, stays) = (process(&redis.url(), &[]).await, process(&redis.url(), &[]).await);
    let (there, http) = (ends.http(), stays.http());
    hold(&there, "ends").await;
    let first = wait_as(&there, "ends", TOKEN, "25s");
    until_waiters(&http, "ends", 1).await;
    let second = wait(&there, "ends", "25s");
    until_waiters(&http, "ends", 2).await;
    let later = wait(&http, "ends", "25s");
    until_waiters(&http, "ends", 3).await;
    let began = Instant::now();
    ends.signal("TERM");
    for request in [first, second] {
        let told = answer(request).await;
        assert_eq!(told.told(), (503, "draining".to_owned()));
        assert_eq!(told.header("retry-after"), Some("0"));
    }
    assert_eq!(ends.wait(), Some(0));
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
    until_waiters(&http, "ends", 1).await;
    let again = wait_as(&http, "ends", TOKEN, "25s");
    until_waiters(&http, "ends", 2).await;
    let kept = http.token(HOLDER).put("/locks/ends/refresh", "").await;
    assert_eq!(kept.status, 200, "{kept:?}");
    release(&http, "ends", HOLDER).await;
    granted(again).await;
    assert!(!later.is_finished());
    release(&http, "ends", TOKEN).await;
    granted(later).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waiters_of_the_embedded_store_are_told_that_it_ends() {
    let directory = tempfile::tempdir().unwrap();
    let ends = process(&format!("embedded:{}", directory.path().display()), &[]).await;
    let http = ends.http();
    hold(&http, "ends").await;
    let waiting: Vec<_> = (0..50).map(|_| wait(&http, "ends", "25s")).collect();
    until_waiters(&http, "ends", 50).await;
    let began = Instant::now();
    ends.signal("TERM");
    for request in waiting {
        assert_eq!(answer(request).await.told(), (503, "draining".to_owned()));
    }
    assert_eq!(ends.wait(), Some(0));
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_through_another_instance_is_an_end_that_this_one_did_not_see() {
    let stage = Stage::redis(2).await;
    let (here, there) = (stage.http(0), stage.http(1));
    assert_eq!(here.token(HOLDER).post("/locks/over?ttl=2s", "").await.status, 201);
    release(&there, "over", HOLDER).await;
    let end = eventually(PATIENCE, async || {
        let status = here.get("/ui/status").await.json();
        status["ends"].as_array().unwrap().iter().find(|end| end["key"] == "over").cloned()
    })
    .await;
    assert_eq!((&end["why"], end.get("held_ms")), (&"elsewhere".into(), None), "{end}");
    let metrics = String::from_utf8(here.get("/metrics").await.body.to_vec()).unwrap();
    assert!(!metrics.contains("lockkeeper_lease_held_seconds_count{"), "{metrics}");
}
