//! Redis is killed, comes back, is not there yet, or drops its clients.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use serde_json::Value;

use crate::redis_faults::contest::Contest;
use crate::redis_faults::lists::API_KEYS;
use crate::redis_faults::{
    LONG, PATIENCE, acquire, look, lost, refresh, release, service, unavailable,
};
use crate::support::wire::Wire;
use crate::support::{Http, Process, Redis, Service, eventually};

const SAFE: &[&str] = &["--save", "", "--appendonly", "yes", "--appendfsync", "always"];

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_keeps_its_data_is_served_within_a_second_of_its_return() {
    killed_and_restarted(Redis::start_with(SAFE), true).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_keeps_nothing_is_served_within_a_second_of_its_return() {
    killed_and_restarted(Redis::start(), false).await;
}

async fn killed_and_restarted(mut redis: Redis, keeps: bool) {
    let service = service(&redis, &[]).await;
    let http = service.http();
    let token = "token-of-the-old-lease";
    let mut quickest = PATIENCE;
    for round in 0..5 {
        let key = format!("old/{round}");
        let old = eventually(PATIENCE, async || {
            Some(acquire(&http, &key, token, LONG).await).filter(|answer| answer.status == 201)
        })
        .await;
        redis.kill();
        all_is_unavailable(&http, &key, token).await;
        redis.restart();
        let returned = Instant::now();
        let new = format!("new/{round}");
        eventually(PATIENCE, async || {
            (acquire(&http, &new, token, LONG).await.status == 201).then_some(())
        })
        .await;
        quickest = quickest.min(returned.elapsed());

        let refreshed = refresh(&http, &key, token).await;
        if keeps {
            assert_eq!(refreshed.status, 200, "{refreshed:?}");
            assert_eq!(refreshed.number("fencing_token"), old.number("fencing_token"));
        } else {
            assert_eq!(refreshed.told(), lost());
            let next = acquire(&http, &key, "token-of-the-next-one", LONG).await;
            assert!(next.number("fencing_token") > old.number("fencing_token"), "{next:?}");
        }
    }
    // Once in five times the machine has time for it.
    assert!(quickest < Duration::from_secs(1), "served only after {quickest:?}");
    eprintln!("Redis back 5 times (keeps its data: {keeps}): served within {quickest:?} once");
}

async fn all_is_unavailable(http: &Http, key: &str, token: &str) {
    // A call that meets the broken connection is in doubt, later ones were never sent.
    eventually(PATIENCE, async || {
        let answer = acquire(http, "meanwhile", token, LONG).await;
        assert_eq!(answer.told(), unavailable(), "{answer:?}");
        assert_eq!(answer.header("retry-after"), Some("1"));
        // An earlier call with a client's token may have got a lease.
        assert_eq!(answer.text("outcome"), "unknown");
        let answer = http.post("/locks/meanwhile", "").await;
        (answer.text("outcome") == "not_acquired").then_some(())
    })
    .await;
    let chosen = acquire(http, "meanwhile", token, LONG).await;
    let said = "Redis gave no answer: this did nothing; an earlier request of its token may have";
    assert_eq!(chosen.text("detail"), said);
    for answer in [refresh(http, key, token).await, release(http, "other", token).await] {
        assert_eq!(answer.told(), unavailable(), "{answer:?}");
        assert_eq!(answer.text("outcome"), "unknown", "{answer:?}");
    }
    for path in ["/locks/other", "/locks"] {
        let answer = http.get(path).await;
        assert_eq!(answer.told(), unavailable(), "{answer:?}");
        assert!(answer.field("outcome").is_null(), "{answer:?}");
    }
    assert_eq!(http.get("/healthz").await.status, 200);
    assert_eq!(http.get("/readyz").await.status, 200, "it must not drop when the store blips");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_call_is_logged_with_its_key_and_its_request_a_few_times_a_second() {
    let mut redis = Redis::start();
    let service = Process::start(&redis.url(), &[]);
    let http = service.http();
    assert_eq!(acquire(&http, "held", "token-of-the-lease", LONG).await.status, 201);
    redis.kill();
    let lines = |service: &Process| -> Vec<Value> {
        let log = service.log();
        let failed = log.lines().filter(|line| line.contains("store call failed"));
        failed.map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let requests = AtomicU64::new(0);
    let line = eventually(PATIENCE, async || {
        let id = format!("request-{}", requests.fetch_add(1, Ordering::Relaxed));
        let named = http.with("X-Request-Id", &id);
        let answer = named.post("/locks/shop%2F7?ttl=1s", "").await;
        assert_eq!(answer.told(), unavailable(), "{answer:?}");
        lines(&service).into_iter().find(|line| line["request_id"] == "request-0")
    })
    .await;
    assert_eq!(line["lock.key"], "shop/7", "{line}");
    assert_eq!(line["client.address"], "127.0.0.1", "{line}");
    let left_out = |lines: &[Value]| -> u64 {
        lines.iter().filter_map(|line| line["left_out"].as_u64()).sum()
    };
    // However slow the machine is, at some time there are more of them in a second.
    eventually(PATIENCE, async || {
        join_all((0..100).map(|_| http.get("/locks/shop%2F7"))).await;
        requests.fetch_add(100, Ordering::Relaxed);
        (left_out(&lines(&service)) > 0).then_some(())
    })
    .await;
    // The rest is told by a later one.
    eventually(PATIENCE, async || {
        let lines = lines(&service);
        if lines.len() as u64 + left_out(&lines) == requests.load(Ordering::Relaxed) {
            return Some(());
        }
        assert_eq!(http.get("/locks/shop%2F7").await.told(), unavailable());
        requests.fetch_add(1, Ordering::Relaxed);
        None
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_finds_no_redis_starts_and_serves_once_it_is_there() {
    let mut redis = Redis::start();
    redis.kill();
    let service = service(&redis, &[]).await;
    let http = service.http();
    assert_eq!(http.get("/healthz").await.status, 200);
    assert_eq!(http.get("/readyz").await.told(), (503, "not_ready".to_owned()));
    let answer = http.post("/locks/early", "").await;
    assert_eq!(answer.told(), unavailable());
    assert_eq!(answer.text("outcome"), "not_acquired");
    redis.restart();
    let returned = Instant::now();
    eventually(PATIENCE, async || (http.get("/readyz").await.status == 200).then_some(())).await;
    assert_eq!(acquire(&http, "early", "token-of-the-early-one", LONG).await.status, 201);
    assert!(returned.elapsed() < Duration::from_secs(5), "after {:?}", returned.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_is_killed_under_load_never_lets_two_hold_a_key() {
    let mut redis = Redis::start_with(SAFE);
    let service = service(&redis, &[]).await;
    let contest = Contest::begin(&service.http());
    for _ in 0..10 {
        contest.goes_on(50).await;
        redis.kill();
        redis.restart();
    }
    contest.goes_on(50).await;
    let tally = contest.finish().await;
    eprintln!("10 kills of Redis: {} grants, {} times 503", tally.grants, tally.unavailable);
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_are_silent_for_ever_are_given_up() {
    let redis = Redis::start();
    let wire = Wire::to(redis.port()).await;
    let store = format!("redis://127.0.0.1:{}", wire.port());
    let service = Service::start(&[("LOCKKEEPER_STORE", &store)], "").await;
    let http = service.http();
    let served = async |key: &str| {
        let token = "token-of-the-only-one";
        eventually(PATIENCE, async || {
            (acquire(&http, key, token, LONG).await.status == 201).then_some(())
        })
        .await;
    };
    served("before").await;
    wire.break_connections();
    assert_eq!(acquire(&http, "between", "token-of-the-only-one", LONG).await.status, 503);
    let began = Instant::now();
    served("after").await;
    eprintln!("served again over new connections after {:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_redis_closes_again_and_again_lead_to_no_wrong_answer() {
    let redis = Redis::start();
    let service = service(&redis, &[]).await;
    let http = service.http();
    let contest = Contest::begin(&http);
    for _ in 0..100 {
        contest.goes_on(10).await;
        redis.run::<i64>("CLIENT KILL TYPE normal");
    }
    contest.goes_on(50).await;
    let tally = contest.finish().await;
    assert!(tally.unavailable < tally.grants, "{tally:?}");
    eprintln!("100 CLIENT KILL: {} grants, {} times 503", tally.grants, tally.unavailable);
    // Whatever was in doubt was settled by the clients themselves.
    let found = http.get("/locks").await;
    assert_eq!(found.field("locks"), serde_json::json!([]), "{found:?}");
    assert_eq!(look(&http, "contest/0").await.field("held"), false);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_beyond_a_quota_that_may_not_be_used_up_is_told_that_it_got_nothing() {
    let mut redis = Redis::start();
    let settings = format!("{API_KEYS}\n[quotas]\nleases = 1\n");
    let service = Service::start(&[("LOCKKEEPER_STORE", &redis.url())], &settings).await;
    let http = service.http().with("authorization", "Bearer sesame");
    redis.kill();
    // The lease of a claim without an answer counts until the store has been asked about it.
    let doubt = acquire(&http, "shop/doubt", "token-of-the-client", LONG).await;
    assert_eq!(doubt.told(), unavailable(), "{doubt:?}");
    let outcome = async |body: &str| {
        let answer = http.post("/locks/shop/other", body).await;
        (answer.told() == unavailable()).then(|| answer.text("outcome"))
    };
    assert_eq!(eventually(PATIENCE, async || outcome("").await).await, "not_acquired");
    let chosen = outcome(r#"{"token":"token-of-another-claim"}"#).await;
    assert_eq!(chosen.as_deref(), Some("unknown"), "it may have a lease from an earlier call");
}
