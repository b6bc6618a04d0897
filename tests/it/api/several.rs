//! Several keys in one request over HTTP.

use serde_json::json;
use tokio::task::JoinSet;

use crate::api::{Lockkeeper, OTHER, TOKEN, api_keys, assert_members};
use crate::support::{Answer, PATIENCE, eventually};

/// The keys and their numbers, as an answer has them.
fn leases(answer: &Answer) -> Vec<(String, u64)> {
    let leases = answer.field("leases");
    let lease = |one: &serde_json::Value| {
        (one["key"].as_str().unwrap().to_owned(), one["fencing_token"].as_u64().unwrap())
    };
    leases.as_array().unwrap().iter().map(lease).collect()
}

fn keys(answer: &Answer) -> Vec<String> {
    leases(answer).into_iter().map(|(key, _)| key).collect()
}

#[tokio::test]
async fn several_keys_are_granted_in_the_order_asked_and_their_leases_are_plain_ones() {
    let http = Lockkeeper::start().await.holding(TOKEN);
    let granted = http.post("/locks?key=b&key=a%2F1&ttl=60s&wait=10s&owner=me", "").await;
    assert_eq!((granted.status, keys(&granted)), (201, vec!["b".into(), "a/1".into()]));
    assert_members(&granted, &["token", "leases", "ttl_ms", "waited_ms", "owner"]);
    assert_eq!((granted.text("token"), granted.header("lock-token")), (TOKEN.into(), Some(TOKEN)));
    assert!(granted.lasts(60_000) && granted.number("waited_ms") == 0, "{granted:?}");
    let again = http.post("/locks", r#"{"keys":["a/1",{"key":"b"}],"owner":"me"}"#).await;
    assert_eq!((again.status, keys(&again)), (200, vec!["a/1".into(), "b".into()]));
    let numbers = |answer: &Answer| {
        let mut numbers = leases(answer);
        numbers.sort();
        numbers
    };
    assert_eq!(numbers(&again), numbers(&granted));
    for (key, number) in leases(&granted) {
        let refreshed = http.put(&format!("/locks/{key}/refresh"), "").await;
        assert_eq!((refreshed.status, refreshed.number("fencing_token")), (200, number));
    }
    assert_eq!(http.delete("/locks?key=b&key=a/1").await.status, 204);
    assert_eq!(http.get("/locks").await.field("locks"), json!([]));
}

#[tokio::test]
async fn each_key_has_a_share_of_its_own() {
    let http = Lockkeeper::start().await;
    let body = r#"{"keys":["a",{"key":"lib","shared":true},{"key":"gpu","slots":8}]}"#;
    let granted = http.token(TOKEN).post("/locks", body).await;
    let shares: Vec<_> = granted.field("leases").as_array().unwrap().clone();
    let shares = shares.iter().map(|one| [&one["slots"], &one["slot"]].map(|n| n.as_u64()));
    let expected = vec![[None, None], [Some(1_000), None], [Some(8), Some(1)]];
    assert_eq!((granted.status, shares.collect::<Vec<_>>()), (201, expected));
    let other = http.token(OTHER);
    let beside = r#"{"keys":[{"key":"lib","shared":true},{"key":"gpu","slots":8}]}"#;
    assert_eq!(other.post("/locks", beside).await.field("leases")[1]["slot"], 2);
    let refused = other.post("/locks", r#"{"keys":[{"key":"lib","slots":1}]}"#).await;
    assert_eq!((refused.told(), refused.field("mine")), ((409, "lock_held".into()), true.into()));
    assert!(refused.text("detail").contains("release it first"), "{refused:?}");
}

#[tokio::test]
async fn a_refusal_names_the_key_and_its_holder_and_leaves_nothing() {
    let http = Lockkeeper::start().await;
    http.token(OTHER).post("/locks/b?owner=web-1&ttl=60s", "").await;
    for (path, waits) in
        [("/locks?key=c&key=a&key=b", false), ("/locks?key=b&key=a&wait=1ms", true)]
    {
        for http in [http.token(TOKEN), http.token("a-token-of-its-own")] {
            let refused = http.post(path, "").await;
            assert_eq!(refused.told(), (409, "lock_held".into()));
            assert_eq!((refused.text("key"), refused.text("owner")), ("b".into(), "web-1".into()));
            assert!(refused.text("detail").starts_with("'b' is held by web-1 for"), "{refused:?}");
            let retry: u64 = refused.header("retry-after").unwrap().parse().unwrap();
            assert!((50..=60).contains(&retry), "{refused:?}");
            assert_eq!(refused.number("waited_ms") > 0, waits, "{refused:?}");
            for free in ["a", "c"] {
                assert_eq!(http.get(&format!("/locks/{free}")).await.field("held"), false);
            }
        }
    }
}

#[tokio::test]
async fn a_refresh_and_a_release_do_what_they_can_and_say_what_is_lost() {
    let http = Lockkeeper::start().await.holding(TOKEN);
    let granted = http.post("/locks?key=a&key=b&key=c", "").await;
    let numbers: Vec<_> = leases(&granted).into_iter().map(|(_, number)| number).collect();
    http.delete("/locks/b").await;
    let newer = http.post("/locks/b", "").await.number("fencing_token");
    let named = |last: u64| {
        let each = [("a", numbers[0]), ("b", numbers[1]), ("c", last)];
        let each = each.map(|(key, number)| json!({"key": key, "fencing_token": number}));
        json!({"leases": each, "ttl_ms": 90_000}).to_string()
    };
    let refreshed = http.put("/locks/refresh", &named(numbers[2])).await;
    assert_eq!(refreshed.told(), (409, "lock_lost".into()));
    assert_eq!(refreshed.field("lost"), json!([{"key": "b", "fencing_token": newer}]));
    for (key, lasts) in [("a", true), ("b", false), ("c", true)] {
        let left = http.get(&format!("/locks/{key}")).await.number("ttl_ms");
        assert_eq!(left > 60_000, lasts, "{key}: {left}");
    }
    let all = http.put("/locks/refresh?key=c&key=b&ttl=80s", "").await;
    assert_eq!((all.status, keys(&all)), (200, vec!["c".into(), "b".into()]));
    assert_eq!(all.header("lock-token"), Some(TOKEN));
    let body = named(numbers[2]).replace(r#","ttl_ms":90000"#, "");
    let released = http.send("DELETE", "/locks", &body).await;
    assert_eq!(released.told(), (409, "lock_lost".into()));
    assert!(released.text("detail").starts_with("1 of 3 leases had ended"), "{released:?}");
    assert_eq!(released.field("lost"), json!([{"key": "b", "fencing_token": newer}]));
    let gone = http.delete("/locks?key=b&key=c").await;
    assert_eq!(gone.field("lost"), json!([{"key": "c"}]));
    assert_eq!(gone.text("detail"), "1 of 2 leases had ended before; the others are released");
    assert_eq!(http.get("/locks").await.field("locks"), json!([]));
}

#[tokio::test]
async fn all_keys_that_can_be_claimed_can_be_refreshed_and_released_by_number() {
    let http = Lockkeeper::start().await.holding(TOKEN);
    let longest = |last: char, times: usize| {
        let key = |n: u32| format!("{}{n:02}", String::from(last).repeat(times));
        (0..16).map(key).collect::<Vec<_>>()
    };
    // Many libraries write what is not ASCII so.
    let escaped = |body: &str| body.replace('\u{e9}', "\\u00e9");
    for names in [longest('k', 510), longest('\u{e9}', 255)] {
        assert!(names.iter().all(|name| name.len() == 512));
        let query = names.iter().map(|name| format!("key={name}")).collect::<Vec<_>>().join("&");
        let claim = json!({ "keys": names }).to_string();
        let granted = match names[0].is_ascii() {
            true => http.post(&format!("/locks?{query}"), "").await,
            false => http.post("/locks", &escaped(&claim)).await,
        };
        assert_eq!((granted.status, keys(&granted)), (201, names.clone()));
        let each = leases(&granted).into_iter();
        let each = each.map(|(key, number)| json!({"key": key, "fencing_token": number}));
        let named = json!({"leases": each.collect::<Vec<_>>()});
        let named = escaped(&serde_json::to_string_pretty(&named).unwrap());
        assert_eq!(http.put("/locks/refresh", &named).await.status, 200);
        assert_eq!(http.send("DELETE", "/locks", &named).await.status, 204);
    }
    assert_eq!(http.get("/locks").await.field("locks"), json!([]));
}

#[tokio::test]
async fn a_loss_of_every_lease_tells_of_no_others() {
    let http = Lockkeeper::start().await.holding(TOKEN);
    for query in ["key=a", "key=a&key=b"] {
        let lost = http.put(&format!("/locks/refresh?{query}"), "").await;
        assert_eq!(lost.told(), (409, "lock_lost".into()));
        let told = "every lease of the request is lost; your work may overlap with another's";
        assert_eq!(lost.text("detail"), told);
        let ended = http.delete(&format!("/locks?{query}")).await;
        assert_eq!(ended.told(), (409, "lock_lost".into()));
        assert_eq!(ended.text("detail"), "every lease of the request had ended before");
    }
}

#[tokio::test]
async fn a_wrong_mix_of_lists_is_told_what_is_wrong() {
    let http = Lockkeeper::start().await.holding(TOKEN);
    let typed = |media_type| http.with("Content-Type", media_type);
    let (form, http) = (typed("application/x-www-form-urlencoded"), typed("application/json"));
    let place = "name all keys in one place: in the query, or in a list `keys`";
    let either = &format!("{place} or `leases`");
    let list = "unknown option \"key\"; several keys are a JSON list `keys`, or `?key=a&key=b`";
    let both = r#"{"keys":["a"],"leases":[{"key":"b"}]}"#;
    for (http, method, path, body, detail) in [
        (&http, "POST", "/locks?key=a", r#"{"keys":["b"]}"#, place),
        (&http, "PUT", "/locks/refresh?key=a", r#"{"leases":[{"key":"b"}]}"#, either),
        (&http, "PUT", "/locks/refresh", both, either),
        (&http, "DELETE", "/locks?key=c", both, either),
        (&form, "POST", "/locks", "key=a&key=b", list),
        (&form, "DELETE", "/locks", "key=a", list),
        (&http, "PUT", "/locks/refresh", r#"{"key":"a"}"#, list),
    ] {
        let refused = http.send(method, path, body).await;
        assert_eq!((refused.status, refused.text("detail").as_str()), (400, detail), "{body}");
    }
}

#[tokio::test]
async fn a_request_that_names_no_keys_or_too_much_is_refused() {
    let http = Lockkeeper::start().await.holding(TOKEN);
    let many = (0..17).map(|n| format!("key={n}")).collect::<Vec<_>>().join("&");
    let most = many.split_once('&').unwrap().1;
    assert_eq!(http.post(&format!("/locks?{most}"), "").await.status, 201);
    let (many, invalid) = (format!("/locks?{many}"), "invalid_request");
    for (path, body, code, field) in [
        ("/locks", "", invalid, "keys"),
        (&many, "", invalid, "keys"),
        ("/locks", r#"{"keys":[]}"#, invalid, "keys"),
        ("/locks", r#"{"keys":"a"}"#, invalid, "keys"),
        ("/locks", r#"{"keys":[5]}"#, invalid, "keys"),
        ("/locks", r#"{"keys":[{"shared":true}]}"#, invalid, "keys"),
        ("/locks", r#"{"keys":["a","a"]}"#, invalid, "keys"),
        ("/locks?key=a", r#"{"keys":["b"]}"#, invalid, "keys"),
        ("/locks", r#"{"keys":[{"key":"a","slots":0}]}"#, invalid, "slots"),
        ("/locks?key=a&fencing_token=7", "", "unknown_field", "fencing_token"),
        ("/locks?key=a", r#"{"fencing_token":7}"#, "unknown_field", "fencing_token"),
        ("/locks", r#"{"keys":[{"key":"a","fencing_token":7}]}"#, "unknown_field", "fencing_token"),
        ("/locks?key=a&slots=2", "", "unknown_field", "slots"),
        ("/locks", r#"{"leases":[{"key":"a"}]}"#, "unknown_field", "leases"),
    ] {
        let refused = http.post(path, body).await;
        assert_eq!(refused.told(), (400, code.into()), "{path} {body}");
        assert_eq!(refused.text("field"), field, "{path} {body}");
        if field == "fencing_token" {
            assert!(refused.text("detail").ends_with("a claim of several keys replaces no lease"));
        }
    }
    for path in ["/locks?key=a%2F", "/locks?key="] {
        assert_eq!(http.post(path, "").await.told(), (400, "invalid_key".into()));
    }
    let query = http.put("/locks/refresh?key=a&fencing_token=7", "").await;
    assert!(query.text("detail").ends_with("name it beside its key in `leases`, in a body"));
    // No key is `refresh`, so its path is free.
    assert_eq!(http.post("/locks/refresh", "").await.header("allow"), Some("PUT"));
    assert_eq!(http.put("/locks", "").await.header("allow"), Some("DELETE, GET, HEAD, POST"));
}

#[tokio::test]
async fn a_member_that_stands_twice_within_a_key_is_refused() {
    let http = Lockkeeper::start().await.holding(TOKEN);
    for (method, path, body, field) in [
        ("POST", "/locks", r#"{"keys":[{"key":"p","key":"q","slots":8}]}"#, "key"),
        ("POST", "/locks", r#"{"keys":["o",{"key":"p","slots":8,"slots":2}]}"#, "slots"),
        ("POST", "/locks", r#"{"keys":[{"key":"p","slots":null,"sl\u006fts":2}]}"#, "slots"),
        ("PUT", "/locks/refresh", r#"{"leases":[{"key":"p","key":"q"}]}"#, "key"),
        (
            "DELETE",
            "/locks",
            r#"{"leases":[{"key":"o"},{"key":"p","fencing_token":1,"fencing_token":2}]}"#,
            "fencing_token",
        ),
    ] {
        let refused = http.send(method, path, body).await;
        assert_eq!(refused.told(), (400, "invalid_request".into()), "{body}");
        let detail = format!("an object in the body names `{field}` twice");
        assert_eq!((refused.text("field"), refused.text("detail")), (field.into(), detail));
    }
    assert_eq!(http.get("/locks").await.field("locks"), json!([]));
}

#[tokio::test]
async fn the_rights_to_all_keys_and_their_quota_are_checked_before_anything_is_acquired() {
    let rights = [("shop", r#"["shop/"]"#, r#"["acquire"]"#), ("all", r#"[""]"#, r#"["read"]"#)];
    let settings = format!("[quotas]\nleases = 2\n{}", api_keys(&rights));
    let http = Lockkeeper::with_settings(&settings).await;
    let (shop, all) = (http.bearer("shop"), http.bearer("all"));
    for (path, told) in [
        ("/locks?key=shop/a&key=other", (403, "forbidden".to_owned())),
        ("/locks?key=shop/a&key=shop/b&key=shop/c", (429, "quota_exceeded".to_owned())),
    ] {
        assert_eq!(shop.post(path, "").await.told(), told);
        assert_eq!(all.get("/locks").await.field("locks"), json!([]));
    }
    let granted = shop.post("/locks?key=shop/a&key=shop/b", "").await;
    let mine = shop.token(&granted.text("token"));
    assert_eq!(granted.status, 201);
    assert_eq!(shop.post("/locks?key=shop/d", "").await.told(), (429, "quota_exceeded".into()));
    for (method, path) in [("PUT", "/locks/refresh"), ("DELETE", "/locks")] {
        let refused = mine.send(method, &format!("{path}?key=shop/a&key=other"), "").await;
        assert_eq!(refused.told(), (403, "forbidden".into()));
    }
    assert_eq!(all.get("/locks").await.field("locks").as_array().unwrap().len(), 2);
    assert_eq!(mine.delete("/locks?key=shop/a&key=shop/b").await.status, 204);
    let both = shop.post("/locks?key=shop/d&key=shop/e", "").await;
    assert_eq!(both.status, 201, "nothing is counted any more: {both:?}");
}

#[tokio::test]
async fn a_client_that_leaves_while_it_waits_for_a_later_key_leaves_nothing() {
    let http = Lockkeeper::start().await;
    http.token(OTHER).post("/locks/b", "").await;
    let mut waiting = JoinSet::new();
    let claim = http.token(TOKEN);
    waiting.spawn(async move { claim.post("/locks?key=a&key=b&wait=20s", "").await });
    let waits = async || (http.get("/locks/b").await.number("waiters") == 1).then_some(());
    eventually(PATIENCE, waits).await;
    assert_eq!(http.get("/locks/a").await.field("held"), true);
    waiting.shutdown().await;
    let free = async || {
        let (a, b) = (http.get("/locks/a").await, http.get("/locks/b").await);
        (a.field("held") == false && b.number("waiters") == 0).then_some(())
    };
    eventually(PATIENCE, free).await;
}

#[tokio::test]
async fn the_routes_of_several_keys_have_their_own_labels() {
    let http = Lockkeeper::start().await.holding(TOKEN);
    http.post("/locks?key=a&key=b", "").await;
    http.put("/locks/refresh?key=a&key=b", "").await;
    http.delete("/locks?key=a&key=b").await;
    let metrics = http.get("/metrics").await;
    let metrics = String::from_utf8(metrics.body.to_vec()).unwrap();
    for line in [
        r#"lockkeeper_http_requests_total{route="/locks",method="POST",status="201"} 1"#,
        r#"lockkeeper_http_requests_total{route="/locks/refresh",method="PUT",status="200"} 1"#,
        r#"lockkeeper_http_requests_total{route="/locks",method="DELETE",status="204"} 1"#,
    ] {
        assert!(metrics.contains(line), "no {line}: {metrics}");
    }
}
