//! Who was refused, and who called, in the log.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::api::{TOKEN, api_keys};
use crate::support::{Checked, PATIENCE, Process, eventually};

/// A service with two API keys that logs to the test.
fn start(variables: &[(&str, &str)]) -> (Process, tempfile::TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let settings = directory.path().join("lockkeeper.toml");
    let keys =
        api_keys(&[("shop", r#"["shop/"]"#, r#"["acquire"]"#), ("all", r#"[""]"#, r#"["read"]"#)]);
    std::fs::write(&settings, keys).unwrap();
    let store = format!("embedded:{}", directory.path().join("data").display());
    let arguments = ["--store", &store, "--config", settings.to_str().unwrap()];
    (Process::start_with(&arguments, variables), directory)
}

/// The lines of the log that hold all of these, once there are some.
async fn lines(service: &Process, words: &[&str]) -> Vec<String> {
    eventually(PATIENCE, async || {
        let log = service.log();
        let found = log.lines().filter(|line| words.iter().all(|word| line.contains(word)));
        let found: Vec<_> = found.map(str::to_owned).collect();
        (!found.is_empty()).then_some(found)
    })
    .await
}

#[tokio::test]
async fn a_refusal_by_key_or_rights_is_a_warning_with_the_address() {
    let (service, _directory) = start(&[]);
    let http = Checked(service.http());
    let shop = http.bearer("shop").token(TOKEN);
    for (id, answer, words) in [
        ("one", http.with("X-Request-Id", "one").get("/locks/a").await, ["unauthenticated", "GET"]),
        (
            "two",
            http.bearer("guess").with("X-Request-Id", "two").get("/locks").await,
            ["unauthenticated", "/locks"],
        ),
        (
            "three",
            shop.with("X-Request-Id", "three").post("/locks/other", "").await,
            ["\"caller\":\"key of shop\"", "/locks/other"],
        ),
        (
            "four",
            shop.with("X-Request-Id", "four").delete("/admin/locks/shop/a").await,
            ["\"caller\":\"key of shop\"", "DELETE"],
        ),
    ] {
        assert!(matches!(answer.status, 401 | 403), "{answer:?}");
        let line = lines(&service, &[&format!("\"request_id\":\"{id}\"")]).await;
        assert_eq!(line.len(), 1, "{line:?}");
        for word in words.into_iter().chain(["WARN", "\"client.address\":\"127.0.0.1\""]) {
            assert!(line[0].contains(word), "{line:?} has no {word}");
        }
        assert!(!line[0].contains("guess") && !line[0].contains(TOKEN), "{line:?}");
    }
}

#[tokio::test]
async fn many_refusals_are_a_few_lines_and_the_number_of_the_rest() {
    let (service, _directory) = start(&[]);
    let http = Checked(service.http());
    let guess = "GET /locks HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer guess\r\n";
    let last = format!("{guess}Connection: close\r\n\r\n");
    let guesses = format!("{}{last}", format!("{guess}\r\n").repeat(199));
    let mut stream = TcpStream::connect(http.0.address).await.unwrap();
    stream.write_all(guesses.as_bytes()).await.unwrap();
    let mut answers = String::new();
    stream.read_to_string(&mut answers).await.unwrap();
    assert_eq!(answers.matches("HTTP/1.1 401 ").count(), 200);
    // The rest is told by a later refusal.
    let later = AtomicUsize::new(0);
    let left_out = eventually(PATIENCE, async || {
        let log = service.log();
        let refused = log.lines().filter(|line| line.contains("request refused")).count();
        let numbers = log.lines().filter_map(|line| line.split_once("\"left_out\":"));
        let numbers = numbers.map(|(_, rest)| {
            rest.split(|letter: char| !letter.is_ascii_digit())
                .next()
                .unwrap()
                .parse::<usize>()
                .unwrap()
        });
        let left_out: usize = numbers.sum();
        if refused + left_out == 200 + later.load(Ordering::Relaxed) {
            return Some((refused, left_out));
        }
        http.get("/locks").await;
        later.fetch_add(1, Ordering::Relaxed);
        None
    })
    .await;
    assert!(left_out.1 > 0, "a line for each: {left_out:?}");
}

#[tokio::test]
async fn a_line_of_the_log_has_the_address_that_a_trusted_proxy_names() {
    for (trusted, address) in [("", "127.0.0.1"), ("127.0.0.0/8 ::1", "198.51.100.7")] {
        let (service, _directory) = start(&[("LOCKKEEPER_TRUSTED_PROXIES", trusted)]);
        let http = Checked(service.http()).with("X-Forwarded-For", "203.0.113.9, 198.51.100.7");
        let shop = http.bearer("shop");
        assert_eq!(
            shop.with("X-Request-Id", "granted").post("/locks/shop/a", "").await.status,
            201
        );
        assert_eq!(shop.with("X-Request-Id", "refused").post("/locks/other", "").await.status, 403);
        for id in ["granted", "refused"] {
            let line = lines(&service, &[&format!("\"request_id\":\"{id}\"")]).await;
            assert!(line[0].contains(&format!("\"client.address\":\"{address}\"")), "{line:?}");
        }
    }
}

#[tokio::test]
async fn text_of_a_client_forges_no_field_of_the_text_log() {
    let (service, _directory) = start(&[("LOCKKEEPER_LOG_FORMAT", "text")]);
    let http = Checked(service.http()).bearer("shop").with("X-Request-Id", "a\"%20op=\"x");
    let key = "shop/x%20outcome=%22ok%22%20caller=%22admin%22%E2%80%A8second%E2%80%AEline";
    assert_eq!(http.post(&format!("/locks/{key}"), r#"{"owner":"a\" b=\"c"}"#).await.status, 201);
    let line = &lines(&service, &["outcome=\"granted\""]).await[0];
    for part in [
        r#"lock.key="shop/x outcome=\"ok\" caller=\"admin\"\u{2028}second\u{202e}line""#,
        r#"lock.owner="a\" b=\"c""#,
        r#"caller="key of shop""#,
        r#"request_id="a\"%20op=\"x""#,
    ] {
        assert!(line.contains(part), "{line} has no {part}");
    }
}
