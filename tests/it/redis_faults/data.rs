//! Redis loses its data or its scripts, or has no room for more.

use lockkeeper::lock::store::{Keep, Target};

use crate::conformance::line::waits;
use crate::conformance::{Stage, key, token};
use crate::redis_faults::contest::Contest;
use crate::redis_faults::{
    LONG, acquire, line, look, lost, refresh, release, service, unavailable,
};
use crate::support::Redis;

#[tokio::test(flavor = "multi_thread")]
async fn a_flushed_lease_is_lost_and_fencing_tokens_rise_over_1_000_flushes() {
    let redis = Redis::start();
    let service = service(&redis, &[]).await;
    let http = service.http();
    let mut last = 0;
    for round in 0..1_000 {
        let token = format!("token-of-the-round-{round}");
        let granted = acquire(&http, "flushed", &token, LONG).await;
        assert_eq!(granted.status, 201, "{granted:?}");
        assert!(granted.number("fencing_token") > last, "{granted:?} after {last}");
        last = granted.number("fencing_token");
        redis.run::<()>("FLUSHALL");
        assert_eq!(refresh(&http, "flushed", &token).await.told(), lost());
        assert_eq!(release(&http, "flushed", &token).await.told(), lost());
        assert_eq!(redis.run::<u64>("EXISTS lock:flushed"), 0, "the lock was created anew");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_number_that_another_program_wrote_into_a_record_stops_its_key_alone() {
    const TOKEN: &str = "token-of-the-damaged";
    let redis = Redis::start();
    let service = service(&redis, &[]).await;
    let http = service.http();
    assert_eq!(acquire(&http, "damaged", TOKEN, LONG).await.status, 201);
    let records: Vec<String> = redis.run("KEYS lk//*lock:damaged");
    assert_eq!(records.len(), 1, "{records:?}");
    // 2^53 - 1 as a number of eight bytes, behind the first one.
    let damage = format!("BITFIELD {} SET u32 8 1128267775 SET u32 40 4294967295", records[0]);
    redis.run::<Vec<u64>>(&damage);
    assert_eq!(acquire(&http, "damaged", TOKEN, LONG).await.told(), unavailable());
    assert_eq!(refresh(&http, "damaged", TOKEN).await.told(), unavailable());
    for key in ["one", "two"] {
        let granted = http.post(&format!("/locks/{key}"), "").await;
        assert_eq!(granted.status, 201, "{granted:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn scripts_that_are_flushed_under_load_cost_no_request() {
    let redis = Redis::start();
    let service = service(&redis, &[]).await;
    let contest = Contest::begin(&service.http());
    for _ in 0..100 {
        contest.goes_on(5).await;
        redis.run::<()>("SCRIPT FLUSH");
    }
    let tally = contest.finish().await;
    assert_eq!(tally.unavailable, 0, "{tally:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_without_memory_refuses_new_leases_and_keeps_serving_the_old() {
    let redis = Redis::start();
    let service = service(&redis, &[]).await;
    let http = service.http();
    for (key, token) in [("old/1", "token-of-the-first-one"), ("old/2", "token-of-the-second")] {
        assert_eq!(acquire(&http, key, token, LONG).await.status, 201);
    }
    redis.run::<()>("CONFIG SET maxmemory-policy noeviction");
    redis.run::<()>("CONFIG SET maxmemory 1");
    for _ in 0..5 {
        let refused = acquire(&http, "new", "token-of-the-new-one", LONG).await;
        assert_eq!(refused.told(), unavailable());
        // An earlier call with a client's token may have got a lease.
        assert_eq!(refused.text("outcome"), "unknown", "{refused:?}");
        let refused = http.post("/locks/new", "").await;
        assert_eq!(refused.text("outcome"), "not_acquired", "{refused:?}");
        assert_eq!(refused.text("detail"), "Redis has no memory: nothing was acquired");
        let again = acquire(&http, "old/1", "token-of-the-first-one", LONG).await;
        assert!(again.status == 200 || again.text("outcome") == "unknown", "{again:?}");
    }
    assert_eq!(redis.run::<u64>("EXISTS lock:new"), 0);
    let refreshed = refresh(&http, "old/1", "token-of-the-first-one").await;
    assert_eq!(refreshed.status, 200, "{refreshed:?}");
    assert_eq!(look(&http, "old/1").await.field("held"), true);
    assert_eq!(release(&http, "old/1", "token-of-the-first-one").await.status, 204);
    assert_eq!(http.delete("/admin/locks/old/2").await.status, 200);
    redis.run::<()>("CONFIG SET maxmemory 0");
    assert_eq!(acquire(&http, "new", "token-of-the-new-one", LONG).await.status, 201);
    assert_eq!(acquire(&http, "old/1", "token-of-the-new-one", LONG).await.status, 201);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_released_key_keeps_its_fencing_number() {
    let stage = Stage::redis().await;
    let (store, redis) = (&stage.store, stage.server().unwrap());
    let left = |mark: u8, number: u64| {
        let all = line::names(redis);
        let record = all.iter().find(|name| name.ends_with("}lock:a")).unwrap();
        let known: Vec<u8> = redis.run_words(&["GET", record]);
        assert_eq!(known[0], mark, "{known:?}");
        assert_eq!(known[1..9], (number as f64).to_be_bytes(), "{known:?}");
        assert!(redis.run_words::<i64>(&["PTTL", record]) > 23 * 60 * 60 * 1_000);
    };
    let mut numbers = Vec::new();
    for way in ["release", "force", "away", "no-room"] {
        let lease = stage.granted(&line::long(way)).await;
        numbers.push(lease.fencing_token.number());
        if way == "away" {
            waits(store, &line::long("gone")).await;
            store.leave(&key("a"), &[(token("gone"), Keep::Place)]).await.unwrap();
        }
        if way == "no-room" {
            redis.run::<()>("CONFIG SET maxmemory 1");
        }
        match way {
            "force" => drop(store.force_release(&key("a"), None).await.unwrap()),
            _ => _ = line::release(store, way).await,
        }
        left(u8::from(way == "away"), lease.fencing_token.number());
        store.end(&Target::of(&key("a"), &token("gone"), None)).await.unwrap();
    }
    assert!(numbers.is_sorted_by(|one, next| one < next), "{numbers:?}");
}
