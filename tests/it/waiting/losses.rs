//! Redis loses its data, goes away, or has no room, while somebody waits.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::support::{Http, Redis};
use crate::waiting::{
    HOLDER, PATIENCE, Stage, TOKEN, answer, granted, hold, release, start, until_waiters, wait,
    wait_as,
};

/// Who believes to hold the key, and how often it was granted.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<(Option<usize>, usize)>>);

impl Seen {
    fn won(&self, number: usize) {
        let mut seen = self.0.lock().unwrap();
        assert_eq!(seen.0.replace(number), None, "the key has two holders");
        seen.1 += 1;
    }

    fn gives_up(&self) {
        self.0.lock().unwrap().0 = None;
    }

    fn grants(&self) -> usize {
        self.0.lock().unwrap().1
    }
}

/// Waits once, for at most `patience`; releases at once what it is granted.
async fn once(http: Http, number: usize, wait: Duration, seen: Seen) -> u16 {
    let began = Instant::now();
    let path = format!("/locks/loss?wait={}ms&ttl=10m", wait.as_millis());
    let answer = tokio::time::timeout(PATIENCE, http.post(&path, "")).await.unwrap();
    assert!(began.elapsed() < wait + Duration::from_secs(4), "{:?}", began.elapsed());
    if answer.status == 201 {
        seen.won(number);
        seen.gives_up();
        release(&http, "loss", &answer.text("token")).await;
    }
    answer.status
}

#[tokio::test(flavor = "multi_thread")]
async fn everybody_is_served_although_the_data_is_lost_again_and_again() {
    const WAITERS: usize = 150;
    let stage = Stage::redis(2).await;
    hold(&stage.http(0), "loss").await;
    let (seen, mut waiting) = (Seen::default(), JoinSet::new());
    for number in 0..WAITERS {
        let wait = Duration::from_secs(25);
        waiting.spawn(once(stage.http(number), number, wait, seen.clone()));
    }
    until_waiters(&stage.http(0), "loss", WAITERS as u64).await;
    stage.redis_server().run::<()>("FLUSHALL");
    let mut last = 0;
    while let Some(status) = waiting.join_next().await {
        assert_eq!(status.unwrap(), 201);
        // A lease is lost with the data, so nobody may hold the key just then: a flush between
        // a grant and its release is no second holder only because the holder gives up first.
        if seen.grants() >= last + 40 && seen.grants() < WAITERS {
            last = seen.grants();
            stage.redis_server().run::<()>("FLUSHALL");
        }
    }
    assert_eq!(seen.grants(), WAITERS);
}

#[tokio::test(flavor = "multi_thread")]
async fn newcomers_after_a_loss_of_the_data_push_nobody_out() {
    let stage = Stage::redis(1).await;
    let http = stage.http(0);
    hold(&http, "loss").await;
    let (seen, mut waiting) = (Seen::default(), JoinSet::new());
    for number in 0..20 {
        waiting.spawn(once(http.clone(), number, Duration::from_secs(25), seen.clone()));
        until_waiters(&http, "loss", number as u64 + 1).await;
    }
    // The key itself stays held, so that newcomers are given the first numbers anew.
    let redis = stage.redis_server();
    for key in redis.run::<Vec<String>>("KEYS lk//*") {
        redis.run_words::<u64>(&["DEL", &key]);
    }
    for number in 20..40 {
        waiting.spawn(once(http.clone(), number, Duration::from_secs(25), seen.clone()));
    }
    until_waiters(&http, "loss", 40).await;
    release(&http, "loss", HOLDER).await;
    let began = Instant::now();
    assert!(waiting.join_all().await.iter().all(|status| *status == 201));
    assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn waits_outlast_a_redis_that_comes_back_or_end_in_time() {
    let safe: &[&str] = &["--save", "", "--appendonly", "yes", "--appendfsync", "always"];
    for (keeps, arguments) in [(true, safe), (false, &["--save", "", "--appendonly", "no"])] {
        let mut redis = Redis::start_with(arguments);
        let services = [start(&redis.url(), &[]).await, start(&redis.url(), &[]).await];
        let (seen, mut waiting) = (Seen::default(), JoinSet::new());
        hold(&services[0].http(), "loss").await;
        for number in 0..30 {
            let wait = Duration::from_secs(if number % 3 == 0 { 3 } else { 12 });
            waiting.spawn(once(services[number % 2].http(), number, wait, seen.clone()));
            until_waiters(&services[0].http(), "loss", number as u64 + 1).await;
        }
        for _ in 0..3 {
            redis.kill();
            redis.restart();
        }
        if keeps {
            let http = services[1].http().token(HOLDER);
            let refreshed = http.put("/locks/loss/refresh", "").await;
            assert_ne!(refreshed.status, 409, "the lease is lost");
            release(&services[1].http(), "loss", HOLDER).await;
        }
        let statuses = waiting.join_all().await;
        assert!(statuses.iter().all(|status| [201, 409, 503].contains(status)), "{statuses:?}");
        let served = statuses.iter().filter(|status| **status == 201).count();
        assert!(served >= 20, "{statuses:?}");
        eprintln!("Redis killed 3 times (keeps its data: {keeps}): {served} of 30 served");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_without_memory_serves_those_who_wait_and_refuses_others() {
    let stage = Stage::redis(2).await;
    let (http, redis) = (stage.http(0), stage.redis_server());
    hold(&http, "full").await;
    let mut waiting = Vec::new();
    for number in 0..6 {
        waiting.push(wait(&stage.http(number), "full", "25s"));
        until_waiters(&http, "full", number as u64 + 1).await;
    }
    let gives_up = wait_as(&http, "full", TOKEN, "25s");
    until_waiters(&http, "full", 7).await;
    redis.run::<()>("CONFIG SET maxmemory-policy noeviction");
    redis.run::<()>("CONFIG SET maxmemory 1");
    let released = stage.http(1).token(TOKEN).delete("/locks/full").await;
    assert_eq!(released.status, 204, "{released:?}");
    assert_eq!(answer(gives_up).await.told(), (409, "wait_cancelled".to_owned()));
    let refused = http.post("/locks/full?wait=5s", "").await;
    assert_eq!(refused.told(), (503, "store_unavailable".to_owned()));
    assert_eq!(refused.text("outcome"), "not_acquired");
    let (mut token, mut named) = (HOLDER.to_owned(), 0);
    for (number, next) in waiting.into_iter().enumerate() {
        let refreshed = http.token(&token).put("/locks/full/refresh", "").await;
        assert_eq!(refreshed.status, 200, "{number}: {refreshed:?}");
        // A lease that runs out is handed on as well.
        if number == 3 {
            let shorter = format!("/locks/full?ttl=300ms&fencing_token={named}");
            assert_eq!(http.token(&token).post(&shorter, "").await.status, 201);
        } else {
            assert_eq!(http.token(&token).delete("/locks/full").await.status, 204);
        }
        let grant = granted(next).await;
        (token, named) = (grant.text("token"), grant.number("fencing_token"));
    }
    assert_eq!(http.token(&token).delete("/locks/full").await.status, 204);
}
