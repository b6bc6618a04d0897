//! Who may call: API keys, their permissions and prefixes, and the order of refusals.

use crate::api::{Lockkeeper, OTHER, TOKEN, api_keys};

/// An API key for each permission, and one with all of them.
fn everybody() -> String {
    api_keys(&[
        ("locker", r#"["shop/", "cron/"]"#, r#"["acquire"]"#),
        ("reader", r#"["shop/"]"#, r#"["read"]"#),
        ("admin", r#"["shop/"]"#, r#"["admin"]"#),
        ("figures", "[]", r#"["read"]"#),
        ("root", r#"[""]"#, r#"["acquire", "read", "admin"]"#),
    ])
}

/// What one can ask, and who of `locker`, `reader`, `admin` may.
const VERBS: [(&str, &str, [bool; 3]); 6] = [
    ("POST", "/locks/{key}", [true, false, false]),
    ("PUT", "/locks/{key}/refresh", [true, false, false]),
    ("DELETE", "/locks/{key}", [true, false, false]),
    ("GET", "/locks/{key}", [true, true, false]),
    ("HEAD", "/locks/{key}", [true, true, false]),
    ("DELETE", "/admin/locks/{key}", [false, false, true]),
];

#[tokio::test]
async fn an_api_key_may_do_what_its_permissions_say_under_its_prefixes() {
    let http = Lockkeeper::with_settings(&everybody()).await;
    for (method, path, may) in VERBS {
        for (secret, may) in ["locker", "reader", "admin"].into_iter().zip(may) {
            for (key, within) in [("shop/a", true), ("shop%2Fa", true), ("shopping", false)] {
                let http = http.bearer(secret).token(TOKEN);
                let answer = http.send(method, &path.replace("{key}", key), "").await;
                let refused = answer.status == 403;
                assert_eq!(!refused, may && within, "{secret} {method} {key}: {answer:?}");
                if refused && method != "HEAD" {
                    assert_eq!(answer.told().1, "forbidden");
                }
            }
        }
    }
}

#[tokio::test]
async fn an_api_key_without_prefixes_may_do_nothing_to_a_key() {
    let http = Lockkeeper::with_settings(&everybody()).await;
    for (method, path, _) in VERBS {
        let path = path.replace("{key}", "k");
        let answer = http.bearer("figures").token(TOKEN).send(method, &path, "").await;
        assert_eq!(answer.status, 403, "{method} {path}");
    }
    let told = http.bearer("figures").get("/locks/k").await.text("detail");
    assert_eq!(told, "this API key has no prefixes, so it may use no key");
    let told = http.bearer("locker").post("/locks/k", "").await.text("detail");
    assert_eq!(told, "'k' has none of the prefixes of this API key: cron/, shop/");
}

#[tokio::test]
async fn the_list_and_the_figures_need_the_right_to_read() {
    let http = Lockkeeper::with_settings(&everybody()).await;
    for path in ["/locks", "/metrics"] {
        for (secret, status) in [("locker", 403), ("admin", 403), ("reader", 200)] {
            assert_eq!(http.bearer(secret).get(path).await.status, status, "{secret} {path}");
        }
    }
    assert_eq!(http.bearer("figures").get("/metrics").await.status, 200);
}

#[tokio::test]
async fn the_list_shows_only_what_the_caller_may_see() {
    let settings = api_keys(&[
        ("root", r#"[""]"#, r#"["acquire", "read"]"#),
        ("some", r#"["shop/", "cron/", "shop/a"]"#, r#"["read"]"#),
        ("none", "[]", r#"["read"]"#),
    ]);
    let http = Lockkeeper::with_settings(&settings).await;
    for key in ["shop/a", "shop/b", "cron/a", "shopping", "other"] {
        http.bearer("root").post(&format!("/locks/{key}"), "").await;
    }
    for (secret, query, found) in [
        ("root", "", &["cron/a", "other", "shop/a", "shop/b", "shopping"][..]),
        ("some", "", &["cron/a", "shop/a", "shop/b"]),
        ("some", "?prefix=shop", &["shop/a", "shop/b"]),
        ("some", "?prefix=shop/b", &["shop/b"]),
        ("some", "?cursor=nothing-before-this", &["shop/a", "shop/b"]),
        ("some", "?limit=1&cursor=cron/a", &["shop/a"]),
    ] {
        let page = http.bearer(secret).get(&format!("/locks{query}")).await;
        let locks = page.json()["locks"].as_array().unwrap().clone();
        let mut seen: Vec<_> = locks.iter().map(|lock| lock["key"].as_str().unwrap()).collect();
        seen.sort_unstable();
        assert_eq!(seen, found, "{secret} {query}");
    }
    // An empty list would say that nothing is held.
    for (secret, query) in [("some", "?prefix=other"), ("some", "?prefix=shoe"), ("none", "")] {
        let refused = http.bearer(secret).get(&format!("/locks{query}")).await;
        assert_eq!(refused.told(), (403, "forbidden".into()), "{secret} {query}");
    }
}

#[tokio::test]
async fn a_client_without_a_known_api_key_is_refused_and_told_how() {
    let http = Lockkeeper::with_settings(&everybody()).await;
    let verbs = VERBS.map(|(method, path, _)| (method, path.replace("{key}", "shop/a")));
    let others = [("GET", "/locks".to_owned()), ("GET", "/metrics".into())];
    for (method, path) in verbs.into_iter().chain(others) {
        for authorization in
            [None, Some("Bearer wrong"), Some("Bearer "), Some("Basic root"), Some("root")]
        {
            let http = authorization
                .map_or_else(|| http.http.clone(), |text| http.with("Authorization", text));
            let answer = http.send(method, &path, "").await;
            assert_eq!(answer.status, 401, "{method} {path} {authorization:?}");
            assert_eq!(answer.header("www-authenticate"), Some("Bearer"));
            if method != "HEAD" {
                assert_eq!(answer.told().1, "unauthenticated");
                let sent = answer.text("detail").starts_with("unknown API key");
                assert_eq!(sent, authorization.is_some(), "{authorization:?}");
            }
        }
    }
    for two in [["Bearer root", "Bearer wrong"], ["Bearer wrong", "Bearer root"]] {
        let http = http.with("Authorization", two[0]).with("Authorization", two[1]);
        assert_eq!(http.get("/locks").await.status, 401, "{two:?}");
    }
    let lower = http.with("Authorization", "bearer root");
    assert_eq!(lower.get("/locks").await.status, 200, "the scheme is of no case");
}

#[tokio::test]
async fn a_request_of_a_machine_needs_no_api_key() {
    let http = Lockkeeper::with_settings(&everybody()).await;
    for path in ["/", "/healthz", "/readyz", "/openapi.yaml", "/docs"] {
        assert_eq!(http.get(path).await.status, 200, "{path}");
        assert_eq!(http.bearer("wrong").get(path).await.status, 200, "{path}");
    }
    for path in ["/nowhere", "/admin"] {
        assert_eq!(http.get(path).await.status, 404, "{path}");
    }
}

#[tokio::test]
async fn an_api_key_is_no_lock_token_and_a_lock_token_no_api_key() {
    let secret = "a-secret-of-some-length";
    let settings = api_keys(&[(secret, r#"[""]"#, r#"["acquire"]"#)]);
    let http = Lockkeeper::with_settings(&settings).await;
    assert_eq!(http.bearer(secret).token(TOKEN).post("/locks/k", "").await.status, 201);
    assert_eq!(http.bearer(secret).token(secret).delete("/locks/k").await.status, 409);
    assert_eq!(http.bearer(secret).delete("/locks/k").await.told(), (400, "token_required".into()));
    assert_eq!(http.bearer(TOKEN).token(TOKEN).delete("/locks/k").await.status, 401);
}

/// Requests that are wrong in several respects, each with the one that is told.
const REFUSED: [(&str, &str, &str, &str, &str, u16); 22] = [
    // Route before method, API key, and key.
    ("PATCH", "/lock/%zz?x=1", "", "", "", 404),
    ("POST", "/admin/locks", "", "", "", 404),
    // Method before API key, key, and options.
    ("PATCH", "/locks/%zz?x=1", "", "", "", 405),
    ("POST", "/locks/%zz/refresh?x=1", "", "", "", 405),
    ("POST", "/locks/a/refresh", "wrong", "", "{", 405),
    ("PUT", "/locks/%zz?x=1", "", "", "{", 405),
    ("GET", "/admin/locks/%zz", "", "", "", 405),
    ("PUT", "/locks", "", "", "", 405),
    ("POST", "/locks", "", "", "", 401),
    ("POST", "/metrics", "", "", "", 405),
    // API key before key, rights, and options.
    ("POST", "/locks/%zz?x=1", "wrong", "short", "{", 401),
    ("PUT", "/locks/%zz/refresh?x=1", "", "", "{", 401),
    ("DELETE", "/admin/locks/%zz?x=1", "", "", "", 401),
    ("GET", "/locks?limit=0", "", "", "", 401),
    // Key before rights and options.
    ("POST", "/locks/a//b?x=1", "reader", "short", "{", 400),
    ("DELETE", "/admin/locks/..", "reader", "", "", 400),
    // Rights before options.
    ("POST", "/locks/k?x=1", "reader", "short", "{", 403),
    ("PUT", "/locks/k/refresh?x=1", "reader", "", "{", 403),
    ("DELETE", "/locks/k?x=1", "reader", "", "{", 403),
    ("GET", "/locks/k?x=1", "admin", "short", "", 403),
    ("GET", "/locks?limit=0", "locker", "", "", 403),
    ("DELETE", "/admin/locks/k?x=1", "locker", "", "", 403),
];

#[tokio::test]
async fn refusals_come_in_their_order_and_cost_no_store_call() {
    // A store call would be told as 503.
    let http = Lockkeeper::without_store(&everybody()).await;
    for (method, path, secret, token, body, status) in REFUSED {
        let mut http = http.http.clone();
        if !secret.is_empty() {
            http = http.bearer(secret);
        }
        if !token.is_empty() {
            http = http.token(token);
        }
        let answer = http.send(method, path, body).await;
        assert_eq!(answer.status, status, "{method} {path}: {answer:?}");
        assert!(status != 400 || answer.told().1 == "invalid_key", "{method} {path}: {answer:?}");
    }
}

#[tokio::test]
async fn a_refused_option_costs_no_store_call() {
    let http = Lockkeeper::without_store("").await;
    let long = "x".repeat(40_000);
    for (method, path, token, body, status) in [
        ("POST", "/locks/k", "short", "", 400),
        ("POST", "/locks/k", TOKEN, r#"{"token":"a-token-of-another-2"}"#, 400),
        ("POST", "/locks/k", TOKEN, r#"{"ttl_ms":1}"#, 400),
        ("POST", "/locks/k", TOKEN, r#"{"wait_ms":-1}"#, 400),
        ("POST", "/locks/k", TOKEN, r#"{"owner":7}"#, 400),
        ("POST", "/locks/k", TOKEN, r#"{"ttl":7}"#, 400),
        ("POST", "/locks/k?ttl_ms=7", TOKEN, "", 400),
        ("POST", "/locks/k", TOKEN, &long, 413),
        ("PUT", "/locks/k/refresh", "", "", 400),
        ("PUT", "/locks/k/refresh", TOKEN, r#"{"ttl_ms":1}"#, 400),
        ("PUT", "/locks/k/refresh", TOKEN, &long, 413),
        ("DELETE", "/locks/k", "", "", 400),
        ("DELETE", "/locks/k?x=1", TOKEN, "", 400),
        ("GET", "/locks/k?x=1", OTHER, "", 400),
        ("GET", "/locks/k", "short", "", 400),
        ("GET", "/locks?limit=0", "", "", 400),
        ("DELETE", "/admin/locks/k?x=1", "", "", 400),
    ] {
        let http = if token.is_empty() { http.http.clone() } else { http.token(token) };
        let answer = http.send(method, path, body).await;
        assert_eq!(answer.status, status, "{method} {path}: {answer:?}");
    }
}
