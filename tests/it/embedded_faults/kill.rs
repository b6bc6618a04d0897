//! `kill -9` and SIGTERM: what was acknowledged is there afterwards, and nothing else.

use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::embedded_faults::load::Crowd;
use crate::support::{Answer, Http, Process, eventually};

const ROUNDS: u64 = 30;

#[tokio::test(flavor = "multi_thread")]
async fn every_acknowledged_lease_survives_kill_9_under_load_again_and_again() {
    let directory = tempfile::tempdir().unwrap();
    let mut crowd = Crowd::new(8, 8);
    let mut service = start(&directory);
    let (mut held, mut slowest) = (0, Duration::ZERO);
    for round in 0..ROUNDS {
        let working = crowd.work(&service.http());
        working.answered(40 + round * 7).await;
        service.kill();
        let ended = Instant::now();
        crowd = working.rest().await;
        let started = Instant::now();
        service = start(&directory);
        slowest = slowest.max(started.elapsed());
        held += crowd.check(&service.http(), ended, started).await;
    }
    assert!(held > 0, "nothing was held at any crash");
    eprintln!("{ROUNDS} crashes, {held} leases found again, serving again within {slowest:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_is_told_to_end_under_load_ends_well_and_keeps_the_leases() {
    let directory = tempfile::tempdir().unwrap();
    let mut crowd = Crowd::new(8, 8);
    let mut service = start(&directory);
    for round in 0..5 {
        let working = crowd.work(&service.http());
        working.answered(60 + round * 11).await;
        let began = Instant::now();
        service.signal("TERM");
        let code = service.wait();
        let ended = Instant::now();
        assert_eq!(code, Some(0));
        assert!(began.elapsed() < Duration::from_secs(10), "not within limits.shutdown_time");
        crowd = working.rest().await;
        let started = Instant::now();
        service = start(&directory);
        crowd.check(&service.http(), ended, started).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recovered_lease_lasts_what_it_had_left() {
    const TTL: Duration = Duration::from_secs(3);
    let directory = tempfile::tempdir().unwrap();
    let service = start(&directory);
    let http = service.http();
    let sent = Instant::now();
    assert_eq!(acquire(&http, "short", "token-of-the-short-one", TTL).await.status, 201);
    eventually(TTL, async || (left(&http, "short").await? < TTL / 2).then_some(())).await;
    // Any change tells the disk what time it is.
    assert_eq!(acquire(&http, "other", "token-of-the-other-one", TTL).await.status, 201);
    service.kill();
    let passed = sent.elapsed();

    let restarted = Instant::now();
    let service = start(&directory);
    let http = service.http();
    let found = left(&http, "short").await.expect("it is held still");
    assert!(found < TTL / 2, "{found:?}: it lasts longer than it had left");
    assert!(found + passed + restarted.elapsed() >= TTL, "{found:?}: it was cut short");
    eventually(TTL, async || left(&http, "short").await.is_none().then_some(())).await;
    assert!(passed + restarted.elapsed() >= TTL, "it ended before its time");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_in_a_quiet_service_is_recovered_with_at_most_5_s_more_than_it_had_left() {
    const TTL: Duration = Duration::from_secs(60);
    const LAG: Duration = Duration::from_secs(5);
    let directory = tempfile::tempdir().unwrap();
    let service = start(&directory);
    let http = service.http();
    assert_eq!(acquire(&http, "quiet", "token-of-the-quiet-one", TTL).await.status, 201);
    let before = eventually(TTL, async || {
        left(&http, "quiet").await.filter(|left| *left + LAG + LAG / 5 < TTL)
    })
    .await;
    service.kill();
    let service = start(&directory);
    let after = left(&service.http(), "quiet").await.expect("it is held still");
    assert!(after <= before + LAG, "{before:?} were left, {after:?} are");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_was_called_lost_is_not_found_again_after_a_crash() {
    let directory = tempfile::tempdir().unwrap();
    let mut service = start(&directory);
    for round in 0..10 {
        let http = service.http();
        let (key, token) = (format!("lost/{round}"), format!("token-of-the-lost-one-{round}"));
        let owner = http.token(&token);
        // What lies on the disk beside it is to outlive the crash.
        let kept = format!("kept/{round}");
        let lease = acquire(&http, &kept, &token, Duration::from_secs(600)).await;
        assert_eq!(lease.status, 201);
        // On a slow disk a lease of 100 ms may be over before it can be told.
        let lease = eventually(Duration::from_secs(30), async || {
            let answer = acquire(&http, &key, &token, Duration::from_millis(100)).await;
            (answer.status == 201).then_some(answer)
        })
        .await;
        eventually(Duration::from_secs(10), async || match round % 2 {
            // The first answer that says so counts, whichever it is.
            0 => left(&http, &key).await.is_none().then_some(()),
            _ => {
                let path = format!("/locks/{key}");
                let (other, ttl) = ("token-of-somebody-else", Duration::from_secs(60));
                let next = acquire(&http, &key, other, ttl).await;
                let lost = next.status == 201;
                if lost {
                    assert!(next.number("fencing_token") > lease.number("fencing_token"));
                    assert_eq!(owner.delete(&path).await.told(), (409, "lock_lost".to_owned()));
                }
                lost.then_some(())
            }
        })
        .await;
        service.kill();
        service = start(&directory);
        let http = service.http();
        let refreshed = http.token(&token).put(&format!("/locks/{key}/refresh"), "").await;
        assert_eq!(refreshed.told(), (409, "lock_lost".to_owned()));
        assert_eq!(left(&http, &key).await.is_some(), round % 2 == 1);
        assert!(left(&http, &kept).await.is_some());
    }
}

fn start(directory: &TempDir) -> Process {
    let store = format!("embedded:{}", directory.path().display());
    Process::start(&store, &[])
}

async fn acquire(http: &Http, key: &str, token: &str, ttl: Duration) -> Answer {
    let body = format!(r#"{{"token":"{token}","ttl_ms":{}}}"#, ttl.as_millis());
    http.post(&format!("/locks/{key}"), &body).await
}

/// What is left of whoever's lease of the key.
async fn left(http: &Http, key: &str) -> Option<Duration> {
    let found = http.get(&format!("/locks/{key}")).await;
    assert_eq!(found.status, 200, "{found:?}");
    (found.field("held") == true).then(|| Duration::from_millis(found.number("ttl_ms")))
}
