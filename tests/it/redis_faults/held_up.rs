//! Calls that are held up on their way, while their callers go on.

use crate::hold::Listener;
use crate::redis_faults::{
    LONG, PATIENCE, acquire, calls_of, held, look, refresh, service, unavailable,
};
use crate::support::wire::Wire;
use crate::support::{Redis, Service, eventually};

const TOKEN: &str = "token-of-the-client";

/// More than any heartbeat.
const A_SCRIPT: usize = 100;

/// An instance on a Redis at the end of a wire.
async fn by_wire(redis: &Redis) -> (Wire, Service) {
    let wire = Wire::to(redis.port()).await;
    let url = format!("redis://127.0.0.1:{}", wire.port());
    let service = Service::start(&[("LOCKKEEPER_STORE", &url)], "").await;
    eventually(PATIENCE, async || {
        (service.http().post("/locks/served", "").await.status == 201).then_some(())
    })
    .await;
    (wire, service)
}

/// Cuts the wire, and waits until a call is held up there.
async fn held_up(wire: &Wire) {
    eventually(PATIENCE, async || (wire.kept() > A_SCRIPT).then_some(())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_whose_connection_broke_does_nothing_after_its_answer() {
    let redis = Redis::start();
    let (wire, service) = by_wire(&redis).await;
    let http = service.http();
    for round in 0..4 {
        let key = format!("late/{round}");
        wire.cut();
        let broken = async {
            held_up(&wire).await;
            wire.hang_up();
        };
        let (answer, ()) = tokio::join!(acquire(&http, &key, TOKEN, LONG), broken);
        assert_eq!(
            (answer.told(), &*answer.text("outcome")),
            (unavailable(), "unknown"),
            "round {round}: {answer:?}"
        );
        let before = calls_of(&redis, "evalsha");
        wire.mend();
        eventually(PATIENCE, async || (calls_of(&redis, "evalsha") > before).then_some(())).await;
        let held = eventually(PATIENCE, async || {
            let seen = look(&http, &key).await;
            (seen.status == 200).then(|| seen.field("held").clone())
        });
        assert_eq!(held.await, false, "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_streams_refresh_on_its_way_hides_no_refresh_by_its_client() {
    let redis = Redis::start();
    let (wire, near) = by_wire(&redis).await;
    let far = service(&redis, &[]).await;
    let mut stream = Listener::open(&near.http(), "k?ttl=1500ms").await;
    let grant = stream.hears("acquired").await;
    wire.cut();
    held_up(&wire).await;
    let long = format!("/locks/k/refresh?ttl={}s", LONG.as_secs());
    let http = far.http();
    let refreshed = http.token(grant["token"].as_str().unwrap()).put(&long, "").await;
    assert_eq!(refreshed.status, 200, "{refreshed:?}");
    let before = calls_of(&redis, "evalsha");
    drop(stream);
    wire.mend();
    // The refresh of the stream, and its last word.
    eventually(PATIENCE, async || (calls_of(&redis, "evalsha") > before + 1).then_some(())).await;
    assert_eq!(acquire(&http, "k", TOKEN, LONG).await.told(), held());
    // The stream's own TTL may be the newest one.
    assert_eq!(refresh(&http, "k", grant["token"].as_str().unwrap()).await.status, 200);
}
