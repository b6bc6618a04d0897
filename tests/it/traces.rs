//! The trace of a request, in the log.

use crate::support::{PATIENCE, Process, eventually};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";
const TOKEN: &str = "token-in-no-trace";

#[tokio::test(flavor = "multi_thread")]
async fn the_log_has_the_trace_id_of_a_valid_traceparent_only() {
    let directory = tempfile::tempdir().unwrap();
    let service = Process::start(&format!("embedded:{}", directory.path().display()), &[]);
    let http = service.http().token(TOKEN);
    let traced = http.with("traceparent", &format!("00-{TRACE}-{PARENT}-01"));
    assert_eq!(traced.post("/locks/traced", "").await.status, 201);
    let untraced = http.with("traceparent", &format!("00-{TRACE}-{}-01", "0".repeat(16)));
    assert_eq!(untraced.post("/locks/untraced", "").await.status, 201);
    let line = logged(&service, "traced").await;
    assert!(line.contains(&format!("\"trace_id\":\"{TRACE}\"")), "{line}");
    let line = logged(&service, "untraced").await;
    assert!(!line.contains("trace_id"), "{line}");
}

/// The log line of the key's grant.
async fn logged(service: &Process, key: &str) -> String {
    let named = format!("\"lock.key\":\"{key}\"");
    eventually(PATIENCE, async || {
        service.log().lines().find(|line| line.contains(&named)).map(str::to_owned)
    })
    .await
}
