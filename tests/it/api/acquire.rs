//! `POST /locks/{key}`: who gets the lease, and what the answers carry.

use crate::api::{Lockkeeper, OTHER, TOKEN, api_keys, assert_members};

#[tokio::test]
async fn a_free_key_is_granted_with_its_place_and_its_token() {
    let http = Lockkeeper::start().await;
    let granted = http.post("/locks/shop/order:7", r#"{"ttl_ms":5000,"owner":"web-1"}"#).await;
    assert_eq!(granted.status, 201);
    assert_members(&granted, &["token", "key", "fencing_token", "ttl_ms", "waited_ms", "owner"]);
    assert_eq!(granted.header("content-type"), Some("application/json"));
    assert_eq!(granted.header("location"), Some("/locks/shop/order%3A7"));
    assert_eq!(granted.header("lock-token"), Some(granted.text("token").as_str()));
    assert_eq!(granted.text("key"), "shop/order:7");
    assert_eq!(granted.text("owner"), "web-1");
    assert_eq!(granted.number("waited_ms"), 0);
    assert!(granted.lasts(5_000), "{granted:?}");
    assert!((1..1 << 53).contains(&granted.number("fencing_token")));
}

#[tokio::test]
async fn the_place_that_an_acquire_names_leads_to_the_key() {
    let http = Lockkeeper::start().await;
    for path in ["/locks/a%20b/%C3%BC/%7Bc%7D", "/locks/100%25", "/locks/a%3Fb%23c", "/locks/a%2Bb"]
    {
        let granted = http.post(path, "").await;
        let location = granted.header("location").unwrap();
        assert_eq!(http.get(location).await.text("key"), granted.text("key"), "{path}");
        assert_eq!(http.get(location).await.field("held"), true, "{path}");
    }
}

#[tokio::test]
async fn a_request_without_options_gets_the_defaults() {
    let http = Lockkeeper::start().await;
    let granted = http.post("/locks/k", "").await;
    assert_members(&granted, &["token", "key", "fencing_token", "ttl_ms", "waited_ms", "owner"]);
    assert!(granted.lasts(30_000), "{granted:?}");
    let token = granted.text("token");
    assert_eq!((token.len(), &token[14..15]), (36, "4"), "no UUID v4: {token}");
}

#[tokio::test]
async fn the_same_token_gets_the_same_lease_with_the_newest_ttl_and_owner() {
    let http = Lockkeeper::start().await.holding(TOKEN);
    let first = http.post("/locks/k", r#"{"ttl_ms":5000,"owner":"old"}"#).await;
    let again = http.post("/locks/k", r#"{"ttl_ms":9000,"owner":"new"}"#).await;
    assert_eq!((first.status, again.status), (201, 200));
    assert_members(&again, &["token", "key", "fencing_token", "ttl_ms", "waited_ms", "owner"]);
    assert_eq!(again.header("lock-token"), Some(TOKEN));
    assert_eq!(again.header("location"), None);
    assert_eq!(again.number("fencing_token"), first.number("fencing_token"));
    assert!(again.lasts(9_000), "{again:?}");
    assert_eq!(again.text("owner"), "new");
}

#[tokio::test]
async fn a_held_key_is_refused_with_what_one_needs_to_ask_again() {
    let http = Lockkeeper::start().await;
    http.token(TOKEN).post("/locks/report", r#"{"ttl_ms":29100,"owner":"web-1:42"}"#).await;
    let held = http.token(OTHER).post("/locks/report", "").await;
    assert_eq!(held.told(), (409, "lock_held".into()));
    let members = ["code", "detail", "retry_after_ms", "owner", "held_ms", "waited_ms", "waiters"];
    let members = [&members[..], &["title", "status", "type", "request_id"]].concat();
    assert_members(&held, &members);
    let left = held.number("retry_after_ms");
    assert!((20_000..=29_100).contains(&left), "{left}");
    assert_eq!(held.header("retry-after").unwrap(), left.div_ceil(1_000).to_string());
    assert_eq!(held.text("owner"), "web-1:42");
    assert_eq!((held.number("waited_ms"), held.number("waiters")), (0, 0));
    let shown: String = String::from_utf8_lossy(&held.body).chars().take(120).collect();
    let detail = r#""detail":"'report' is held by web-1:42 for another 2"#;
    assert!(shown.contains(detail) && shown.contains(" s\","), "{shown}");
}

#[tokio::test]
async fn a_claim_that_names_no_owner_has_the_address_of_its_client() {
    let http = Lockkeeper::with_settings("trusted_proxies = [\"127.0.0.1\"]\n").await;
    let far = http.with("x-forwarded-for", "2001:db8::7");
    for body in ["", r#"{"owner":""}"#] {
        let granted = far.post("/locks/k", body).await;
        assert_eq!((granted.status, granted.text("owner")), (201, "2001:db8::7".into()));
        let held = http.post("/locks/k", "").await;
        assert_eq!((held.told().0, held.text("owner")), (409, "2001:db8::7".into()));
        assert_eq!(http.get("/locks/k").await.text("owner"), "2001:db8::7");
        far.token(&granted.text("token")).delete("/locks/k").await;
    }
    assert_eq!(http.post("/locks/named", r#"{"owner":"web-1"}"#).await.text("owner"), "web-1");
}

#[tokio::test]
async fn the_owner_that_the_service_writes_begins_with_the_name_of_the_api_key() {
    let keys = api_keys(&[("ci-runner", r#"[""]"#, r#"["acquire"]"#)]);
    let service = Lockkeeper::with_settings(&keys).await;
    let http = service.bearer("ci-runner");
    assert_eq!(http.post("/locks/k", "").await.text("owner"), "key of ci-runner 127.0.0.1");
}

#[tokio::test]
async fn a_holder_without_an_owner_is_refused_without_one() {
    let http = Lockkeeper::with_settings("default_owner = \"none\"\n").await;
    http.post("/locks/k", "").await;
    let held = http.post("/locks/k", "").await;
    assert_eq!(held.told(), (409, "lock_held".into()));
    assert!(held.field("owner").is_null());
}

#[tokio::test]
async fn a_new_lease_of_a_key_has_a_greater_fencing_token() {
    let http = Lockkeeper::start().await.holding(TOKEN);
    let mut last = 0;
    for _ in 0..3 {
        let fencing_token = http.post("/locks/k", "").await.number("fencing_token");
        assert!(fencing_token > last);
        last = fencing_token;
        assert_eq!(http.delete("/locks/k").await.status, 204);
    }
}

#[tokio::test]
async fn a_shell_gets_the_bare_token_if_it_asks_for_nothing_but_text() {
    let http = Lockkeeper::start().await.holding(TOKEN);
    for (accept, text) in [
        ("text/plain", true),
        ("text/plain, text/html;q=0.5", true),
        ("Text/Plain", true),
        ("text/plain, */*", false),
        ("text/plain, application/json", false),
        ("text/html", false),
        ("*/*", false),
    ] {
        let granted = http.with("Accept", accept).post("/locks/k", "").await;
        let media_type = granted.header("content-type").unwrap();
        assert_eq!(media_type.starts_with("text/plain"), text, "{accept}");
        assert_eq!(granted.body == format!("{TOKEN}\n").as_bytes(), text, "{accept}");
        assert_eq!(granted.header("lock-token"), Some(TOKEN), "{accept}");
    }
}

#[tokio::test]
async fn a_refusal_is_a_problem_whatever_is_accepted() {
    let http = Lockkeeper::start().await;
    http.post("/locks/k", "").await;
    let held = http.with("Accept", "text/plain").post("/locks/k", "").await;
    assert_eq!(held.header("content-type"), Some("application/problem+json"));
}

#[tokio::test]
async fn a_ttl_out_of_bounds_is_refused_and_the_bounds_themselves_are_not() {
    let http = Lockkeeper::start().await.holding(TOKEN);
    for (ttl_ms, within) in [
        (99, false),
        (100, true),
        (86_400_000, true),
        (86_400_001, false),
        (0, false),
        (u64::MAX, false),
    ] {
        let answer = http.post("/locks/k", &format!(r#"{{"ttl_ms":{ttl_ms}}}"#)).await;
        assert_eq!(answer.status < 300, within, "{ttl_ms}");
        if !within {
            assert_eq!(answer.status, 400);
            assert_eq!(answer.told().1, "invalid_request");
            assert_eq!(answer.text("field"), "ttl_ms");
            let bounds = (answer.number("min_ttl_ms"), answer.number("max_ttl_ms"));
            assert_eq!(bounds, (100, 86_400_000));
        }
    }
}

#[tokio::test]
async fn the_bounds_of_a_ttl_are_settings() {
    let http =
        Lockkeeper::with_settings("[ttl]\nmin = \"1s\"\ndefault = \"2s\"\nmax = \"3s\"").await;
    assert_eq!(http.post("/locks/a", r#"{"ttl_ms":999}"#).await.status, 400);
    assert_eq!(http.post("/locks/a", r#"{"ttl_ms":3001}"#).await.status, 400);
    assert!(http.post("/locks/a", "").await.lasts(2_000));
}

#[tokio::test]
async fn a_wait_is_cut_to_what_the_settings_allow_and_the_answer_tells() {
    let http = Lockkeeper::with_settings("[limits]\nmax_wait = \"50ms\"").await;
    http.token(TOKEN).post("/locks/k", "").await;
    for (path, body, least) in [
        ("/locks/k?wait=10h", "", 50),
        ("/locks/k?wait=20ms", "", 20),
        ("/locks/k?wait=10h", r#"{"wait_ms":"10.0"}"#, 10),
        ("/locks/k?wait=10h", r#"{"wait_ms":0}"#, 0),
    ] {
        let answer = http.post(path, body).await;
        assert_eq!(answer.told(), (409, "lock_held".into()), "{path} {body}");
        assert_eq!(answer.number("waiters"), 0, "it does not count itself: {path} {body}");
        let waited = answer.number("waited_ms");
        assert!(waited >= least && (waited == 0) == (least == 0), "{path} {body}: {waited}");
    }
    for (path, body) in [("/locks/k?wait=-1", ""), ("/locks/k", r#"{"wait_ms":-1}"#)] {
        assert_eq!(http.post(path, body).await.told(), (400, "invalid_request".into()));
    }
}

#[tokio::test]
async fn an_owner_is_a_line_of_at_most_256_bytes() {
    let http = Lockkeeper::start().await.holding(TOKEN);
    let longest = "é".repeat(128);
    for (owner, status) in [
        (longest.as_str(), 201),
        ("wéb-1:42 nightly", 200),
        (&format!("{longest}x"), 400),
        (r"two\nlines", 400),
        (r"\u007f", 400),
        (r"\u0085", 400),
    ] {
        let answer = http.post("/locks/k", &format!(r#"{{"owner":"{owner}"}}"#)).await;
        assert_eq!(answer.status, status, "{owner}");
        if status == 400 {
            assert_eq!(answer.text("field"), "owner");
        } else {
            assert_eq!(answer.text("owner"), owner);
        }
    }
}
