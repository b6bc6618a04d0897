//! How long leases are held, by configured prefix, and who waits: as the metrics tell it.

use tokio::task::JoinSet;

use crate::api::{Lockkeeper, OTHER, TOKEN};
use crate::hold::Listener;
use crate::support::{PATIENCE, eventually};

const PREFIXES: &str =
    "[[prefixes]]\nprefix = \"cron/\"\n[[prefixes]]\nprefix = \"cron/nightly/\"\n";

const OLDEST: &str = "lockkeeper_oldest_lease_age_seconds{prefix=\"cron/\"}";

/// Until the figures have this line.
async fn counts(http: &Lockkeeper, line: &str) {
    eventually(PATIENCE, async || {
        let figures = String::from_utf8(http.get("/metrics").await.body.to_vec()).unwrap();
        figures.lines().any(|one| one == line).then_some(())
    })
    .await;
}

#[tokio::test]
async fn a_lease_is_measured_from_its_grant_to_its_end_under_its_longest_prefix() {
    let http = Lockkeeper::with_settings(PREFIXES).await.holding(TOKEN);
    for (key, prefix) in [
        ("cron/a", "cron/"),
        ("cron/nightly/b", "cron/nightly/"),
        ("d", "other"),
        ("cron", "other"),
    ] {
        let (leases, held) = ("lockkeeper_leases", "lockkeeper_lease_held_seconds_count");
        assert_eq!(http.post(&format!("/locks/{key}"), "").await.status, 201);
        counts(&http, &format!("{leases}{{prefix=\"{prefix}\"}} 1")).await;
        if key == "cron" {
            assert_eq!(http.delete(&format!("/admin/locks/{key}")).await.status, 200);
            counts(&http, &format!("{held}{{prefix=\"{prefix}\",end=\"forced\"}} 1")).await;
        } else {
            assert_eq!(http.delete(&format!("/locks/{key}")).await.status, 204);
            counts(&http, &format!("{held}{{prefix=\"{prefix}\",end=\"released\"}} 1")).await;
        }
        counts(&http, &format!("{leases}{{prefix=\"{prefix}\"}} 0")).await;
        counts(&http, &format!("lockkeeper_oldest_lease_age_seconds{{prefix=\"{prefix}\"}} 0.0"))
            .await;
    }
    assert_eq!(http.post("/locks/cron/e?ttl=100ms", "").await.status, 201);
    counts(&http, "lockkeeper_lease_held_seconds_count{prefix=\"cron/\",end=\"expired\"} 1").await;
}

#[tokio::test]
async fn neither_a_refresh_nor_a_repeat_makes_a_lease_younger() {
    let http = Lockkeeper::with_settings(PREFIXES).await;
    let mine = http.token(TOKEN);
    assert_eq!(mine.post("/locks/cron/a", "").await.status, 201);
    let mut age = http.http.0.figure(OLDEST).await;
    for _ in 0..3 {
        assert_eq!(mine.put("/locks/cron/a/refresh", "").await.status, 200);
        assert_eq!(mine.post("/locks/cron/a", "").await.status, 200);
        let later = http.http.0.figure(OLDEST).await;
        assert!(later > age, "{later} after {age}");
        age = later;
    }
    // A younger lease changes nothing.
    assert_eq!(http.token(OTHER).post("/locks/cron/b", "").await.status, 201);
    assert!(http.http.0.figure(OLDEST).await > age);
    counts(&http, "lockkeeper_leases{prefix=\"cron/\"} 2").await;
}

#[tokio::test]
async fn a_change_of_the_share_is_no_end_of_a_lease() {
    let http = Lockkeeper::with_settings(PREFIXES).await;
    let mine = http.token(TOKEN);
    let mut named = String::new();
    for share in ["shared=true", "slots=5", "slots=1", "shared=true", "slots=5"] {
        let granted = mine.post(&format!("/locks/cron/a?{share}{named}"), "").await;
        assert!(granted.status <= 201, "{granted:?}");
        named = format!("&fencing_token={}", granted.number("fencing_token"));
    }
    counts(&http, "lockkeeper_leases{prefix=\"cron/\"} 1").await;
    assert_eq!(mine.delete("/locks/cron/a").await.status, 204);
    counts(&http, "lockkeeper_leases{prefix=\"cron/\"} 0").await;
    let held = "lockkeeper_lease_held_seconds_count{prefix=\"cron/\"";
    counts(&http, &format!("{held},end=\"released\"}} 1")).await;
}

#[tokio::test]
async fn the_lease_of_a_stream_ends_with_it_or_after_its_linger() {
    let http = Lockkeeper::with_settings(PREFIXES).await;
    let held = "lockkeeper_lease_held_seconds_count{prefix=\"cron/\"";
    // Reads the first event and disconnects.
    assert_eq!(http.post("/hold/cron/a", "").await.text("event"), "acquired");
    counts(&http, &format!("{held},end=\"disconnected\"}} 1")).await;
    assert_eq!(http.post("/hold/cron/b?linger=60s", "").await.text("event"), "acquired");
    counts(&http, "lockkeeper_hold_streams 0").await;
    counts(&http, "lockkeeper_leases{prefix=\"cron/\"} 1").await;
    assert_eq!(http.delete("/admin/locks/cron/b").await.status, 200);
    counts(&http, &format!("{held},end=\"forced\"}} 1")).await;
    assert_eq!(http.post("/hold/cron/c?linger=100ms", "").await.text("event"), "acquired");
    counts(&http, &format!("{held},end=\"expired\"}} 1")).await;
}

#[tokio::test]
async fn a_lease_that_has_lasted_for_as_long_as_it_may_is_lost_and_counted_so() {
    let settings = "[[prefixes]]\nprefix = \"cron/\"\nmax_hold = \"400ms\"\n";
    let http = Lockkeeper::with_settings(settings).await.holding(TOKEN);
    let granted = http.post("/locks/cron/a?ttl=30s", "").await;
    assert!(granted.status == 201 && granted.number("ttl_ms") <= 400, "{granted:?}");
    assert_eq!(granted.field("capped"), true, "{granted:?}");
    let lost = eventually(PATIENCE, async || {
        let refreshed = http.put("/locks/cron/a/refresh?ttl=30s", "").await;
        (refreshed.status == 409).then_some(refreshed)
    })
    .await;
    assert_eq!(lost.text("code"), "lock_lost");
    assert!(lost.text("detail").contains("maybe by max_hold (400ms)"), "{lost:?}");
    let ended = "lockkeeper_lease_held_seconds_count{prefix=\"cron/\",end=\"max_hold\"}";
    counts(&http, &format!("{ended} 1")).await;
    let mut stream = Listener::open(&http.http.0, "cron/b?ttl=30s").await;
    stream.hears("acquired").await;
    stream.loses("max_hold").await;
    counts(&http, &format!("{ended} 2")).await;
    // Another key has no such limit.
    let granted = http.post("/locks/d?ttl=30s", "").await;
    assert!(granted.number("ttl_ms") > 400, "{granted:?}");
    assert_eq!(granted.json().get("capped"), None, "{granted:?}");
}

#[tokio::test]
async fn a_lease_that_ends_by_max_hold_is_lost_and_no_fault_of_the_store() {
    let settings = "[[prefixes]]\nprefix = \"cron/\"\nmax_hold = \"200ms\"\n";
    let http = Lockkeeper::with_settings(settings).await.holding(TOKEN);
    for number in 0..10 {
        let key = format!("/locks/cron/{number}");
        assert_eq!(http.post(&format!("{key}?ttl=30s"), "").await.status, 201);
        // To the last millisecond, by a refresh and by a repeat.
        loop {
            let refreshed = http.put(&format!("{key}/refresh?ttl=30s"), "").await;
            let repeated = http.post(&format!("{key}?ttl=30s"), "").await;
            for answer in [&refreshed, &repeated] {
                assert_ne!(answer.status, 503, "{answer:?}");
            }
            if repeated.status != 200 {
                break;
            }
            assert!(refreshed.number("ttl_ms") > 0 && repeated.number("ttl_ms") > 0);
        }
    }
}

#[tokio::test]
async fn a_client_that_leaves_the_line_is_counted_and_one_that_is_answered_is_not() {
    let http = Lockkeeper::start().await;
    assert_eq!(http.token(TOKEN).post("/locks/a", "").await.status, 201);
    assert_eq!(http.post("/locks/a?wait=1ms", "").await.status, 409);
    assert_eq!(http.token(TOKEN).post("/locks/a?wait=1s", "").await.status, 200);
    let mut waiting = JoinSet::new();
    let client = http.token(OTHER);
    waiting.spawn(async move { client.post("/locks/a?wait=20s", "").await });
    counts(&http, "lockkeeper_waiters 1").await;
    counts(&http, "lockkeeper_waiters_gone_total 0").await;
    waiting.shutdown().await;
    counts(&http, "lockkeeper_waiters_gone_total 1").await;
    // Reads the first event and disconnects.
    assert_eq!(http.post("/hold/a?wait=20s", "").await.text("event"), "waiting");
    counts(&http, "lockkeeper_waiters_gone_total 2").await;
}

#[tokio::test]
async fn the_limits_in_force_are_figures_and_losses_are_counted_from_zero() {
    let limits = "[limits]\nwaiters_per_instance = 7\nhold_streams = 8\nconnections = 9\n";
    let http = Lockkeeper::with_settings(limits).await;
    for (of, most) in [("waiters", 7), ("hold_streams", 8), ("connections", 9)] {
        counts(&http, &format!("lockkeeper_limit{{of=\"{of}\"}} {most}")).await;
    }
    counts(&http, "lockkeeper_refresh_total{outcome=\"lost\"} 0").await;
    counts(&http, "lockkeeper_acquire_total{outcome=\"lost\"} 0").await;
}
