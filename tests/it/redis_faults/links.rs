//! Connections that are broken without a word, and answers that prove less than they seem to.

use std::time::Duration;

use lockkeeper::lock::store::Keep;
use tokio::task::JoinSet;

use crate::conformance::line::waits;
use crate::conformance::{Stage, claim, key, token};
use crate::redis_faults::held_up::{by, held_up};
use crate::redis_faults::{
    LONG, PATIENCE, acquire, calls_of, look, preloaded, refresh, service, unavailable,
};
use crate::support::wire::Wire;
use crate::support::{Http, Process, Redis, Service, eventually};

const TOKEN: &str = "token-of-the-client";

/// So many that each shared connection serves some.
const KEYS: usize = 16;

/// Done when all keys can be had; `round` keeps them apart from earlier ones.
async fn all_are_served(http: &Http, round: &str) {
    for number in 0..KEYS {
        let key = format!("{round}/{number}");
        eventually(PATIENCE, async || {
            [200, 201].contains(&acquire(http, &key, TOKEN, LONG).await.status).then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_connection_on_which_a_write_failed_is_made_anew() {
    let redis = Redis::start();
    let directory = tempfile::tempdir().unwrap();
    let (library, file) = (preloaded("fail", &directory), directory.path().join("fail"));
    let (library, name) = (library.display().to_string(), file.display().to_string());
    let port = redis.port().to_string();
    let variables = [
        ("LD_PRELOAD", library.as_str()),
        ("FAIL_FILE", name.as_str()),
        ("FAIL_PORT", port.as_str()),
    ];
    let service = Process::start(&redis.url(), &variables);
    let http = service.http();
    // Once for each of the two connections, most likely.
    for round in ["first", "second", "third", "fourth"] {
        all_are_served(&http, &format!("before/{round}")).await;
        std::fs::write(&file, "").unwrap();
        eventually(PATIENCE, async || {
            let answer = acquire(&http, "meanwhile", TOKEN, LONG).await;
            assert!([200, 201, 503].contains(&answer.status), "{answer:?}");
            (!file.exists()).then_some(())
        })
        .await;
        all_are_served(&http, &format!("after/{round}")).await;
    }
    assert!(service.log().contains("connection unusable; reconnecting"), "{}", service.log());
}

#[tokio::test(flavor = "multi_thread")]
async fn hints_that_still_come_do_not_hide_that_nothing_is_sent_any_more() {
    let redis = Redis::start();
    let wire = Wire::to(redis.port()).await;
    let store = format!("redis://127.0.0.1:{}", wire.port());
    let service = Service::start(&[("LOCKKEEPER_STORE", &store)], "").await;
    let http = service.http();
    all_are_served(&http, "before").await;
    let channels: Vec<String> = redis.run("PUBSUB CHANNELS lk//*");
    let mut hints = JoinSet::new();
    hints.spawn(async move {
        let mut times = tokio::time::interval(Duration::from_millis(200));
        loop {
            times.tick().await;
            redis.run::<i64>(&format!("PUBLISH {} lock:nobody", channels[0]));
        }
    });
    eventually(PATIENCE, async || {
        wire.deafen();
        // The service may have noticed already.
        let answer = acquire(&http, "between", TOKEN, LONG).await;
        (answer.told() == unavailable()).then_some(())
    })
    .await;
    all_are_served(&http, "after").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_departure_that_arrives_late_touches_no_claim_that_is_back() {
    type Call = (i64, i64, i64, Vec<String>, String, String);
    let stage = Stage::redis().await;
    let (store, redis) = (&stage.store, stage.server().unwrap());
    stage.granted(&claim("a", "holder", 600_000)).await;
    let one = claim("a", "one", 600_000);
    for keep in [Keep::Place, Keep::Nothing] {
        waits(store, &one).await;
        let gone = [(token("one"), keep)];
        store.leave(&key("a"), &gone).await.unwrap(); // Redis has the script.
        redis.run::<()>("CONFIG SET slowlog-log-slower-than 0");
        redis.run::<()>("SLOWLOG RESET");
        store.leave(&key("a"), &gone).await.unwrap();
        let calls: Vec<Call> = redis.run("SLOWLOG GET -1");
        let mut calls = calls.into_iter().map(|call| call.3);
        let mut call = calls.find(|words| words[0] == "EVALSHA").unwrap();
        waits(store, &one).await;
        // On a connection that was replaced meanwhile, its deadline over.
        let not_after = &mut call[3 + 7];
        let over = (redis.run::<(i64, i64)>("TIME").0 - 1) * 1_000;
        assert!(not_after.parse::<i64>().unwrap() > over, "{not_after}");
        *not_after = over.to_string();
        let words: Vec<_> = call.iter().map(String::as_str).collect();
        let (_, word) = redis.run_words::<(i64, String)>(&words);
        assert_eq!((&*word, store.look(&key("a"), None, 0).await.unwrap().waiters), ("late", 1));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn an_error_that_may_come_after_a_write_is_no_no() {
    let redis = Redis::start();
    redis.run::<()>("ACL SETUSER shop on >s3cret ~* &* +@all");
    let url = format!("redis://shop:s3cret@127.0.0.1:{}", redis.port());
    let service = Service::start(&[("LOCKKEEPER_STORE", &url)], "").await;
    let http = service.http();
    eventually(PATIENCE, async || {
        (acquire(&http, "held", TOKEN, LONG).await.status == 201).then_some(())
    })
    .await;
    // The script that grants a lease again has written before it uses this command.
    redis.run::<()>("ACL SETUSER shop -set");
    let again = acquire(&http, "held", TOKEN, LONG).await;
    assert_eq!((again.told(), &*again.text("outcome")), (unavailable(), "unknown"), "{again:?}");
    redis.run::<()>("ACL SETUSER shop +set");
    assert_eq!(refresh(&http, "held", TOKEN).await.status, 200);
    // Of this it is known that nothing was done.
    redis.run::<()>("CONFIG SET maxmemory 1");
    let full = http.post("/locks/full", "").await;
    assert_eq!((full.told(), &*full.text("outcome")), (unavailable(), "not_acquired"), "{full:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_may_evict_locks_from_now_on_is_noticed() {
    let redis = Redis::start();
    let service = service(&redis, &[]).await;
    let http = service.http();
    let figure = format!("lockkeeper_redis_evicts{{node=\"{}\"}} ", redis.address());
    let shown = async |value: &str| {
        eventually(PATIENCE, async || {
            let text = String::from_utf8(http.get("/metrics").await.body.to_vec()).unwrap();
            text.contains(&format!("{figure}{value}\n")).then_some(())
        })
        .await;
    };
    shown("0").await;
    redis.run::<()>("CONFIG SET maxmemory 100mb maxmemory-policy allkeys-lru");
    shown("1").await;
    redis.run::<()>("CONFIG SET maxmemory-policy noeviction");
    shown("0").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forced_release_whose_connection_broke_ends_no_lease_after_its_answer() {
    let redis = Redis::start();
    let (wire, service) = by(Wire::to(redis.port()).await, &[]).await;
    let beside = self::service(&redis, &[]).await;
    let (http, near) = (service.http(), beside.http());
    wire.cut();
    let broken = async {
        held_up(&wire).await;
        wire.hang_up();
    };
    let (forced, ()) = tokio::join!(http.delete("/admin/locks/forced"), broken);
    assert_eq!((forced.told(), &*forced.text("outcome")), (unavailable(), "unknown"));
    assert_eq!(acquire(&near, "forced", TOKEN, LONG).await.status, 201);
    let before = calls_of(&redis, "evalsha");
    wire.mend();
    eventually(PATIENCE, async || (calls_of(&redis, "evalsha") > before).then_some(())).await;
    assert_eq!(look(&near, "forced").await.field("held"), true);
}
