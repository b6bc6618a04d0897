//! Data from another time, and a wall clock that shows another one.

use std::fs;
use std::time::{Duration, Instant};

use crate::embedded_faults::file::assert_refused;
use crate::redis_faults::clock::Clock;
use crate::support::{Process, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn an_old_copy_of_the_data_forgets_leases_and_lets_no_number_fall() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("embedded:{}", directory.path().display());
    let file = directory.path().join("locks.sqlite");
    let copy = directory.path().join("copy");
    let mut last = 0;
    for round in 0..5 {
        let service = Process::start(&store, &[]);
        let http = service.http();
        let granted = http.post(&format!("/locks/{round}?ttl=10m"), "").await;
        assert_eq!(granted.status, 201, "{granted:?}");
        service.signal("TERM");
        assert_eq!(service.wait(), Some(0));
        fs::copy(&file, &copy).unwrap();

        let service = Process::start(&store, &[]);
        let http = service.http();
        let later = http.post("/locks/later?ttl=10m", "").await;
        assert_eq!(later.status, 201, "{later:?}");
        assert!(later.number("fencing_token") > last);
        service.kill();
        fs::copy(&copy, &file).unwrap();
        let remove = |beside: &str| {
            fs::remove_file(directory.path().join(format!("locks.sqlite{beside}"))).unwrap();
        };
        // The files beside it are those of the later one.
        remove("-wal");
        remove("-shm");
        assert_refused(&store, "was answered): restore them");
        remove("-note");

        let service = Process::start(&store, &[]);
        let http = service.http();
        let holder = http.token(&granted.text("token"));
        assert_eq!(holder.put(&format!("/locks/{round}/refresh"), "").await.status, 200);
        let refreshed = http.token(&later.text("token")).put("/locks/later/refresh", "").await;
        assert_eq!(refreshed.told(), (409, "lock_lost".to_owned()));
        let second = http.post("/locks/later?ttl=2s", "").await;
        assert_eq!(second.status, 201, "{second:?}");
        last = second.number("fencing_token");
        assert!(last > later.number("fencing_token"), "{last} after {later:?}");
        eventually(Duration::from_secs(20), async || {
            (http.get("/locks/later").await.field("held") == false).then_some(())
        })
        .await;
        service.signal("TERM");
        assert_eq!(service.wait(), Some(0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_that_share_a_key_are_there_after_a_restart_with_their_slots_and_units() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("embedded:{}", directory.path().display());
    let service = Process::start(&store, &[]);
    let http = service.http();
    let holder = |name: &str| http.token(&format!("token-of-holder-{name}"));
    for (name, query) in
        [("1", "slots=6"), ("2", "slots=6"), ("3", "slots=6&units=3"), ("4", "shared=true")]
    {
        let granted = holder(name).post(&format!("/locks/pool?ttl=10m&{query}"), "").await;
        assert_eq!(granted.status, 201, "{granted:?}");
    }
    assert_eq!(holder("2").delete("/locks/pool").await.status, 204);
    let before = http.get("/locks/pool").await;
    service.kill();
    let service = Process::start(&store, &[]);
    let http = service.http();
    let after = http.get("/locks/pool").await;
    let told = |answer: &crate::support::Answer| {
        let leases = answer.field("leases").as_array().unwrap().clone();
        let of = |one: &serde_json::Value| {
            ["fencing_token", "slots", "units", "slot"].map(|name| one[name].clone())
        };
        let mut all: Vec<_> = leases.iter().map(|one| format!("{:?}", of(one))).collect();
        all.sort();
        all
    };
    assert_eq!(told(&after), told(&before));
    let all = ["holders", "units", "slots"].map(|name| after.number(name));
    assert_eq!(all, [3, 5, 6]);
    let next = http.token("token-of-holder-5").post("/locks/pool?slots=6", "").await;
    assert_eq!((next.status, next.number("slot")), (201, 2));
    let full = http.post("/locks/pool?slots=6", "").await;
    assert_eq!(full.told(), (409, "lock_held".into()));
    service.signal("TERM");
    assert_eq!(service.wait(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_does_not_reset_since_when_a_key_is_held() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("embedded:{}", directory.path().display());
    let mut held = 0;
    for signal in ["TERM", "KILL", "TERM"] {
        let service = Process::start(&store, &[]);
        let http = service.http().token("a-token-of-this-test");
        if held == 0 {
            assert_eq!(http.post("/locks/k?ttl=10m&owner=o", "").await.status, 201);
        }
        let seen = async || http.get("/locks/k").await.number("held_ms");
        let first = seen().await;
        assert!(first >= held, "{first} after {held}");
        let longer = async || Some(seen().await).filter(|now| *now > first + 300);
        held = eventually(Duration::from_secs(10), longer).await;
        // After a crash the clock goes on from the last commit, which this is.
        assert_eq!(http.put("/locks/k/refresh", "").await.text("owner"), "o");
        service.signal(signal);
        service.wait();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_of_the_wall_clock_moves_the_end_of_no_lease() {
    const TTL: Duration = Duration::from_millis(1_500);
    let clock = Clock::make();
    let directory = tempfile::tempdir().unwrap();
    let store = format!("embedded:{}", directory.path().display());
    let service = clock.service(&store);
    let http = service.http();
    let mut last = 0;
    for seconds in [3_600, -3_600, 0, 60, -60, 0] {
        let sent = Instant::now();
        let granted = http.post("/locks/stepped?ttl=1500ms", "").await;
        assert_eq!(granted.status, 201, "{granted:?}");
        assert!(granted.number("fencing_token") > last, "{granted:?} after {last}");
        last = granted.number("fencing_token");
        let answered = Instant::now();
        clock.step_ms(seconds * 1_000);
        let next = http.post("/locks/stepped?ttl=10m&wait=20s", "").await;
        assert_eq!(next.status, 201, "{next:?}");
        assert!(sent.elapsed() >= TTL, "it ended {:?} after it was asked for", sent.elapsed());
        let took = answered.elapsed();
        assert!(took < TTL + Duration::from_secs(10), "a step by {seconds} s: {took:?}");
        let token = next.text("token");
        assert_eq!(http.token(&token).delete("/locks/stepped").await.status, 204);
        last = last.max(next.number("fencing_token"));
    }
}
