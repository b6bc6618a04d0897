//! Web pages against a service without API keys: by the headers that browsers send. Real ones are
//! in `browser.rs`.

use crate::api::{Lockkeeper, api_keys};
use crate::support::Process;

/// What a page can have a browser send without asking the service first, and after rebinding all.
const REQUESTS: [(&str, &str); 6] = [
    ("POST", "/locks/deploy?ttl=24h"),
    ("POST", "/hold/deploy?wait=forever"),
    ("GET", "/locks"),
    ("GET", "/locks/deploy"),
    ("GET", "/metrics"),
    ("DELETE", "/admin/locks/deploy"),
];

#[tokio::test]
async fn a_page_of_another_origin_is_refused_and_changes_nothing() {
    let http = Lockkeeper::start().await;
    for (method, path) in REQUESTS {
        for (name, value) in [
            ("Sec-Fetch-Site", "cross-site"),
            ("Sec-Fetch-Site", "same-site"),
            ("Origin", "https://evil.example"),
            ("Origin", "http://localhost:1"),
            ("Origin", "null"),
        ] {
            let answer = http.with(name, value).send(method, path, "").await;
            assert_eq!(answer.told(), (403, "forbidden_origin".into()), "{method} {path} {value}");
        }
    }
    assert_eq!(http.get("/locks/deploy").await.field("held"), false);
}

#[tokio::test]
async fn a_name_that_a_page_has_pointed_at_this_machine_is_refused() {
    let http = Lockkeeper::start().await;
    let ask = async |method: &str, path: &str, host: &str| {
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\n\
             Sec-Fetch-Site: same-origin\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
        );
        http.raw(head.as_bytes()).await.told()
    };
    for (method, path) in REQUESTS {
        let told = ask(method, path, "evil.example:8080").await;
        assert_eq!(told, (403, "forbidden_origin".into()), "{method} {path}");
    }
    for host in ["localhost:5", "127.0.0.1:5", "[::1]:5", "LOCALHOST"] {
        assert_eq!(ask("GET", "/locks", host).await.0, 200, "{host}");
    }
    let http = Lockkeeper::with_settings("allowed_hosts = [\"locks.example\"]").await;
    assert_eq!(http.with("Origin", "http://evil.example").get("/locks").await.status, 403);
    let named = b"GET /locks HTTP/1.1\r\nHost: locks.example\r\nConnection: close\r\n\r\n";
    assert_eq!(http.raw(named).await.status, 200);
}

#[tokio::test]
async fn with_api_keys_the_key_is_what_counts() {
    let keys = api_keys(&[("root", r#"[""]"#, r#"["read"]"#)]);
    let http = Lockkeeper::with_settings(&keys).await;
    let page =
        http.with("Origin", "https://dashboard.example").with("Sec-Fetch-Site", "cross-site");
    assert_eq!(page.get("/locks").await.status, 401);
    assert_eq!(page.bearer("root").get("/locks").await.status, 200);
}

#[tokio::test]
async fn in_a_network_too_only_the_allowed_names_may_call() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("embedded:{}", directory.path().display());
    let anonymous = ("LOCKKEEPER_ALLOW_ANONYMOUS", "true");
    let request = b"GET /locks HTTP/1.1\r\nHost: lockkeeper:8080\r\nConnection: close\r\n\r\n";
    for (allowed, status) in [("lockkeeper other.example", 200), ("other.example", 403)] {
        let allowed = ("LOCKKEEPER_ALLOWED_HOSTS", allowed);
        let service = Process::start_on("0.0.0.0:0", &["--store", &store], &[anonymous, allowed]);
        let port = service.http().address.port();
        // The port may be published on the loopback of a machine with a browser.
        let answer = crate::support::raw::exchange(([127, 0, 0, 1], port).into(), request).await;
        assert_eq!(answer.status, status, "{allowed:?}");
    }
}
