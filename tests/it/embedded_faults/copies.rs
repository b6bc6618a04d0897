//! Data from another time, and a wall clock that shows another one.

use std::fs;
use std::time::{Duration, Instant};

use crate::redis_faults::clock::Clock;
use crate::support::{Process, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn an_old_copy_of_the_data_forgets_leases_and_lets_no_number_fall() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("embedded:{}", directory.path().display());
    let file = directory.path().join("locks.redb");
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

        let service = Process::start(&store, &[]);
        let http = service.http();
        let holder = http.token(&granted.text("token"));
        assert_eq!(holder.put(&format!("/locks/{round}/refresh"), "").await.status, 200);
        let refreshed = http.token(&later.text("token")).put("/locks/later/refresh", "").await;
        assert_eq!(refreshed.told(), (409, "lock_lost".to_owned()));
        let second = http.post("/locks/later?ttl=100ms", "").await;
        assert_eq!(second.status, 201, "{second:?}");
        last = second.number("fencing_token");
        assert!(last > later.number("fencing_token"), "{last} after {later:?}");
        eventually(Duration::from_secs(10), async || {
            (http.get("/locks/later").await.field("held") == false).then_some(())
        })
        .await;
        service.signal("TERM");
        assert_eq!(service.wait(), Some(0));
    }
}

/// A file that version 0.1.0 wrote on 2026-11-21: three leases of a day, the third of them released.
const FORMAT_1: &[u8] = include_bytes!("format-1.redb");

#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_the_first_format_is_read_and_goes_on_in_the_newest() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("locks.redb"), FORMAT_1).unwrap();
    let store = format!("embedded:{}", directory.path().display());
    for round in 0..2 {
        let service = Process::start(&store, &[]);
        let http = service.http();
        for (number, fencing_token) in [(1, 1_795_294_572_077_036), (2, 1_795_294_572_087_263)] {
            let holder = http.token(&format!("token-of-format-1-{number}"));
            let kept = holder.put(&format!("/locks/old/{number}/refresh"), "").await;
            assert_eq!(kept.status, 200, "round {round}: {kept:?}");
            assert_eq!(kept.number("fencing_token"), fencing_token);
            assert_eq!(kept.text("owner"), format!("o{number}"));
        }
        assert_eq!(http.get("/locks/old/3").await.field("held"), false);
        let later = http.post("/locks/old/3", "").await;
        assert!(later.number("fencing_token") > 1_795_294_572_099_605, "{later:?}");
        assert_eq!(http.token(&later.text("token")).delete("/locks/old/3").await.status, 204);
        service.signal("TERM");
        assert_eq!(service.wait(), Some(0));
    }
    assert_ne!(fs::read(directory.path().join("locks.redb")).unwrap(), FORMAT_1);
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
