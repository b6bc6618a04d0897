//! The log tells the life of every lease: its beginning, its end, and why it ended.

use serde_json::{Value, json};

use crate::hold::Listener;
use crate::support::{PATIENCE, Process, Redis, eventually};

const TOKEN: &str = "a-token-of-the-holder";

/// The line of the end of a key's lease, once it is in the log.
async fn end(service: &Process, key: &str, why: &str) -> Value {
    eventually(PATIENCE, async || {
        let log = service.log();
        let mut lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.find(|line| {
            line["message"] == "lease ended" && line["lock.key"] == key && line["end"] == why
        })
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_every_lease_is_a_line_with_its_owner_its_time_and_its_reason() {
    let directory = tempfile::tempdir().unwrap();
    let settings = directory.path().join("settings.toml");
    std::fs::write(&settings, "[[prefixes]]\nprefix = \"short\"\nmax_hold = \"1s\"\n").unwrap();
    let store = format!("embedded:{}", directory.path().join("data").display());
    let arguments = ["--store", &store, "--config", settings.to_str().unwrap()];
    let service = Process::start_with(&arguments, &[]);
    let http = service.http();
    let mine = http.token(TOKEN);
    let owner = json!({ "owner": "web-1" }).to_string();
    let mut numbers = Vec::new();
    for key in ["released", "forced", "replaced", "expired?ttl=1s", "short?ttl=10s"] {
        let granted = mine.post(&format!("/locks/{key}"), &owner).await;
        assert_eq!(granted.status, 201, "{granted:?}");
        numbers.push(granted.number("fencing_token"));
    }
    mine.delete("/locks/released").await;
    http.delete("/admin/locks/forced").await;
    mine.post(&format!("/locks/replaced?fencing_token={}", numbers[2]), &owner).await;
    let whys = ["released", "forced", "replaced", "expired", "max_hold"];
    let keys = ["released", "forced", "replaced", "expired", "short"];
    for ((key, why), number) in keys.into_iter().zip(whys).zip(numbers) {
        let line = end(&service, key, why).await;
        assert_eq!(
            (&line["lock.owner"], &line["lock.fencing_token"]),
            (&json!("web-1"), &json!(number))
        );
        assert!(line["held_ms"].is_u64() && line["seen_later"].is_null(), "{line}");
    }
    let held = end(&service, "expired", "expired").await["held_ms"].as_u64().unwrap();
    assert!(held <= 1_000, "its time was over then: {held}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_stream_is_a_line_and_a_lost_one_says_which_lease_and_why() {
    let directory = tempfile::tempdir().unwrap();
    let service = Process::start(&format!("embedded:{}", directory.path().display()), &[]);
    let http = service.http();
    let mut gone = Listener::open(&http, "gone?owner=web-1").await;
    gone.hears("acquired").await;
    let mut lost = Listener::open(&http, "lost?owner=web-2").await;
    let number = lost.hears("acquired").await["fencing_token"].clone();
    drop(gone);
    let line = end(&service, "gone", "disconnected").await;
    // As the page on operations finds it.
    let found = |line: &str| line.contains(r#""lock.key":"gone""#) && line.contains("lease ended");
    assert!(service.log().lines().any(found), "{}", service.log());
    assert_eq!(line["lock.owner"], "web-1");
    http.delete("/admin/locks/lost").await;
    end(&service, "lost", "forced").await;
    let line = eventually(PATIENCE, async || {
        let log = service.log();
        let mut lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.find(|line| line["op"] == "hold" && line["outcome"] == "lost")
    })
    .await;
    assert_eq!((&line["lock.owner"], &line["end"]), (&json!("web-2"), &json!("forced")));
    assert_eq!(line["lock.fencing_token"], number);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_lease_from_before_a_restart_is_a_line() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("embedded:{}", directory.path().display());
    let service = Process::start(&store, &[]);
    let granted = service.http().post("/locks/old?ttl=2s&owner=web-1", "").await;
    service.kill();
    let service = Process::start(&store, &[]);
    let line = end(&service, "old", "expired").await;
    assert_eq!(line["lock.owner"], "web-1");
    assert_eq!(line["lock.fencing_token"], granted.field("fencing_token"));
}

#[tokio::test(flavor = "multi_thread")]
async fn on_redis_an_end_that_no_instance_saw_is_told_later() {
    let redis = Redis::start();
    let service = Process::start(&redis.url(), &[]);
    let http = service.http();
    let granted = http.post("/locks/k?ttl=2s&owner=web-1", "").await;
    let line = end(&service, "k", "elsewhere").await;
    assert_eq!((&line["seen_later"], &line["held_ms"]), (&json!(true), &Value::Null));
    assert_eq!(line["lock.fencing_token"], granted.field("fencing_token"));
}
