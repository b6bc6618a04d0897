//! A lease that is lost while its stream is read: told when it is so, and not before.

use std::time::{Duration, Instant};

use crate::hold::{Listener, OTHER, SOON, TOKEN, counts, freed, is_held, stays_held};
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
async fn of_two_streams_that_begin_at_once_under_one_token_one_goes_on() {
    const ROUNDS: usize = 8;
    for stage in Stage::each().await {
        let http = stage.http(0);
        for round in 0..ROUNDS {
            let target = format!("twins/{round}?ttl=3s");
            let (one, two) =
                tokio::join!(Listener::open(&http, &target), Listener::open(&http, &target));
            let mut went_on = 0;
            for mut stream in [one, two] {
                let mut event = stream.next().await.unwrap();
                if event["event"] == "acquired" {
                    event = stream.next().await.unwrap();
                }
                went_on += usize::from(event["event"] == "alive");
            }
            assert_eq!(went_on, 1, "round {round}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_newest_stream_cares_for_the_lease() {
    for stage in Stage::each().await {
        let http = stage.http(0);
        let mut older = Listener::open(&http, "newest?ttl=1800ms").await;
        older.hears("acquired").await;
        let mut newer = Listener::open(&http, "newest?ttl=1800ms").await;
        newer.hears("acquired").await;
        older.loses("taken_over").await;
        drop(older);
        for _ in 0..4 {
            newer.hears("alive").await;
        }
        drop(newer);
        assert!(freed(&http, "newest").await < SOON);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_told_that_its_token_has_another_share_by_now() {
    for stage in [Stage::embedded().await, Stage::redis(1).await] {
        let http = stage.http(0);
        for (first, second) in
            [("shared=true", "slots=1"), ("shared=true", "slots=5"), ("slots=5", "slots=1")]
        {
            let mut listener = Listener::open(&http, &format!("share?{first}")).await;
            let number = listener.hears("acquired").await["fencing_token"].clone();
            let mine = http.token(TOKEN);
            let path = format!("/locks/share?{second}&fencing_token={number}");
            assert_eq!(mine.post(&path, "").await.status, 201);
            listener.loses("taken_over").await;
            drop(listener);
            assert_eq!(mine.put("/locks/share/refresh", "").await.status, 200);
            assert_eq!(mine.delete("/locks/share").await.status, 204);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_that_wait_under_one_token_the_newer_goes_on() {
    for stage in Stage::each().await {
        let http = stage.http(0);
        let mut holder = Listener::open_as(&http, "ghost", OTHER).await;
        holder.hears("acquired").await;
        let mut ghost = Listener::open(&http, "ghost?wait=forever").await;
        ghost.hears("waiting").await;
        let mut retry = Listener::open(&http, "ghost?wait=forever&ttl=1800ms").await;
        retry.hears("waiting").await;
        ghost.loses("taken_over").await;
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
async fn the_end_of_a_stream_leaves_the_lease_to_another_request_of_its_token() {
    for stage in Stage::each().await {
        let http = stage.http(0);
        let mut holder = Listener::open_as(&http, "shared", OTHER).await;
        holder.hears("acquired").await;
        let mut listener = Listener::open(&http, "shared?wait=forever").await;
        listener.hears("waiting").await;
        let mut waiting = tokio::task::JoinSet::new();
        let asked = http.token(TOKEN);
        waiting.spawn(async move { asked.post("/locks/shared?wait=10s", "").await });
        counts(&http, "lockkeeper_waiters 2").await;
        drop(holder);
        listener.hears_after_all("acquired").await;
        let told = waiting.join_next().await.unwrap().unwrap();
        assert!([200, 201].contains(&told.status), "{told:?}");
        drop(listener);
        assert!(stays_held(&http, "shared").await, "it is the other request's by now");
        assert_eq!(http.token(TOKEN).delete("/locks/shared").await.status, 204);
    }
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
    listener.hears("acquired").await;
    let mut newer = Listener::open(&there, target).await;
    newer.hears("acquired").await;
    listener.loses("taken_over").await;
    for _ in 0..4 {
        newer.hears("alive").await;
    }
    assert_eq!(here.token(TOKEN).post("/locks/elsewhere?ttl=1m", "").await.status, 200);
    newer.loses("taken_over").await;
    assert!(stays_held(&here, "elsewhere").await);
}

/// Both streams waited, each at its instance.
#[tokio::test(flavor = "multi_thread")]
async fn the_newest_stream_ends_the_lease_also_if_it_got_it_in_line() {
    let stage = Stage::redis(2).await;
    let (here, there) = (stage.http(0), stage.http(1));
    assert_eq!(here.token(OTHER).post("/locks/line", "").await.status, 201);
    let mut streams = Vec::new();
    for http in [&here, &there] {
        let mut stream = Listener::open(http, "line?ttl=1h&wait=forever").await;
        stream.hears("waiting").await;
        streams.push(stream);
    }
    assert_eq!(here.token(OTHER).delete("/locks/line").await.status, 204);
    for stream in &mut streams {
        stream.hears_after_all("acquired").await;
    }
    // One of them has taken the lease over from the other.
    drop(streams);
    freed(&here, "line").await;
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
    let stage = Stage::redis(1).await;
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
