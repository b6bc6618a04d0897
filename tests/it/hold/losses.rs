//! A lease that is lost while its stream is read: told when it is so, and not before.

use std::time::{Duration, Instant};

use crate::hold::{Listener, OTHER, SOON, TOKEN, freed, is_held, stays_held};
use crate::waiting::Stage;

#[tokio::test(flavor = "multi_thread")]
async fn a_release_and_a_forced_one_are_told_at_once() {
    for stage in Stage::each().await {
        let http = stage.http(0);
        for (path, reason, status) in
            [("/locks/lost", "released", 204), ("/admin/locks/lost", "forced", 200)]
        {
            let mut listener = Listener::open(&http, "lost").await;
            listener.hears("acquired").await;
            let mut waits = Listener::open_as(&http, "lost?wait=forever", OTHER).await;
            waits.hears("waiting").await;
            let began = Instant::now();
            let deleter = if reason == "forced" { http.clone() } else { http.token(TOKEN) };
            let deleted = deleter.delete(path).await;
            assert_eq!(deleted.status, status, "{deleted:?}");
            listener.loses(reason).await;
            assert!(began.elapsed() < SOON);
            waits.hears_after_all("acquired").await;
            drop(listener);
            assert!(stays_held(&http, "lost").await, "the next has lost it too");
            drop(waits);
            freed(&http, "lost").await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forced_release_ends_no_stream_that_came_after_it() {
    const ROUNDS: usize = 150;
    for stage in Stage::each().await {
        let http = stage.http(0);
        for round in 0..ROUNDS {
            let key = format!("forced/{round}");
            let mut holder = Listener::open(&http, &key).await;
            holder.hears("acquired").await;
            let mut next = Listener::open_as(&http, &format!("{key}?wait=9s"), OTHER).await;
            next.hears("waiting").await;
            assert_eq!(http.delete(&format!("/admin/locks/{key}")).await.status, 200);
            holder.loses("forced").await;
            next.hears_after_all("acquired").await;
            let told = tokio::time::timeout(Duration::from_millis(2), next.next()).await;
            assert!(told.is_err(), "round {round}: {told:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rule_5_a_stream_takes_no_lease_over_from_another_of_its_token() {
    for stage in Stage::each().await {
        let http = stage.http(0);
        let mine = http.token(TOKEN);
        for round in 0..8 {
            let target = format!("twins/{round}?ttl=3s");
            let mut first = Listener::open(&http, &target).await;
            let number = first.hears("acquired").await["fencing_token"].as_u64().unwrap();
            for path in [format!("/hold/{target}&wait=forever"), format!("/locks/{target}")] {
                let refused = mine.post(&path, "").await;
                assert_eq!(refused.told(), (409, "lock_held".into()), "{refused:?}");
                assert_eq!(
                    (refused.field("mine"), refused.number("fencing_token")),
                    (true.into(), number)
                );
            }
            first.hears("alive").await;
            drop(first);
            assert!(freed(&http, &format!("twins/{round}")).await < SOON);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rule_6_a_stream_is_told_that_its_lease_is_replaced() {
    for stage in [Stage::embedded().await, Stage::redis(1).await] {
        let http = stage.http(0);
        for (first, second) in [
            ("", ""),
            ("shared=true", "slots=1"),
            ("shared=true", "slots=5"),
            ("slots=5", "slots=1"),
        ] {
            let mut listener = Listener::open(&http, &format!("share?{first}")).await;
            let number = listener.hears("acquired").await["fencing_token"].clone();
            let mine = http.token(TOKEN);
            let path = format!("/locks/share?{second}&fencing_token={number}");
            assert_eq!(mine.post(&path, "").await.status, 201);
            listener.loses("replaced").await;
            drop(listener);
            assert_eq!(mine.put("/locks/share/refresh", "").await.status, 200);
            assert_eq!(mine.delete("/locks/share").await.status, 204);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rule_9_of_two_that_wait_under_one_token_the_newer_goes_on() {
    for stage in Stage::each().await {
        let http = stage.http(0);
        let mut holder = Listener::open_as(&http, "ghost", OTHER).await;
        holder.hears("acquired").await;
        let mut ghost = Listener::open(&http, "ghost?wait=forever").await;
        ghost.hears("waiting").await;
        let mut retry = Listener::open(&http, "ghost?wait=forever&ttl=1800ms").await;
        retry.hears("waiting").await;
        assert_eq!(ghost.hears_after_all("failed").await["code"], "superseded");
        drop((holder, ghost));
        retry.hears_after_all("acquired").await;
        for _ in 0..4 {
            retry.hears("alive").await;
        }
        drop(retry);
        assert!(freed(&http, "ghost").await < SOON);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rule_9_a_request_on_another_instance_supersedes_one_that_waits() {
    let stage = Stage::redis(2).await;
    let (here, there) = (stage.http(0), stage.http(1));
    assert_eq!(here.token(OTHER).post("/locks/line", "").await.status, 201);
    let mut older = Listener::open(&here, "line?ttl=1h&wait=forever").await;
    older.hears("waiting").await;
    let mut newer = Listener::open(&there, "line?ttl=1h&wait=forever").await;
    newer.hears("waiting").await;
    let began = Instant::now();
    assert_eq!(older.hears_after_all("failed").await["code"], "superseded");
    assert!(began.elapsed() < SOON, "by the hint, not by its next question");
    assert_eq!(here.token(OTHER).delete("/locks/line").await.status, 204);
    newer.hears_after_all("acquired").await;
    drop((older, newer));
    assert!(freed(&here, "line").await < SOON);
}

#[tokio::test(flavor = "multi_thread")]
async fn rule_14_a_release_on_another_instance_cancels_a_wait() {
    let stage = Stage::redis(2).await;
    let (here, there) = (stage.http(0), stage.http(1).token(TOKEN));
    assert_eq!(here.token(OTHER).post("/locks/line", "").await.status, 201);
    let mut waits = Listener::open(&here, "line?wait=forever").await;
    waits.hears("waiting").await;
    assert_eq!(there.delete("/locks/line").await.status, 204);
    assert_eq!(waits.hears_after_all("failed").await["code"], "wait_cancelled");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_act_of_another_instance_is_told_at_the_next_beat() {
    let stage = Stage::redis(2).await;
    let (here, there) = (stage.http(0), stage.http(1).token(TOKEN));
    let target = "elsewhere?ttl=1800ms";
    let mut listener = Listener::open(&here, target).await;
    listener.hears("acquired").await;
    assert_eq!(there.delete("/locks/elsewhere").await.status, 204);
    listener.loses("released").await;

    let mut listener = Listener::open(&here, target).await;
    let number = listener.hears("acquired").await["fencing_token"].clone();
    let mut newer = Listener::open(&there, &format!("{target}&fencing_token={number}")).await;
    let number = newer.hears("acquired").await["fencing_token"].clone();
    listener.loses("replaced").await;
    for _ in 0..4 {
        newer.hears("alive").await;
    }
    let path = format!("/locks/elsewhere?ttl=1m&fencing_token={number}");
    assert_eq!(here.token(TOKEN).post(&path, "").await.status, 201);
    newer.loses("replaced").await;
    assert!(stays_held(&here, "elsewhere").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_has_forgotten_the_lease_is_told_at_the_next_beat() {
    let stage = Stage::redis(1).await;
    let http = stage.http(0);
    let mut listener = Listener::open(&http, "forgotten?ttl=1800ms").await;
    listener.hears("acquired").await;
    listener.hears("alive").await;
    let () = stage.redis_server().run("FLUSHALL");
    let began = Instant::now();
    listener.loses("released").await;
    assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_goes_on_through_an_outage_that_is_shorter_than_its_ttl() {
    let stage = Stage::redis(1).await;
    let http = stage.http(0);
    let mut listener = Listener::open(&http, "outage?ttl=6s").await;
    listener.hears("acquired").await;
    stage.redis_server().pause();
    let left = listener.hears("alive").await["ttl_ms"].as_u64().unwrap();
    assert!(left < 4_500, "refreshed by nobody: {left}");
    stage.redis_server().resume();
    while listener.hears("alive").await["ttl_ms"].as_u64().unwrap() < 5_000 {}
    assert!(is_held(&http, "outage").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_lost_when_the_outage_has_outlasted_it_and_not_before() {
    // However long the service waits for an answer.
    let stage = Stage::redis_with(1, &[("LOCKKEEPER_REDIS_COMMAND_TIMEOUT", "10s")]).await;
    let http = stage.http(0);
    let began = Instant::now();
    let mut listener = Listener::open(&http, "outlasted?ttl=2s").await;
    listener.hears("acquired").await;
    stage.redis_server().pause();
    listener.loses("expired").await;
    let took = began.elapsed();
    stage.redis_server().resume();
    assert!((Duration::from_secs(2)..Duration::from_secs(4)).contains(&took), "{took:?}");
    freed(&http, "outlasted").await;
}
