//! What a stream says while all goes well.

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::hold::{Listener, OTHER, PATIENCE, SOON, TOKEN, counts, freed, is_held};
use crate::support::eventually;
use crate::waiting::{Stage, until_waiters};

#[tokio::test(flavor = "multi_thread")]
async fn a_free_key_is_held_for_longer_than_its_ttl() {
    for stage in Stage::each().await {
        let http = stage.http(0);
        let began = Instant::now();
        let mut listener = Listener::open(&http, "free?ttl=1800ms&owner=me").await;
        assert_eq!(listener.status(), "200");
        for line in [
            "HTTP/1.0",
            "content-type: application/x-ndjson\r",
            "cache-control: no-store, no-transform\r",
            "x-accel-buffering: no\r",
        ] {
            assert!(listener.head.contains(line), "{line}: {}", listener.head);
        }
        let grant = listener.hears("acquired").await;
        assert!(began.elapsed() < SOON);
        assert_eq!([&grant["token"], &grant["key"], &grant["owner"]], [TOKEN, "free", "me"]);
        assert!(grant["fencing_token"].as_u64() > Some(0), "{grant}");
        assert_eq!(grant["waited_ms"], 0);
        // What is left when it is told.
        assert!((900..=1_800).contains(&grant["ttl_ms"].as_u64().unwrap()), "{grant}");
        for _ in 0..5 {
            let left = listener.hears("alive").await["ttl_ms"].as_u64().unwrap();
            assert!((600..=1_800).contains(&left), "{left}");
            let look = http.token(TOKEN).get("/locks/free").await;
            assert_eq!([look.field("held"), look.field("mine")], [true, true]);
        }
        let took = began.elapsed();
        // Five times a third of the TTL.
        assert!(took > Duration::from_millis(2_950), "{took:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_server_sent_events_for_a_client_that_asks_for_them() {
    let stage = Stage::embedded().await;
    let accepting = format!("{TOKEN}\r\naccept: text/event-stream");
    let mut listener = Listener::open_as(&stage.http(0), "sent?ttl=300ms", &accepting).await;
    assert!(listener.head.contains("content-type: text/event-stream\r"), "{}", listener.head);
    assert!(listener.head.contains("cache-control: no-store, no-transform\r"));
    for event in ["acquired", "alive", "alive"] {
        let line = listener.line().await.unwrap();
        let data = line.strip_prefix("data: ").unwrap_or_else(|| panic!("{line}"));
        let data: Value = serde_json::from_str(data).unwrap();
        assert_eq!(data["event"], event);
        assert_eq!(listener.line().await.unwrap(), "\n");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_key_is_a_plain_409_unless_waiting_is_asked_for() {
    for stage in Stage::each().await {
        let http = stage.http(0);
        let mut holder = Listener::open(&http, "held").await;
        holder.hears("acquired").await;
        let refused = http.post("/hold/held", "").await;
        assert_eq!(refused.told(), (409, "lock_held".into()));
        assert!(refused.header("retry-after").is_some());
        let mut waits = Listener::open_as(&http, "held?wait=400ms", OTHER).await;
        assert_eq!(waits.status(), "200");
        let began = Instant::now();
        assert_eq!(waits.hears("waiting").await["ahead"], 0);
        waits.hears("timeout").await;
        assert!(began.elapsed() > Duration::from_millis(300));
        assert_eq!(waits.next().await, None);
        until_waiters(&http, "held", 0).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_is_told_how_many_are_ahead_and_served_in_order() {
    for stage in Stage::each().await {
        let http = stage.http(0);
        let mut holder = Listener::open(&http, "line").await;
        let mut fence = holder.hears("acquired").await["fencing_token"].as_u64().unwrap();
        let mut line = Vec::new();
        for number in 0..3 {
            let token = format!("token-of-waiter-{number}");
            let mut next = Listener::open_as(&http, "line?wait=forever", &token).await;
            assert_eq!(next.hears("waiting").await["ahead"], number);
            line.push(next);
        }
        for mut next in line {
            let began = Instant::now();
            drop(holder);
            let grant = next.hears_after_all("acquired").await;
            assert!(began.elapsed() < SOON);
            let before = std::mem::replace(&mut fence, grant["fencing_token"].as_u64().unwrap());
            assert!(fence > before, "{grant}");
            holder = next;
        }
        drop(holder);
        assert!(freed(&http, "line").await < SOON);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn there_is_room_for_as_many_streams_as_the_settings_say() {
    for stage in Stage::each_with(&[("LOCKKEEPER_LIMITS_HOLD_STREAMS", "1")]).await {
        let http = stage.http(0);
        let mut listener = Listener::open(&http, "one").await;
        listener.hears("acquired").await;
        let refused = http.post("/hold/another", "").await;
        assert_eq!(refused.told(), (429, "too_many_waiters".into()));
        assert!(!is_held(&http, "another").await);
        counts(&http, "lockkeeper_hold_streams 1").await;
        drop(listener);
        counts(&http, "lockkeeper_hold_streams 0").await;
        eventually(PATIENCE, async || {
            (http.post("/hold/another", "").await.status == 200).then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crowd_that_waits_costs_redis_few_calls() {
    let stage = Stage::redis(1).await;
    let (http, redis) = (stage.http(0), stage.redis_server());
    let mut holder = Listener::open(&http, "idle").await;
    holder.hears("acquired").await;
    let mut crowd = Vec::new();
    for number in 0..100 {
        let token = format!("token-of-waiter-{number}");
        let mut waits = Listener::open_as(&http, "idle?wait=forever", &token).await;
        waits.hears("waiting").await;
        crowd.push(waits);
    }
    until_waiters(&http, "idle", 100).await;
    let calls = || {
        let all: String = redis.run("INFO commandstats");
        let scripts = all.lines().filter_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
        scripts.map(|rest| rest.split(',').next().unwrap().parse::<u64>().unwrap()).sum::<u64>()
    };
    let before = calls();
    // A request that waits as well is a clock.
    assert_eq!(http.post("/locks/idle?wait=4s", "").await.status, 409);
    let spent = calls() - before;
    assert!(spent <= 4 * 5 + 5, "{spent} calls in 4 s");
}
