//! A Redis that stands still for longer than a command may take, and goes on with what it was
//! sent meanwhile.

use std::io::Write;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::redis_faults::{
    LONG, PATIENCE, acquire, calls_of, is_left, look, lost, refresh, release, service, unavailable,
};
use crate::support::{Answer, Http, Redis, eventually};
use crate::waiting::process;

const DEADLINE: (&str, &str) = ("LOCKKEEPER_REDIS_COMMAND_TIMEOUT", "200ms");
const CALLS: usize = 50;

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_timed_out_while_redis_was_suspended_leaves_no_lease_behind() {
    let redis = Redis::start();
    let service = service(&redis, &[DEADLINE]).await;
    let http = service.http();
    for _ in 0..3 {
        eventually(PATIENCE, async || reached(&http).await.then_some(())).await;
        redis.pause();
        for (answer, took) in at_once(&http).await {
            assert_eq!(answer.told(), unavailable(), "{answer:?}");
            assert_eq!(answer.text("outcome"), "unknown", "{answer:?}");
            assert!(took < Duration::from_secs(10), "answered only after {took:?}");
        }
        redis.resume();
    }
    eventually(PATIENCE, async || reached(&http).await.then_some(())).await;
    // The end waits for all that is to be taken back.
    service.shut_down().await;
    assert_eq!(redis.run::<Vec<String>>("KEYS lock:*"), Vec::<String>::new());
}

/// So many acquires at once, each of a key of its own, with tokens that the service makes.
async fn at_once(http: &Http) -> Vec<(Answer, Duration)> {
    let mut calls = JoinSet::new();
    for number in 0..CALLS {
        let http = http.clone();
        calls.spawn(async move {
            let sent = Instant::now();
            let answer = http.post(&format!("/locks/paused/{number}?ttl=10m"), "").await;
            (answer, sent.elapsed())
        });
    }
    calls.join_all().await
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_went_away_while_redis_stood_still_leave_no_lease_behind() {
    let redis = Redis::start();
    let service = service(&redis, &[DEADLINE]).await;
    let http = service.http();
    eventually(PATIENCE, async || reached(&http).await.then_some(())).await;
    let before = calls_of(&redis, "evalsha");
    redis.pause();
    let refused = Instant::now();
    hang_up_at_once(&http);
    // Longer than a command may take: this one does, too.
    assert_eq!(acquire(&http, "timed", "token-of-the-timed-one", LONG).await.status, 503);
    assert!(refused.elapsed() >= Duration::from_millis(200));
    redis.resume();
    // Each has been tried, and each is taken back.
    eventually(PATIENCE, async || {
        (calls_of(&redis, "evalsha") >= before + 2 * CALLS as u64).then_some(())
    })
    .await;
    service.shut_down().await;
    assert_eq!(redis.run::<Vec<String>>("KEYS lock:paused*"), Vec::<String>::new());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grant_to_a_client_that_went_away_is_taken_back() {
    let redis = Redis::start();
    // Long enough that what waits for Redis is granted, and nobody is there to take it.
    let service = service(&redis, &[("LOCKKEEPER_REDIS_COMMAND_TIMEOUT", "2s")]).await;
    let http = service.http();
    for _ in 0..5 {
        eventually(PATIENCE, async || reached(&http).await.then_some(())).await;
        let freed = calls_of(&redis, "del");
        redis.pause();
        hang_up_at_once(&http);
        redis.resume();
        eventually(PATIENCE, async || {
            (calls_of(&redis, "del") >= freed + CALLS as u64).then_some(())
        })
        .await;
    }
    service.shut_down().await;
    assert_eq!(redis.run::<Vec<String>>("KEYS lock:*"), Vec::<String>::new());
}

/// Two or three requests of one token, each given up after a moment, left a lease of nobody: the
/// second repeated what the first was granted.
#[tokio::test(flavor = "multi_thread")]
async fn requests_of_one_token_that_are_given_up_while_redis_is_suspended_leave_no_lease() {
    let redis = Redis::start();
    let service = service(&redis, &[("LOCKKEEPER_REDIS_COMMAND_TIMEOUT", "2s")]).await;
    let http = service.http();
    for (round, query) in ["", "&slots=3", "&shared=true"].into_iter().enumerate() {
        eventually(PATIENCE, async || reached(&http).await.then_some(())).await;
        redis.pause();
        for _ in 0..3 {
            let mut stream = TcpStream::connect(http.address).unwrap();
            let head = format!(
                "POST /locks/given-up/{round}?ttl=10m{query} HTTP/1.1\r\nhost: localhost\r\n\
                 lock-token: token-of-one-claim\r\n\r\n"
            );
            stream.write_all(head.as_bytes()).unwrap();
        }
        redis.resume();
    }
    service.shut_down().await;
    assert_eq!(redis.run::<Vec<String>>("KEYS lock:given-up*"), Vec::<String>::new());
}

/// Sends so many whole requests, and closes each connection right after.
fn hang_up_at_once(http: &Http) {
    for number in 0..CALLS {
        let mut stream = TcpStream::connect(http.address).unwrap();
        let head =
            format!("POST /locks/paused/{number}?ttl=10m HTTP/1.1\r\nhost: localhost\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refresh_or_release_that_timed_out_does_not_act_wrongly_later() {
    const TTL: Duration = Duration::from_secs(60);
    let redis = Redis::start();
    let service = service(&redis, &[DEADLINE]).await;
    let http = service.http();
    for (key, token) in [("kept", "token-of-the-kept-one"), ("given", "token-of-the-given-one")] {
        let granted = eventually(PATIENCE, async || {
            Some(acquire(&http, key, token, TTL).await).filter(|answer| answer.status == 201)
        });
        granted.await;
    }
    redis.pause();
    let path = "/locks/kept/refresh";
    let refreshed = http.token("token-of-the-kept-one").put(path, r#"{"ttl_ms":6000000}"#).await;
    let released = release(&http, "given", "token-of-the-given-one").await;
    for answer in [refreshed, released] {
        assert_eq!(answer.told(), unavailable());
        assert_eq!(answer.text("outcome"), "unknown");
    }
    redis.resume();
    eventually(PATIENCE, async || reached(&http).await.then_some(())).await;
    assert!(redis.run::<u128>("PTTL lock:kept") <= TTL.as_millis(), "refreshed too late");
    assert_eq!(refresh(&http, "kept", "token-of-the-kept-one").await.status, 200);
    // In doubt, and repeated as the contract says.
    let again = release(&http, "given", "token-of-the-given-one").await;
    assert!(again.status == 204 || again.told() == lost(), "{again:?}");
    assert_eq!(look(&http, "given").await.field("held"), false);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_with_the_token_of_a_client_is_never_taken_back() {
    let redis = Redis::start();
    let service = service(&redis, &[DEADLINE]).await;
    let http = service.http();
    let token = "token-of-the-client";
    eventually(PATIENCE, async || reached(&http).await.then_some(())).await;
    redis.pause();
    let first = acquire(&http, "chosen", token, LONG).await;
    assert_eq!(first.told(), unavailable());
    assert_eq!(first.text("outcome"), "unknown");
    redis.resume();
    let repeated = eventually(PATIENCE, async || {
        Some(acquire(&http, "chosen", token, LONG).await).filter(|answer| answer.status != 503)
    })
    .await;
    assert!([200, 201].contains(&repeated.status), "{repeated:?}");
    service.shut_down().await;
    assert_eq!(redis.run::<String>("GET lock:chosen"), token);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_that_was_stopped_grants_nothing_that_is_over() {
    let redis = Redis::start();
    let patience = ("LOCKKEEPER_REDIS_COMMAND_TIMEOUT", "10s");
    let service = process(&redis.url(), &[patience]).await;
    let http = service.http();
    for (number, options) in ["ttl=300ms", "ttl=300ms&wait=9s", "ttl=300ms"].iter().enumerate() {
        let key = format!("late/{number}");
        // Redis knows the script from then on.
        assert_eq!(http.post(&format!("/locks/known/{number}?{options}"), "").await.status, 201);
        let before = calls_of(&redis, "evalsha");
        redis.pause();
        let mut asking = JoinSet::new();
        let (client, path) = (http.clone(), format!("/locks/{key}?{options}"));
        asking.spawn(async move { client.post(&path, "").await });
        // It has sent its question to Redis, and sleeps over the answer.
        eventually(PATIENCE, async || is_left(&redis).then_some(())).await;
        service.stop();
        redis.resume();
        eventually(PATIENCE, async || {
            let granted = calls_of(&redis, "evalsha") > before;
            (granted && redis.run::<i64>(&format!("PTTL lock:{key}")) == -2).then_some(())
        })
        .await;
        service.signal("CONT");
        let answer = asking.join_next().await.unwrap().unwrap();
        assert_eq!(answer.told(), unavailable(), "{answer:?}");
        assert_eq!(answer.text("outcome"), "unknown", "{answer:?}");
    }
}

/// Whether Redis has answered a call now.
async fn reached(http: &Http) -> bool {
    look(http, "whatever").await.status == 200
}
