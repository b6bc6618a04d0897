//! How soon the next has the key: after a release, an expiry, a client on Redis, a lost hint.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::support::{Http, Redis};
use crate::waiting::{HOLDER, Stage, answer, granted, hold, release, start, until_waiters, wait};

/// Where nobody tells it, an instance asks within a second. The rest is for a busy machine, and less
/// than any wait here.
const SOON: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread")]
async fn a_release_reaches_the_next_in_line() {
    for (name, stage) in [
        ("embedded", Stage::embedded().await),
        ("Redis, one instance", Stage::redis(1).await),
        ("Redis, two instances", Stage::redis(2).await),
        ("Sentinel, two instances", Stage::sentinel(2).await),
        ("Cluster, two instances", Stage::cluster(2).await),
    ] {
        let mut took = Vec::new();
        let mut token = stage.http(0).post("/locks/relay?ttl=10m", "").await.text("token");
        for round in 0..200 {
            let (here, there) = (stage.http(round), stage.http(round + 1));
            let next = wait(&there, "relay", "20s");
            until_waiters(&here, "relay", 1).await;
            let began = Instant::now();
            assert_eq!(here.token(&token).delete("/locks/relay").await.status, 204);
            token = granted(next).await.text("token");
            took.push(began.elapsed());
        }
        took.sort_unstable();
        eprintln!("hand-over, {name}: p50 {:?}, p99 {:?}", took[100], took[198]);
        // Without a hint it would be half a second.
        assert!(took[100] < Duration::from_millis(250), "{name}: {:?}", took[100]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_runs_out_goes_to_the_next_in_line() {
    for stage in Stage::each().await {
        let http = stage.http(0);
        for ttl in [200, 1_200] {
            let sent = Instant::now();
            let first = http.post(&format!("/locks/short?ttl={ttl}ms"), "").await;
            let began = Instant::now();
            assert_eq!(first.status, 201);
            let next = granted(wait(&http, "short", "20s")).await;
            let took = began.elapsed();
            assert!(took < Duration::from_millis(ttl) + SOON, "after {took:?}");
            // Redis counts whole milliseconds of its own clock.
            assert!(sent.elapsed() + Duration::from_millis(1) >= Duration::from_millis(ttl));
            assert!(next.number("fencing_token") > first.number("fencing_token"));
            eprintln!("a lease of {ttl} ms is the next one's after {took:?}");
            release(&http, "short", &next.text("token")).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_on_redis_that_releases_or_expires_is_followed_soon() {
    let stage = Stage::redis(2).await;
    let redis = stage.redis_server();
    for round in 0..6 {
        let direct = "SET lock:direct its-own-value NX PX";
        let expires = round % 2 == 0;
        redis.run::<()>(&format!("{direct} {}", if expires { 700 } else { 600_000 }));
        let mut over = Instant::now() + Duration::from_millis(700);
        let next = wait(&stage.http(round / 2), "direct", "20s");
        until_waiters(&stage.http(0), "direct", 1).await;
        if !expires {
            over = Instant::now();
            assert_eq!(redis.run::<u64>("DEL lock:direct"), 1);
        }
        let next = granted(next).await;
        assert!(over.elapsed() < SOON, "after {:?}", over.elapsed());
        assert_eq!(redis.run::<String>("GET lock:direct"), next.text("token"));
        release(&stage.http(1), "direct", &next.text("token")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_goes_on_in_order_when_redis_drops_its_clients_again_and_again() {
    for kinds in [&["pubsub"][..], &["normal", "pubsub"]] {
        let stage = Arc::new(Stage::redis(2).await);
        hold(&stage.http(0), "hints").await;
        let served = Arc::new(Mutex::new(Vec::new()));
        let mut waiting = JoinSet::new();
        for number in 0..24 {
            let (stage, served) = (stage.clone(), served.clone());
            let (http, look) = (stage.http(number), stage.http(0));
            waiting.spawn(async move {
                let next = granted(wait(&http, "hints", "25s")).await;
                served.lock().unwrap().push((number, Instant::now()));
                cut_and_release(&http, stage.redis_server(), kinds, &next.text("token")).await;
            });
            until_waiters(&look, "hints", number as u64 + 1).await;
        }
        let began = Instant::now();
        cut_and_release(&stage.http(0), stage.redis_server(), kinds, HOLDER).await;
        while let Some(ended) = waiting.join_next().await {
            ended.unwrap();
        }
        let served = served.lock().unwrap().clone();
        let order: Vec<_> = served.iter().map(|(number, _)| *number).collect();
        assert_eq!(order, Vec::from_iter(0..24));
        let times = std::iter::once(began).chain(served.iter().map(|(_, at)| *at));
        let times: Vec<_> = times.collect();
        let longest = times.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
        assert!(longest < SOON, "{longest:?}");
        eprintln!("{kinds:?} cut at each of 24 hand-overs: at most {longest:?} between two");
    }
}

/// Cuts the connections just before and just after a release.
async fn cut_and_release(http: &Http, redis: &Redis, kinds: &[&str], token: &str) {
    cut(redis, kinds);
    release(http, "hints", token).await;
    cut(redis, kinds);
}

/// Who cuts would cut the others that do.
static CUTTING: Mutex<()> = Mutex::new(());

fn cut(redis: &Redis, kinds: &[&str]) {
    let _one_at_a_time = CUTTING.lock().unwrap();
    for kind in kinds {
        redis.run::<u64>(&format!("CLIENT KILL TYPE {kind}"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_has_the_key_that_is_forced_open() {
    for stage in Stage::each().await {
        let http = stage.http(0);
        hold(&http, "forced").await;
        let next = wait(&http, "forced", "20s");
        until_waiters(&http, "forced", 1).await;
        assert_eq!(http.delete("/admin/locks/forced").await.status, 200);
        assert_eq!(answer(next).await.status, 201);
        assert_eq!(http.token(HOLDER).put("/locks/forced/refresh", "").await.status, 409);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_user_of_redis_without_channels_is_served_only_later() {
    let redis = Redis::start();
    redis.run::<()>("ACL SETUSER shop on >secret resetchannels ~* +@all");
    let url = redis.url().replace("redis://", "redis://shop:secret@");
    let services = [start(&url, &[]).await, start(&url, &[]).await];
    let [http, other] = [services[0].http(), services[1].http()];
    hold(&http, "silent").await;
    let next = wait(&other, "silent", "20s");
    until_waiters(&http, "silent", 1).await;
    let began = Instant::now();
    release(&http, "silent", HOLDER).await;
    granted(next).await;
    assert!(began.elapsed() < SOON, "after {:?}", began.elapsed());
}
