//! What applications on Redis directly leave under a lock's name.

use lockkeeper::lock::store::{Answer, Ask, Target};

use crate::conformance::{Stage, claim, key, token};
use crate::redis_faults::{LONG, acquire, held, look, lost, refresh, release, service};
use crate::support::{Http, Redis};

const TOKEN: &str = "token-of-the-service's-client";

#[tokio::test(flavor = "multi_thread")]
async fn a_value_of_another_type_is_held_by_somebody_else() {
    let redis = Redis::start();
    let service = service(&redis, &[]).await;
    let http = service.http();
    let token = &TOKEN.replace('\'', "-");
    for (key, write) in [
        ("hash", "HSET lock:hash 8743c9c0:1 1"),
        ("zset", "ZADD lock:zset 5 member"),
        ("list", "RPUSH lock:list one two"),
        ("set", "SADD lock:set one"),
        ("stream", "XADD lock:stream * field value"),
    ] {
        redis.run::<redis::Value>(write);
        redis.run::<()>(&format!("PEXPIRE lock:{key} 600000"));
        let refused = acquire(&http, key, token, LONG).await;
        assert_eq!(refused.told(), held(), "{key}: {refused:?}");
        assert!(refused.number("retry_after_ms") > 500_000, "{key}: {refused:?}");
        assert_eq!(refresh(&http, key, token).await.told(), lost(), "{key}");
        assert_eq!(release(&http, key, token).await.told(), lost(), "{key}");
        assert_eq!(redis.run::<u64>(&format!("EXISTS lock:{key}")), 1, "{key}");
        let found = look(&http.token(token), key).await;
        assert_eq!((found.field("held"), found.field("mine")), (true.into(), false.into()));
        assert!(found.field("fencing_token").is_null(), "{key}: {found:?}");
        forced(&http, key, token).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_without_an_end_is_held_with_no_time_to_tell() {
    let redis = Redis::start();
    let service = service(&redis, &[]).await;
    let http = service.http();
    let token = &TOKEN.replace('\'', "-");
    redis.run::<()>("SET lock:endless 1795170616");
    let refused = acquire(&http, "endless", token, LONG).await;
    assert_eq!(refused.told(), held());
    assert!(refused.field("retry_after_ms").is_null(), "{refused:?}");
    assert_eq!(refused.header("retry-after"), Some("1"));
    let found = look(&http, "endless").await;
    assert_eq!(found.field("held"), true);
    assert!(found.field("ttl_ms").is_null(), "{found:?}");
    assert!(refused.field("held_ms").is_null() && found.field("held_ms").is_null(), "{found:?}");
    forced(&http, "endless", token).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_never_shortens_what_an_application_locked_with_its_token() {
    let stage = Stage::redis().await;
    let (store, redis) = (&stage.store, stage.server().unwrap());
    for ask in [Ask::Once(None), Ask::InLine(None)] {
        redis.run_words::<()>(&["SET", "lock:a", token("one").expose(), "PX", "600000"]);
        let answer = store.ask(&claim("a", "one", 1_000), ask).await.unwrap();
        let Answer::Won(won) = answer else { panic!("{answer:?}") };
        assert!(!won.fresh && won.lease.ttl.as_millis() > 590_000, "{ask:?}: {won:?}");
        assert!(redis.run::<i64>("PTTL lock:a") > 590_000, "{ask:?}");
        store.end(&Target::of(&key("a"), &token("one"), None)).await.unwrap();
    }
}

/// The key can be taken away from whoever has it, and is free then.
async fn forced(http: &Http, key: &str, token: &str) {
    let path = format!("/admin/locks/{key}");
    assert_eq!(http.delete(&path).await.status, 200, "{key}");
    assert_eq!(http.delete(&path).await.told(), lost(), "{key}");
    assert_eq!(acquire(http, key, token, LONG).await.status, 201, "{key}");
}
