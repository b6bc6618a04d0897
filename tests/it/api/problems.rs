//! What every refusal has in common, and those that belong to no verb.

use crate::api::{Lockkeeper, TOKEN, assert_members};

#[tokio::test]
async fn a_path_that_there_is_not_is_a_problem() {
    let http = Lockkeeper::start().await;
    for path in ["/nowhere", "/lock/k", "/locksmith", "/admin", "/admin/locks", "/healthz/", "//"] {
        for method in ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"] {
            let answer = http.send(method, path, "").await;
            assert_eq!(answer.told(), (404, "no_such_route".into()), "{method} {path}");
            assert_members(&answer, &["code", "detail", "title", "status", "type", "request_id"]);
        }
        let head = http.send("HEAD", path, "").await;
        assert_eq!((head.status, head.body.len()), (404, 0), "{path}");
    }
}

#[tokio::test]
async fn a_method_that_a_route_has_not_is_a_problem_that_names_the_others() {
    let http = Lockkeeper::start().await;
    let (reading, key) = ("GET, HEAD", "DELETE, GET, HEAD, POST");
    for (path, allow) in [
        ("/", reading),
        ("/healthz", reading),
        ("/readyz", reading),
        ("/metrics", reading),
        ("/openapi.yaml", reading),
        ("/docs", reading),
        ("/locks", key),
        ("/locks/refresh", "PUT"),
        ("/locks/", key),
        ("/locks/k", key),
        ("/locks/k/refresh", "PUT"),
        ("/admin/locks/", "DELETE"),
        ("/admin/locks/k", "DELETE"),
    ] {
        for method in ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"] {
            if allow.split(", ").any(|allowed| allowed == method) {
                continue;
            }
            let answer = http.send(method, path, "").await;
            assert_eq!(answer.told(), (405, "method_not_allowed".into()), "{method} {path}");
            assert_eq!(answer.header("allow"), Some(allow), "{method} {path}");
        }
    }
}

#[tokio::test]
async fn a_target_that_is_no_path_is_answered_as_well() {
    let http = Lockkeeper::start().await;
    for (request, status) in [
        ("OPTIONS * HTTP/1.1\r\n", 404),
        ("GET http://elsewhere/healthz HTTP/1.1\r\n", 200),
        ("GET http://elsewhere/nowhere HTTP/1.1\r\n", 404),
        ("CONNECT elsewhere:443 HTTP/1.1\r\n", 404),
    ] {
        let request = format!("{request}Host: localhost\r\nConnection: close\r\n\r\n");
        let answer = crate::support::raw::exchange(http.0.address, request.as_bytes()).await;
        assert_eq!(answer.status, status, "{request}");
        assert!(answer.header("x-request-id").is_some(), "{request}");
    }
}

#[tokio::test]
async fn a_request_id_is_echoed_if_it_can_be_and_made_otherwise() {
    let http = Lockkeeper::start().await;
    let longest = "x".repeat(128);
    for id in ["r", "0af7651916cd43dd-1", "!~\"{}<>", &longest] {
        for path in ["/healthz", "/nowhere", "/locks/k", "/locks/%zz"] {
            let answer = http.with("X-Request-Id", id).get(path).await;
            assert_eq!(answer.header("x-request-id"), Some(id), "{path}");
        }
    }
    for id in ["", "two words", "tab\there", "ümlaut", &format!("{longest}x")] {
        let answer = http.with("X-Request-Id", id).get("/nowhere").await;
        let made = answer.header("x-request-id").unwrap();
        assert_eq!((made.len(), made != id), (36, true), "{id:?}");
    }
    let (one, other) = (http.get("/").await, http.get("/").await);
    assert_ne!(one.header("x-request-id"), other.header("x-request-id"));
}

#[tokio::test]
async fn a_body_has_32768_bytes_at_most() {
    let http = Lockkeeper::start().await.holding(TOKEN);
    let body = |length: usize| format!("{{{}}}", " ".repeat(length - 2));
    assert_eq!(http.post("/locks/k", &body(32_768)).await.status, 201);
    for (method, path) in
        [("POST", "/locks/k"), ("PUT", "/locks/k/refresh"), ("DELETE", "/locks/k")]
    {
        let answer = http.send(method, path, &body(32_769)).await;
        assert_eq!(answer.told(), (413, "body_too_large".into()), "{method}");
    }
    let chunked = format!("8001\r\n{}\r\n0\r\n\r\n", " ".repeat(32_769));
    let head = "POST /locks/k HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n";
    let request = format!("{head}Transfer-Encoding: chunked\r\n\r\n{chunked}");
    assert_eq!(http.raw(request.as_bytes()).await.told(), (413, "body_too_large".into()));
    let claimed = format!("{head}Content-Length: 100000000\r\n\r\n{}", " ".repeat(32_769));
    assert_eq!(http.raw(claimed.as_bytes()).await.told(), (413, "body_too_large".into()));
    assert_eq!(http.get("/locks/k").await.field("held"), true);
}

#[tokio::test]
async fn a_head_that_is_too_large_gets_a_bare_status() {
    let http = Lockkeeper::start().await;
    let head = "GET /locks/k HTTP/1.1\r\nHost: localhost\r\nX-Long: ";
    // Not a byte more than is read, or the system might answer the rest with a reset.
    let long = format!("{head}{}", "x".repeat(16_384 - head.len()));
    let answer = http.raw(long.as_bytes()).await;
    assert_eq!((answer.status, answer.body.len()), (431, 0));
}

#[tokio::test]
async fn a_path_that_is_too_long_gets_a_bare_status() {
    let http = Lockkeeper::with_settings("[limits]\nhead_bytes = 131072").await;
    let request = format!("GET /locks/{} HTTP/1.1\r\nHost: localhost\r\n\r\n", "x".repeat(65_535));
    let answer = http.raw(request.as_bytes()).await;
    assert_eq!((answer.status, answer.body.len()), (414, 0));
}

#[tokio::test]
async fn bytes_that_are_no_http_get_a_bare_status() {
    let http = Lockkeeper::start().await;
    for request in [
        "GET /locks/a b HTTP/1.1\r\n\r\n",
        "GET /locks/<k> HTTP/1.1\r\n\r\n",
        "\x16\x03\x01\r\n\r\n",
    ] {
        let answer = crate::support::raw::exchange(http.0.address, request.as_bytes()).await;
        assert_eq!((answer.status, answer.body.len()), (400, 0), "{request:?}");
    }
}

#[tokio::test]
async fn a_store_that_is_away_is_told_with_what_became_of_the_request() {
    let http = Lockkeeper::without_store("").await;
    let made = http.post("/locks/k", "").await;
    assert_eq!(made.text("outcome"), "not_acquired", "a token that nobody has");
    let http = http.holding(TOKEN);
    for (method, path, outcome) in [
        // It may hold the key from before.
        ("POST", "/locks/k", Some("unknown")),
        ("PUT", "/locks/k/refresh", Some("unknown")),
        ("DELETE", "/locks/k", Some("unknown")),
        ("DELETE", "/admin/locks/k", Some("unknown")),
        ("GET", "/locks/k", None),
        ("GET", "/locks", None),
    ] {
        let answer = http.send(method, path, "").await;
        assert_eq!(answer.told(), (503, "store_unavailable".into()), "{method} {path}");
        assert_eq!(answer.field("outcome").as_str(), outcome, "{method} {path}");
        assert_eq!(answer.header("retry-after"), Some("1"), "{method} {path}");
        let members = ["code", "detail", "outcome", "title", "status", "type", "request_id"];
        let members = members.iter().filter(|&&name| outcome.is_some() || name != "outcome");
        assert_members(&answer, &members.copied().collect::<Vec<_>>());
    }
}
