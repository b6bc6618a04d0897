//! What is a key in a path, and what is none.

use crate::api::{Lockkeeper, TOKEN};

#[tokio::test]
async fn a_key_is_the_rest_of_the_path_percent_decoded_once() {
    let http = Lockkeeper::start().await;
    let longest = "x".repeat(512);
    let accents = "%C3%A9".repeat(256);
    for (path, key) in [
        ("a", "a"),
        ("order:7", "order:7"),
        ("a/b/c", "a/b/c"),
        ("a%2Fb", "a/b"),
        ("a%2fb/c", "a/b/c"),
        ("%61", "a"),
        ("%C3%BC/%E6%97%A5%E6%9C%AC", "ü/日本"),
        ("ü/日本", "ü/日本"),
        ("{order}", "{order}"),
        ("%7Border%7D", "{order}"),
        ("{*key}", "{*key}"),
        ("a%2Bb", "a+b"),
        ("a%20b", "a b"),
        ("a%25b", "a%b"),
        ("a%252Fb", "a%2Fb"),
        ("a%3Fb%23c", "a?b#c"),
        ("a;b=c,d@e!$&'()*~", "a;b=c,d@e!$&'()*~"),
        ("...", "..."),
        (".a/..b", ".a/..b"),
        ("refreshed", "refreshed"),
        ("refresh/a", "refresh/a"),
        ("a-refresh", "a-refresh"),
        ("Refresh", "Refresh"),
        (&longest, &longest),
        (&accents, &"é".repeat(256)),
    ] {
        let status = http.get(&format!("/locks/{path}")).await;
        assert_eq!((status.status, status.text("key").as_str()), (200, key), "{path}");
    }
}

#[tokio::test]
async fn two_ways_to_write_a_key_are_one_key() {
    let http = Lockkeeper::start().await;
    for (one, other) in [("a/b", "a%2Fb"), ("%7Bd%7D", "{d}"), ("ü", "%c3%bc")] {
        assert_eq!(http.post(&format!("/locks/{one}"), "").await.status, 201, "{one}");
        assert_eq!(http.post(&format!("/locks/{other}"), "").await.status, 409, "{other}");
    }
    for (one, other) in [("e%2Bf", "e%20f"), ("g", "G"), ("%C3%A9", "e%CC%81"), ("h", "h%20")] {
        assert_eq!(http.post(&format!("/locks/{one}"), "").await.status, 201, "{one}");
        assert_eq!(http.post(&format!("/locks/{other}"), "").await.status, 201, "{other}");
    }
}

#[tokio::test]
async fn a_bad_key_is_refused_by_every_verb_without_a_store_call() {
    let http = Lockkeeper::without_store("").await.holding(TOKEN);
    let long = "x".repeat(513);
    let accents = format!("{}x", "%C3%A9".repeat(256));
    for path in [
        "",
        "%zz",
        "%",
        "a%2",
        "a%2/b",
        "%ff",
        "%C3",
        "%ED%A0%80",
        "..",
        ".",
        "a/../b",
        "a/./b",
        "%2e%2E",
        "a/%2e%2e",
        "/",
        "//",
        "a//b",
        "a/",
        "/a",
        "a%2F",
        "%2Fa",
        "a%2F%2Fb",
        "%00",
        "a%0Ab",
        "a%7Fb",
        "%C2%85",
        "%1b",
        &long,
        &accents,
    ] {
        for (method, path) in [
            ("POST", format!("/locks/{path}")),
            ("GET", format!("/locks/{path}")),
            ("DELETE", format!("/locks/{path}")),
            ("PUT", format!("/locks/{path}/refresh")),
            ("DELETE", format!("/admin/locks/{path}")),
        ] {
            let answer = http.send(method, &path, "").await;
            assert_eq!(answer.told(), (400, "invalid_key".into()), "{method} {path}");
        }
    }
}

#[tokio::test]
async fn a_post_to_a_refresh_is_refused_and_acquires_nothing() {
    let http = Lockkeeper::start().await.holding(TOKEN);
    http.post("/locks/a", "").await;
    for path in ["/locks/a/refresh", "/locks/a%2Frefresh", "/locks/refresh", "/locks/a/%72efresh"] {
        for method in ["POST", "GET", "DELETE", "PATCH", "OPTIONS"] {
            let answer = http.send(method, path, "").await;
            assert_eq!(answer.told(), (405, "method_not_allowed".into()), "{method} {path}");
            assert_eq!(answer.header("allow"), Some("PUT"), "{method} {path}");
        }
        let head = http.send("HEAD", path, "").await;
        assert_eq!((head.status, head.header("allow")), (405, Some("PUT")), "{path}");
    }
    assert_eq!(http.get("/locks").await.json()["locks"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_put_without_refresh_is_refused_and_changes_nothing() {
    let http = Lockkeeper::start().await.holding(TOKEN);
    for path in ["/locks/a", "/locks/a/b", "/locks/refresh/a", "/locks/a/refreshed", "/locks/"] {
        let answer = http.put(path, "").await;
        assert_eq!(answer.told(), (405, "method_not_allowed".into()), "{path}");
        assert_eq!(answer.header("allow"), Some("DELETE, GET, HEAD, POST"), "{path}");
    }
    assert_eq!(http.get("/locks").await.json()["locks"], serde_json::json!([]));
}

#[tokio::test]
async fn no_key_ends_in_refresh_however_it_is_reached() {
    let http = Lockkeeper::start().await.holding(TOKEN);
    for (method, path) in [
        ("PUT", "/locks/refresh/refresh"),
        ("PUT", "/locks/a/refresh/refresh"),
        ("DELETE", "/admin/locks/a/refresh"),
        ("DELETE", "/admin/locks/refresh"),
    ] {
        let answer = http.send(method, path, "").await;
        assert_eq!(answer.told(), (400, "invalid_key".into()), "{method} {path}");
    }
}

#[tokio::test]
async fn a_bare_plus_is_refused_because_clients_mean_two_keys_by_it() {
    let http = Lockkeeper::start().await.holding(TOKEN);
    for (method, path) in [
        ("POST", "/locks/a+b"),
        ("GET", "/locks/+"),
        ("DELETE", "/locks/a/+"),
        ("PUT", "/locks/a+b/refresh"),
        ("POST", "/hold/a+b"),
        ("DELETE", "/admin/locks/a+b"),
    ] {
        let answer = http.send(method, path, "").await;
        assert_eq!(answer.told(), (400, "invalid_key".into()), "{method} {path}");
        let detail = answer.text("detail");
        assert!(detail.contains("`%20`") && detail.contains("`%2B`"), "{detail}");
    }
    assert_eq!(http.get("/locks").await.json()["locks"], serde_json::json!([]));
}
