//! Refresh, release and forced release.

use crate::api::{Lockkeeper, OTHER, TOKEN, assert_members};
use crate::support::{Answer, Checked};

#[tokio::test]
async fn a_refresh_by_number_only_extends_and_keeps_the_rest() {
    let http = Lockkeeper::start().await.holding(TOKEN);
    let granted = http.post("/locks/a/b", r#"{"ttl_ms":20000,"owner":"web-1"}"#).await;
    for (path, body, ttl_ms) in [
        ("/locks/a/b/refresh", r#"{"ttl_ms":5000}"#, 20_000),
        ("/locks/a/b/refresh", "", 20_000),
        ("/locks/a%2Fb/refresh?ttl=50s", "", 50_000),
        ("/locks/a%2Fb%2Frefresh?ttl=80s", r#"{"ttl_ms":55000}"#, 55_000),
        ("/locks/a/b/refresh", r#"{"ttl_ms":60000}"#, 60_000),
    ] {
        let joint = if path.contains('?') { '&' } else { '?' };
        let path = format!("{path}{joint}fencing_token={}", granted.number("fencing_token"));
        let refreshed = http.put(&path, body).await;
        assert!(refreshed.status == 200 && refreshed.lasts(ttl_ms), "{path} {body} {refreshed:?}");
        let members = ["token", "key", "fencing_token", "ttl_ms", "waited_ms", "owner"];
        assert_members(&refreshed, &members);
        assert_eq!(refreshed.header("lock-token"), Some(TOKEN));
        assert_eq!(refreshed.field("fencing_token"), granted.field("fencing_token"));
        assert_eq!((refreshed.text("owner").as_str(), refreshed.number("waited_ms")), ("web-1", 0));
    }
    let left = http.get("/locks/a/b").await.number("ttl_ms");
    assert!((50_000..=60_000).contains(&left), "{left}");
}

#[tokio::test]
async fn a_ttl_of_a_refresh_has_the_bounds_of_an_acquire() {
    let http = Lockkeeper::start().await.holding(TOKEN);
    http.post("/locks/k", "").await;
    for (path, body, field) in [
        ("/locks/k/refresh", r#"{"ttl_ms":99}"#, "ttl_ms"),
        ("/locks/k/refresh", r#"{"ttl_ms":86400001}"#, "ttl_ms"),
        ("/locks/k/refresh?ttl=25h", "", "ttl"),
    ] {
        let refused = http.put(path, body).await;
        assert_eq!(refused.told(), (400, "invalid_request".into()), "{path} {body}");
        assert_eq!(refused.text("field"), field);
    }
}

/// Puts the key `k` out of the hands of [`TOKEN`] in this way.
async fn lose(http: &Checked, way: &str) {
    let mine = http.token(TOKEN);
    match way {
        "never held" => (),
        "released" => {
            mine.post("/locks/k", "").await;
            mine.delete("/locks/k").await;
        }
        "forced" => {
            mine.post("/locks/k", "").await;
            http.delete("/admin/locks/k").await;
        }
        _ => {
            mine.post("/locks/k", "").await;
            mine.delete("/locks/k").await;
            http.token(OTHER).post("/locks/k", "").await;
        }
    }
}

#[tokio::test]
async fn a_lost_lease_is_neither_refreshed_nor_released_nor_revived() {
    for way in ["never held", "released", "forced", "taken"] {
        let http = Lockkeeper::start().await;
        lose(&http, way).await;
        let before = http.token(OTHER).get("/locks/k").await;
        for (method, path) in [("PUT", "/locks/k/refresh"), ("DELETE", "/locks/k")] {
            let lost = http.token(TOKEN).send(method, path, "").await;
            assert_eq!(lost.told(), (409, "lock_lost".into()), "{method} {way}");
            let members = ["code", "detail", "title", "status", "type", "request_id"];
            assert_members(&lost, &members);
            assert!(lost.text("detail").contains("may have overlapped"), "{lost:?}");
            assert_eq!(lost.header("retry-after"), None, "waiting does not help");
        }
        let after = http.token(OTHER).get("/locks/k").await;
        for member in ["held", "mine", "fencing_token"] {
            assert_eq!(before.field(member), after.field(member), "{way} {member}");
        }
    }
}

#[tokio::test]
async fn an_expired_lease_is_lost() {
    let http = Lockkeeper::start().await.holding(TOKEN);
    http.post("/locks/k", r#"{"ttl_ms":100}"#).await;
    let patience = std::time::Duration::from_secs(10);
    let looks = || async { (http.get("/locks/k").await.field("held") == false).then_some(()) };
    crate::support::eventually(patience, looks).await;
    assert_eq!(http.put("/locks/k/refresh", "").await.told(), (409, "lock_lost".into()));
    assert_eq!(http.delete("/locks/k").await.told(), (409, "lock_lost".into()));
    assert_eq!(http.get("/locks/k").await.field("held"), false);
}

#[tokio::test]
async fn a_released_key_is_free_at_once() {
    let http = Lockkeeper::start().await;
    http.token(TOKEN).post("/locks/k", "").await;
    let released = http.token(TOKEN).delete("/locks/k").await;
    assert_eq!((released.status, released.body.len()), (204, 0));
    assert_eq!(http.token(OTHER).post("/locks/k", "").await.status, 201);
}

#[tokio::test]
async fn a_release_and_a_forced_release_know_their_options_only() {
    let http = Lockkeeper::start().await.holding(TOKEN);
    http.post("/locks/k", "").await;
    for (path, known) in [
        ("/locks/k?ttl=5s", serde_json::json!(["fencing_token"])),
        ("/admin/locks/k?force=true", serde_json::json!(["reason", "fencing_token"])),
    ] {
        let refused = http.delete(path).await;
        assert_eq!(refused.told(), (400, "unknown_field".into()), "{path}");
        assert_eq!(refused.field("known"), known, "{path}");
    }
    assert_eq!(http.get("/locks/k").await.field("mine"), true);
}

#[tokio::test]
async fn a_late_request_that_names_its_lease_touches_no_later_one() {
    let http = Lockkeeper::start().await.holding(TOKEN);
    let late = http.post("/locks/k", "").await.number("fencing_token");
    http.delete("/locks/k").await;
    let now = http.post("/locks/k", r#"{"ttl_ms":60000}"#).await.number("fencing_token");
    for (path, body) in [
        (format!("/locks/k/refresh?ttl=1s&fencing_token={late}"), String::new()),
        ("/locks/k/refresh".to_owned(), format!(r#"{{"ttl_ms":1000,"fencing_token":{late}}}"#)),
    ] {
        assert_eq!(http.put(&path, &body).await.told(), (409, "lock_lost".into()), "{path} {body}");
    }
    let path = format!("/locks/k?fencing_token={late}");
    assert_eq!(http.delete(&path).await.told(), (409, "lock_lost".into()));
    assert!(http.get("/locks/k").await.number("ttl_ms") > 30_000);
    let body = format!(r#"{{"fencing_token":{now}}}"#);
    assert_eq!(http.put("/locks/k/refresh", &body).await.status, 200);
    assert_eq!(http.delete(&format!("/locks/k?fencing_token={now}")).await.status, 204);
}

#[tokio::test]
async fn a_fencing_token_that_is_none_is_refused() {
    let http = Lockkeeper::start().await.holding(TOKEN);
    http.post("/locks/k", "").await;
    for bad in ["0", "-1", "9007199254740992", "x", "1.5"] {
        let refused = http.delete(&format!("/locks/k?fencing_token={bad}")).await;
        assert_eq!(refused.told(), (400, "invalid_request".into()), "{bad}");
        assert_eq!(refused.text("field"), "fencing_token");
    }
    assert_eq!(http.get("/locks/k").await.field("mine"), true);
}

#[tokio::test]
async fn a_forced_release_says_what_it_took_away() {
    let http = Lockkeeper::start().await;
    let granted = http.token(TOKEN).post("/locks/a/b", r#"{"owner":"web-1"}"#).await;
    let taken = http.delete("/admin/locks/a%2Fb").await;
    assert_eq!(taken.status, 200);
    assert_members(&taken, &["key", "owner", "fencing_token"]);
    assert_eq!((taken.text("key").as_str(), taken.text("owner").as_str()), ("a/b", "web-1"));
    assert_eq!(taken.field("fencing_token"), granted.field("fencing_token"));
    let nobody = http.delete("/admin/locks/a/b").await;
    assert_eq!(nobody.told(), (409, "lock_lost".into()));
    let later = http.token(OTHER).post("/locks/a/b", "").await;
    let forced = async |lease: &Answer| {
        let number = lease.number("fencing_token");
        http.delete(&format!("/admin/locks/a/b?fencing_token={number}")).await
    };
    let late = forced(&granted).await;
    assert_eq!(late.told(), (409, "lock_lost".into()));
    assert!(late.text("detail").contains("fencing_token"), "{late:?}");
    let another = http.send("DELETE", "/admin/locks/a/b", r#"{"fencing_token":1}"#).await;
    assert_eq!(another.told(), (409, "lock_lost".into()));
    let unknown = http.send("DELETE", "/admin/locks/a/b", r#"{"force":true}"#).await;
    assert_eq!(unknown.told(), (400, "unknown_field".into()));
    assert_eq!(http.get("/locks/a/b").await.field("held"), true);
    assert_eq!(forced(&later).await.status, 200);
    assert_eq!(
        http.delete("/admin/locks/a/b?fencing_token=x").await.text("field"),
        "fencing_token"
    );
}
