//! The clock of Redis steps.

use std::ops::Range;
use std::time::Duration;

use futures_util::future::join_all;
use lockkeeper::lock::time::wall_clock_micros;
use tempfile::TempDir;
use tokio::task::JoinSet;

use crate::redis_faults::contest::Contest;
use crate::redis_faults::{
    LONG, PATIENCE, acquire, is_left, look, preloaded, release, service, unavailable,
};
use crate::support::{Http, Process, Redis, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn a_step_of_the_clock_of_redis_leads_to_no_wrong_answer() {
    let clock = Clock::make();
    let redis = clock.redis();
    let service = service(&redis, &[]).await;
    let contest = Contest::begin(&service.http());
    // The leases of the contest are longer than all steps together.
    for seconds in [60, 0, -60, 0, 60, -60, 5, -5, 1, -1, 0] {
        contest.goes_on(50).await;
        clock.step(seconds);
        let shown = redis.run::<(i64, i64)>("TIME").0 - now();
        assert!((shown - seconds).abs() <= 2, "{shown} s ahead, not {seconds}");
    }
    contest.goes_on(50).await;
    let tally = contest.finish().await;
    eprintln!("11 steps: {} grants, {} times 503", tally.grants, tally.unavailable);
    assert!(tally.unavailable < 100, "{tally:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn fencing_tokens_rise_over_a_loss_of_data_and_a_step_back_at_once() {
    let clock = Clock::make();
    let redis = clock.redis();
    let service = service(&redis, &[]).await;
    let http = service.http();
    let mut last = 0;
    for (round, seconds) in [0, -60, -120, 60, -3600, 3600, 0].into_iter().enumerate() {
        clock.step(i64::from(seconds));
        redis.run::<()>("FLUSHALL");
        for time in 0..5 {
            let token = format!("token-of-the-round-{round}-{time}");
            let key = format!("stepped/{round}/{time}");
            let granted = acquire(&http, &key, &token, Duration::from_secs(1)).await;
            assert_eq!(granted.status, 201, "{granted:?}");
            assert!(granted.number("fencing_token") > last, "{granted:?} after {last}");
            last = granted.number("fencing_token");
        }
        let lead = lead(&http).await;
        assert!((lead - f64::from(seconds)).abs() < 2.0, "{lead} s ahead, not {seconds}");
    }
    // A clock that is far ahead is not believed: it would use up the protection.
    let micros = wall_clock_micros();
    assert!(last < micros + 10_000_000, "{last} is ahead of {micros}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_shares_with_fewer_after_a_step_back_is_granted_that() {
    let clock = Clock::make();
    let redis = clock.redis();
    let service = service(&redis, &[]).await;
    let http = service.http();
    for (round, (before, after)) in
        [("slots=5", "slots=2"), ("slots=2", "slots=1"), ("shared=true", "slots=3")]
            .into_iter()
            .enumerate()
    {
        let ask = async |asked: &str| {
            let body = r#"{"token":"token-of-a-client"}"#;
            http.post(&format!("/locks/stepped/{round}?{asked}"), body).await
        };
        let first = ask(before).await;
        assert_eq!(first.status, 201);
        clock.step(-2 * (1 + round as i64));
        // The instance hears of the step.
        assert_eq!(look(&http, "stepped").await.status, 200);
        let named = format!("{after}&fencing_token={}", first.field("fencing_token"));
        let answer = ask(&named).await;
        assert!(matches!(answer.status, 200 | 201), "{after}: {answer:?}");
        let slots = answer.field("slots").as_u64().unwrap_or(1);
        assert_eq!(format!("slots={slots}"), after, "{answer:?}");
    }
}

/// The end of its window is an hour away then.
#[tokio::test(flavor = "multi_thread")]
async fn a_dead_instance_is_handed_no_key_after_a_step_back() {
    let clock = Clock::make();
    let redis = clock.redis();
    let (dies, lives) = (Process::start(&redis.url(), &[]), service(&redis, &[]).await);
    let http = lives.http();
    assert_eq!(acquire(&http, "handed", "token-of-the-holder", LONG).await.status, 201);
    let until_waiters = async |count: u64| {
        let all_wait =
            async || (look(&http, "handed").await.number("waiters") == count).then_some(());
        eventually(PATIENCE, all_wait).await;
    };
    let (mut lost, mut next) = (JoinSet::new(), JoinSet::new());
    let doomed = dies.http();
    lost.spawn(async move { drop(doomed.try_send("POST", "/locks/handed?wait=60s", "").await) });
    until_waiters(1).await;
    dies.kill();
    clock.step(-3_600);
    let living = http.clone();
    next.spawn(async move { living.post("/locks/handed?wait=20s", "").await });
    until_waiters(1).await;
    release(&http, "handed", "token-of-the-holder").await;
    assert_eq!(next.join_all().await[0].status, 201);
    lost.join_all().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_instance_without_requests_knows_the_time_of_redis() {
    let clock = Clock::make();
    let redis = clock.redis();
    let service = service(&redis, &[]).await;
    let http = service.http();
    for seconds in [60, -60] {
        clock.step(seconds);
        let read = async || ((lead(&http).await - seconds as f64).abs() < 2.0).then_some(());
        eventually(PATIENCE, read).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_from_before_a_stop_of_the_machine_with_its_clocks_gives_no_old_number() {
    const STOPPED: u64 = 60;
    let clock = Clock::make();
    let redis = clock.redis();
    let service = clock.service(&redis.url());
    let http = service.http();
    let before = acquire(&http, "before", "token-of-before-it", Duration::from_secs(1)).await;
    assert_eq!(before.status, 201, "{before:?}");
    redis.pause();
    let meanwhile = async {
        eventually(PATIENCE, async || is_left(&redis).then_some(())).await;
        // The clock that deadlines go by has not moved.
        clock.step(STOPPED as i64);
        redis.resume();
    };
    let during = acquire(&http, "during", "token-of-during-it", Duration::from_secs(1));
    let (during, ()) = tokio::join!(during, meanwhile);
    assert_eq!(during.told(), unavailable(), "{during:?}");
    let after = acquire(&http, "during", "token-of-during-it", Duration::from_secs(1)).await;
    assert_eq!(after.status, 201, "{after:?}");
    let apart = after.number("fencing_token") - before.number("fencing_token");
    assert!(apart > (STOPPED - 1) * 1_000_000, "{after:?} after {before:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_day_after_its_last_lock_redis_has_what_it_had_before() {
    const KEYS: usize = 4_000;
    let clock = Clock::make();
    let redis = clock.redis();
    let service = service(&redis, &[]).await;
    let http = service.http();
    let a_day_later = async |day: i64| {
        clock.step(day * 26 * 3600);
        eventually(PATIENCE, async || (redis.run::<i64>("DBSIZE") == 0).then_some(())).await;
    };
    let memory = || {
        let info: String = redis.run("INFO memory");
        let used = info.lines().find_map(|line| line.strip_prefix("used_memory:")).unwrap();
        used.trim().parse::<i64>().unwrap()
    };
    // Once, so that Redis has the scripts.
    lock(&http, 0..256).await;
    a_day_later(1).await;
    let before = memory();
    lock(&http, 256..256 + KEYS).await;
    let (records, full) = (redis.run::<i64>("DBSIZE"), memory());
    assert!(records > KEYS as i64, "each key keeps its number: {records}");
    assert!(full - before > KEYS as i64 * 100, "{before} {full}");
    a_day_later(2).await;
    eventually(PATIENCE, async || (memory() - before < (full - before) / 4).then_some(())).await;
    eprintln!("{records} records, {} bytes; a day later {}", full - before, memory() - before);
}

/// The seconds by which the clock of Redis is ahead, as the instance has read it last.
async fn lead(http: &Http) -> f64 {
    let figures = http.get("/metrics").await.body;
    let figures = std::str::from_utf8(&figures).unwrap();
    let lead = figures.lines().find(|line| line.starts_with("lockkeeper_redis_clock_lead"));
    lead.unwrap().rsplit_once(' ').unwrap().1.parse().unwrap()
}

/// Has leases of all kinds come and go: released, expired, shared, and a few that were waited for.
async fn lock(http: &Http, numbers: Range<usize>) {
    const CLIENTS: usize = 16;
    let clients = (0..CLIENTS).map(async |client| {
        for number in numbers.clone().skip(client).step_by(CLIENTS) {
            let path = format!("/locks/day/{number}");
            let kind = ["?ttl=1m", "?ttl=1m&slots=5", "?ttl=1s"][number / CLIENTS % 3];
            let mut granted = http.post(&format!("{path}{kind}"), "").await;
            assert_eq!(granted.status, 201, "{granted:?}");
            if kind == "?ttl=1s" {
                if number % 64 > 0 {
                    continue;
                }
                granted = http.post(&format!("{path}?wait=20s"), "").await;
                assert_eq!(granted.status, 201, "{granted:?}");
            }
            let released = http.token(&granted.text("token")).delete(&path).await;
            assert_eq!(released.status, 204, "{released:?}");
        }
    });
    join_all(clients).await;
}

/// A clock that a process goes by.
pub(crate) struct Clock(TempDir);

impl Clock {
    pub(crate) fn make() -> Self {
        let directory = tempfile::tempdir().unwrap();
        preloaded("skew", &directory);
        let clock = Self(directory);
        clock.step(0);
        clock
    }

    pub(crate) fn redis(&self) -> Redis {
        let environment = self.environment();
        let environment = environment.each_ref().map(|(name, value)| (*name, value.as_str()));
        Redis::start_in(&environment, &["--save", "", "--appendonly", "no"])
    }

    /// A service that goes by it, on this store.
    pub(crate) fn service(&self, store: &str) -> Process {
        let environment = self.environment();
        Process::start(store, &environment.each_ref().map(|(name, value)| (*name, value.as_str())))
    }

    /// What makes a process go by it.
    pub(crate) fn environment(&self) -> [(&'static str, String); 2] {
        let path = |name| self.0.path().join(name).display().to_string();
        [("LD_PRELOAD", path("skew.so")), ("SKEW_FILE", path("ahead"))]
    }

    /// Sets the clock so many seconds ahead of the true one.
    fn step(&self, seconds: i64) {
        self.step_ms(seconds * 1_000);
    }

    /// Sets the clock so many milliseconds ahead of the true one.
    pub(crate) fn step_ms(&self, millis: i64) {
        use std::io::Write;
        let file = std::fs::OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(false)
            .open(self.0.path().join("ahead"));
        file.unwrap().write_all(&(millis * 1_000_000).to_ne_bytes()).unwrap();
    }
}

/// The true time in seconds.
fn now() -> i64 {
    i64::try_from(wall_clock_micros() / 1_000_000).unwrap()
}
