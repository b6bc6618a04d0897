//! Leases that begin while it is in doubt whether their client was refused meanwhile.

use std::time::Duration;

use tokio::join;

use crate::redis_faults::held_up::{OTHER, Pair, TOKEN, acquire_with, by, held_up};
use crate::redis_faults::{LONG, PATIENCE, acquire, look};
use crate::support::wire::Wire;
use crate::support::{Http, Redis, Service, eventually};

/// So far is Redis: a release a moment after a request may be before it, as its instance knows.
const FAR: Duration = Duration::from_millis(150);

/// Two instances, of which the first is far from Redis.
async fn pair(timeout: &str) -> Pair {
    let redis = Redis::start();
    let wire = Wire::long(redis.port(), FAR).await;
    Pair::by(redis, wire, timeout).await
}

/// Another instance that is far from Redis.
async fn another(pair: &Pair) -> (Wire, Service) {
    let wire = Wire::long(pair.redis.port(), FAR).await;
    by(wire, &[("LOCKKEEPER_REDIS_COMMAND_TIMEOUT", "10s")]).await
}

/// A request: its method, the rest of its path, and its body.
type Request<'a> = (&'a str, &'a str, &'a str);

/// Sends a request over a wire that was cut, whose client gives it up while it is on its way.
async fn given_up(wire: &Wire, http: &Http, key: &str, (method, path, body): Request<'_>) {
    let path = format!("/locks/{key}{path}");
    tokio::select! {
        biased;
        answer = http.send(method, &path, body) => panic!("{answer:?}"),
        () = held_up(wire) => (),
    }
}

/// The client has a lease, and releases it over the other instance.
async fn had(pair: &Pair, key: &str) {
    let far = pair.far.http();
    assert_eq!(acquire(&far, key, TOKEN, LONG).await.status, 201);
    assert_eq!(far.token(TOKEN).delete(&format!("/locks/{key}")).await.status, 204);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_that_were_given_up_are_granted_nothing_however_many_they_are() {
    let pair = pair("10s").await;
    let (wire, third) = another(&pair).await;
    let (near, third) = (pair.near.http(), third.http());
    let (alone, two, waits) =
        (acquire_with(""), acquire_with(r#","slots":2"#), acquire_with(r#","wait_ms":5000"#));
    let refresh = format!(r#"{{"token":"{TOKEN}"}}"#);
    for (round, (first, second)) in [
        (("POST", "", &*alone), ("POST", "", &*alone)),
        (("POST", "", &two), ("POST", "", &two)),
        (("POST", "", &two), ("POST", "", &alone)),
        (("POST", "", &alone), ("POST", "", &two)),
        (("POST", "", &waits), ("POST", "", &waits)),
        (("POST", "", &alone), ("PUT", "/refresh", &refresh)),
        (("POST", "", &two), ("PUT", "/refresh", &refresh)),
    ]
    .into_iter()
    .enumerate()
    {
        let key = format!("two/{round}");
        pair.wire.cut();
        wire.cut();
        given_up(&pair.wire, &near, &key, first).await;
        given_up(&wire, &third, &key, second).await;
        had(&pair, &key).await;
        pair.arrive(1).await;
        wire.mend();
        assert_eq!(look(&third, "served").await.status, 200);
        pair.is_free(&key).await;
    }
}

/// Sends a request that waits, whose client gives it up while its second call is on its way.
async fn joins(pair: &Pair, http: &Http, key: &str, body: &str) {
    let path = format!("/locks/{key}");
    let second = async {
        for passes in [true, false, true] {
            eventually(PATIENCE, async || ((pair.wire.kept() > 100) == passes).then_some(())).await;
        }
        pair.wire.cut();
        held_up(&pair.wire).await;
    };
    tokio::select! {
        biased;
        answer = http.post(&path, body) => panic!("{answer:?}"),
        () = second => (),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_was_given_up_as_it_joins_the_line_is_granted_nothing() {
    let pair = pair("10s").await;
    let (near, far) = (pair.near.http(), pair.far.http());
    for (round, kind) in ["", r#","slots":2"#].into_iter().enumerate() {
        for asks in [true, false] {
            let (key, path) =
                (format!("joins/{round}/{asks}"), format!("/locks/joins/{round}/{asks}"));
            assert_eq!(acquire(&far, &key, OTHER, LONG).await.status, 201);
            joins(&pair, &near, &key, &acquire_with(&format!(r#"{kind},"wait_ms":5000"#))).await;
            let refused = match asks {
                true => acquire(&far, &key, TOKEN, LONG).await,
                false => far.token(TOKEN).delete(&path).await,
            };
            assert_eq!(refused.status, 409, "{refused:?}");
            assert_eq!(far.token(OTHER).delete(&path).await.status, 204);
            pair.wire.mend();
            pair.has_heard_all().await;
            pair.is_free(&key).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_in_doubt_stays_for_a_request_whose_client_is_there() {
    let pair = pair("10s").await;
    let (wire, third) = another(&pair).await;
    let (near, third, far) = (pair.near.http(), third.http(), pair.far.http());
    for (round, kind) in ["", r#","slots":2"#].into_iter().enumerate() {
        let (key, body) = (format!("used/{round}"), acquire_with(kind));
        let path = format!("/locks/{key}");
        pair.wire.cut();
        wire.cut();
        given_up(&pair.wire, &near, &key, ("POST", "", &body)).await;
        let meanwhile = async {
            held_up(&wire).await;
            had(&pair, &key).await;
            pair.arrive(1).await;
            wire.mend();
        };
        let (granted, ()) = join!(third.post(&path, &body), meanwhile);
        assert!(matches!(granted.status, 200 | 201), "{granted:?}");
        pair.has_heard_all().await;
        let refreshed = far.token(TOKEN).put(&format!("{path}/refresh"), "").await;
        assert_eq!(refreshed.status, 200, "{refreshed:?}");
        assert_eq!(refreshed.field("fencing_token"), granted.field("fencing_token"));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_in_doubt_ends_also_if_the_answer_was_lost() {
    let pair = pair("2s").await;
    let near = pair.near.http();
    for round in 0..4 {
        let key = format!("lost/{round}");
        pair.wire.cut();
        given_up(&pair.wire, &near, &key, ("POST", "", &acquire_with(""))).await;
        pair.wire.hang_up();
        had(&pair, &key).await;
        pair.wire.mend();
        eventually(PATIENCE, async || (look(&near, &key).await.status == 200).then_some(())).await;
        pair.is_free(&key).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_was_given_up_makes_no_lease_narrower_that_was_renewed_since() {
    let pair = pair("10s").await;
    let (near, far) = (pair.near.http(), pair.far.http());
    for slots in [2, 3] {
        let (key, path) = (format!("narrow/{slots}"), format!("/locks/narrow/{slots}"));
        let granted = far.post(&path, &acquire_with(&format!(r#","slots":{slots}"#))).await;
        assert_eq!(granted.status, 201, "{granted:?}");
        pair.wire.cut();
        given_up(&pair.wire, &near, &key, ("POST", "", &acquire_with(r#","slots":1"#))).await;
        let refresh = async || far.token(TOKEN).put(&format!("{path}/refresh"), "").await;
        assert_eq!(refresh().await.status, 200);
        pair.wire.mend();
        pair.has_heard_all().await;
        let refreshed = refresh().await;
        assert_eq!(refreshed.field("fencing_token"), granted.field("fencing_token"));
        assert_eq!(refreshed.field("slots"), slots, "{refreshed:?}");
        // A client that is there is asked for again.
        let alone = near.post(&path, &acquire_with(r#","slots":1"#)).await;
        assert!(matches!(alone.status, 200 | 201), "{alone:?}");
        assert!(alone.field("fencing_token").as_u64() > granted.field("fencing_token").as_u64());
    }
}
