//! What the dashboard reads: to whom it is told, what of it, and how much. The page itself is in
//! `dashboard.rs` beside this directory, in a browser.

use std::time::Duration;

use serde_json::Value;

use crate::api::{Lockkeeper, TOKEN, api_keys};
use crate::support::{Answer, Http, PATIENCE, Process, Redis, eventually};

const DATA: &str = "/ui/status";

/// The state and the last ends.
async fn status(http: &Http) -> Value {
    let answer = http.get("/ui/status").await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

/// The ends as key, owner and reason.
fn ends(status: &Value) -> Vec<(String, String, String)> {
    let text = |end: &Value, name: &str| end[name].as_str().unwrap_or_default().to_owned();
    let all = status["ends"].as_array().unwrap().iter();
    all.map(|end| (text(end, "key"), text(end, "owner"), text(end, "why"))).collect()
}

async fn take(http: &Http, target: &str) -> Http {
    let answer = http.post(&format!("/locks/{target}"), "").await;
    assert_eq!(answer.status, 201, "{answer:?}");
    http.token(&answer.text("token"))
}

#[tokio::test]
async fn the_page_is_for_everybody_and_may_load_nothing_else() {
    let service = Lockkeeper::with_settings(&api_keys(&[("root", r#"[""]"#, r#"["read"]"#)])).await;
    let http = &service.http.0;
    let page = http.get("/ui").await;
    assert_eq!((page.status, page.header("content-type")), (200, Some("text/html; charset=utf-8")));
    let policy = page.header("content-security-policy").unwrap();
    for part in [
        "default-src 'none'; ",
        "connect-src 'self'; ",
        "frame-ancestors 'none'",
        "base-uri 'none'; ",
        "form-action 'none'; ",
    ] {
        assert!(policy.contains(part), "{part}: {policy}");
    }
    assert_eq!(policy.matches("'sha256-").count(), 2, "{policy}");
    assert!(!policy.contains("unsafe"), "{policy}");
    assert_eq!(page.header("x-content-type-options"), Some("nosniff"));
    assert_eq!(page.header("referrer-policy"), Some("no-referrer"));
    let etag = page.header("etag").unwrap();
    for tags in [etag.to_owned(), format!("W/{etag}"), format!("\"other\", {etag}")] {
        let known = http.with("If-None-Match", &tags).get("/ui").await;
        assert_eq!((known.status, known.body.len()), (304, 0), "{tags}");
    }
    assert_eq!(http.with("If-None-Match", "\"other\"").get("/ui").await.status, 200);
    assert_eq!(http.send("HEAD", "/ui", "").await.status, 200);
    assert_eq!(http.post("/ui", "").await.told(), (405, "method_not_allowed".into()));
    assert_eq!(http.get("/ui/access").await.field("api_keys"), true);
    assert_eq!(Lockkeeper::start().await.http.0.get("/ui/access").await.field("api_keys"), false);
}

#[tokio::test]
async fn the_data_needs_the_right_to_read() {
    let settings = api_keys(&[
        ("locker", r#"[""]"#, r#"["acquire"]"#),
        ("admin", r#"[""]"#, r#"["admin"]"#),
        ("reader", r#"["shop/"]"#, r#"["read"]"#),
    ]);
    let service = Lockkeeper::with_settings(&settings).await;
    let bearer = |secret: &str| service.http.bearer(secret).0;
    assert_eq!(service.http.0.get(DATA).await.told(), (401, "unauthenticated".into()));
    for secret in ["locker", "admin"] {
        assert_eq!(bearer(secret).get(DATA).await.told(), (403, "forbidden".into()));
    }
    let answer = bearer("reader").get(&format!("{DATA}?token={TOKEN}")).await;
    assert_eq!(answer.status, 400, "{answer:?}");
    assert_eq!(bearer("reader").post(DATA, "").await.status, 405);
    let told = status(&bearer("reader")).await;
    assert_eq!(told["caller"]["may"], serde_json::json!(["read"]));
    // The number of all keys is for those who may see all.
    assert!(told.get("held").is_none(), "{told}");
    assert_eq!(bearer("reader").get("/ui/status?after=x").await.field("field"), "after");
}

#[tokio::test]
async fn a_web_page_of_another_origin_reads_no_data() {
    let service = Lockkeeper::start().await;
    let foreign = service.http.0.with("Sec-Fetch-Site", "cross-site");
    assert_eq!(foreign.get(DATA).await.told(), (403, "forbidden_origin".into()));
    let rebound = format!(
        "GET {DATA} HTTP/1.1\r\nHost: evil.example\r\nSec-Fetch-Site: same-origin\r\n\
         Connection: close\r\n\r\n"
    );
    let answer = crate::support::raw::exchange(service.http.0.address, rebound.as_bytes());
    assert_eq!(answer.await.status, 403);
}

#[tokio::test]
async fn an_end_says_whose_lease_it_was_how_long_it_was_held_and_why_it_ended() {
    let service = Lockkeeper::start().await;
    let http = &service.http.0;
    let holder = take(http, "released?owner=web-1").await;
    assert_eq!(holder.delete("/locks/released").await.status, 204);
    take(http, "forced?owner=web-2").await;
    assert_eq!(http.delete("/admin/locks/forced?reason=gone").await.status, 200);
    take(http, "expired?owner=web-3&ttl=100ms").await;
    let held = http.post("/hold/held?owner=web-4", "").await; // It reads a line, and hangs up.
    assert_eq!(held.status, 200);
    let told = eventually(PATIENCE, async || {
        let told = status(http).await;
        (told["ends"].as_array().unwrap().len() == 4).then_some(told)
    })
    .await;
    let mut seen = ends(&told);
    seen.sort();
    let expected = [
        ("expired", "web-3", "expired"),
        ("forced", "web-2", "forced"),
        ("held", "web-4", "disconnected"),
        ("released", "web-1", "released"),
    ];
    let text = |(key, owner, why): (&str, &str, &str)| (key.into(), owner.into(), why.into());
    assert_eq!(seen, expected.map(text));
    for end in told["ends"].as_array().unwrap() {
        assert!(end["held_ms"].is_u64() && end["ago_ms"].is_u64(), "{end}");
        assert!(end["fencing_token"].is_u64() && end["waited_ms"] == 0, "{end}");
    }
    let expired = told["ends"].as_array().unwrap().iter().find(|end| end["key"] == "expired");
    assert!(expired.unwrap()["held_ms"].as_u64().unwrap() >= 100, "{told}");
}

#[tokio::test]
async fn a_lease_that_is_refreshed_past_its_first_end_has_not_ended() {
    let service = Lockkeeper::start().await;
    let http = &service.http.0;
    let holder = take(http, "refreshed?ttl=500ms").await;
    assert_eq!(holder.put("/locks/refreshed/refresh?ttl=1h", "").await.status, 200);
    take(http, "expired?ttl=600ms").await;
    let told = eventually(PATIENCE, async || {
        let told = status(http).await;
        (!ends(&told).is_empty()).then_some(told)
    })
    .await;
    assert_eq!(ends(&told), [("expired".into(), "127.0.0.1".into(), "expired".into())]);
}

#[tokio::test]
async fn a_caller_sees_the_ends_of_its_own_prefixes_only() {
    let settings = api_keys(&[
        ("root", r#"[""]"#, r#"["acquire", "read"]"#),
        ("shop", r#"["shop/"]"#, r#"["read"]"#),
    ]);
    let service = Lockkeeper::with_settings(&settings).await;
    let [root, shop] = ["root", "shop"].map(|secret| service.http.bearer(secret).0);
    for key in ["secret/a", "shop/a", "shopping", "shop/b"] {
        let holder = take(&root, key).await;
        assert_eq!(holder.delete(&format!("/locks/{key}")).await.status, 204);
    }
    assert_eq!(ends(&status(&root).await).len(), 4);
    let keys = |told: Vec<(String, String, String)>| {
        told.into_iter().map(|(key, ..)| key).collect::<Vec<_>>()
    };
    assert_eq!(keys(ends(&status(&shop).await)), ["shop/a", "shop/b"]);
    assert!(!status(&shop).await.to_string().contains("secret"));
}

#[tokio::test]
async fn the_last_two_hundred_ends_are_told_and_each_of_them_once() {
    let service = Lockkeeper::start().await;
    let http = &service.http.0;
    for number in 0..210 {
        let holder = take(http, &format!("k{number}")).await;
        assert_eq!(holder.delete(&format!("/locks/k{number}")).await.status, 204);
    }
    let told = status(http).await;
    let seen = ends(&told);
    assert_eq!((seen.len(), &*seen[0].0, &*seen[199].0), (200, "k10", "k209"));
    let last = told["last_end"].as_u64().unwrap();
    let path = |after: u64| format!("/ui/status?after={after}");
    assert_eq!(ends(&http.get(&path(last)).await.json()), []);
    assert_eq!(ends(&http.get(&path(last - 2)).await.json()).len(), 2);
}

#[tokio::test]
async fn a_store_that_does_not_answer_is_told_with_its_reason() {
    let service = Lockkeeper::without_store("").await;
    let told = status(&service.http.0).await;
    assert_eq!((&told["store"]["name"], &told["store"]["up"]), (&"redis".into(), &false.into()));
    assert!(!told["store"]["problem"].as_str().unwrap().is_empty(), "{told}");
    assert_eq!(service.http.post("/locks/k", "").await.status, 503);
    let told = status(&service.http.0).await;
    assert!(told["failing"].as_str().unwrap().starts_with("try_acquire"), "{told}");
    assert_eq!(told["refused_lately"], 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_redis_that_comes_back_without_its_data_is_told_and_one_that_kept_it_is_not() {
    for (mut redis, is_empty) in [
        (Redis::start(), true),
        (Redis::start_with(&["--appendonly", "yes", "--appendfsync", "always"]), false),
    ] {
        let service = Process::start(&redis.url(), &[]);
        let http = service.http();
        take(&http, "k?ttl=1h").await;
        redis.kill();
        redis.restart();
        let log = eventually(PATIENCE, async || {
            let log = service.log();
            (log.matches("connected").count() >= 4).then_some(log) // By both connections.
        })
        .await;
        assert_eq!(log.contains("begun again without data"), is_empty, "{log}");
        let told = status(&http).await;
        assert_eq!(told["store"]["began_empty_ms"].is_u64(), is_empty, "{told}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_reason_of_a_forced_release_is_in_the_log_and_a_bad_one_frees_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("embedded:{}", directory.path().display());
    let service = Process::start(&store, &[("LOCKKEEPER_LOG_FORMAT", "json")]);
    let http = service.http();
    take(&http, "k").await;
    let force =
        async |query: &str| -> Answer { http.delete(&format!("/admin/locks/k{query}")).await };
    for bad in [&*format!("?reason={}", "x".repeat(257)), "?reason=two%0Alines", "?reason=%1B[2J"] {
        let answer = force(bad).await;
        assert_eq!((answer.status, answer.field("field")), (400, "reason".into()), "{bad}");
    }
    assert_eq!(force("?cause=x").await.told(), (400, "unknown_field".into()));
    assert_eq!(http.get("/locks/k").await.field("held"), true);
    let longest = format!("{}%20OPS-1", "x".repeat(250));
    assert_eq!(force(&format!("?reason={longest}")).await.status, 200);
    take(&http, "k").await;
    assert_eq!(force("?reason=").await.status, 200);
    let reason = longest.replace("%20", " ");
    eventually(Duration::from_secs(10), async || {
        let log = service.log();
        let lines = log.lines().filter(|line| line.contains("force_release"));
        let reasons: Vec<_> = lines.map(|line| line.contains(&reason)).collect();
        (reasons == [true, false]).then_some(())
    })
    .await;
}
