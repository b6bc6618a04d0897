//! The trace of a request, in the log and, with the feature `otel`, in a collector.

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

#[cfg(feature = "otel")]
mod collected {
    use std::sync::{Arc, Mutex};

    use axum::Router;
    use axum::body::Bytes;
    use axum::http::Uri;
    use tokio::net::TcpListener;
    use tokio::task::JoinSet;

    use crate::support::process::{BINARY, command};
    use crate::support::{PATIENCE, Process, eventually};
    use crate::traces::{PARENT, TOKEN, TRACE, logged};

    /// A collector that keeps what it is sent, until it is dropped.
    struct Collector {
        url: String,
        sent: Arc<Mutex<Vec<u8>>>,
        _serving: JoinSet<()>,
    }

    impl Collector {
        async fn start() -> Self {
            let sent = Arc::<Mutex<Vec<u8>>>::default();
            let kept = sent.clone();
            let keep = async move |uri: Uri, body: Bytes| {
                assert_eq!(uri.path(), "/v1/traces");
                kept.lock().unwrap().extend_from_slice(&body);
            };
            let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
            let url = format!("http://{}", listener.local_addr().unwrap());
            let mut serving = JoinSet::new();
            serving.spawn(async move {
                axum::serve(listener, Router::new().fallback(keep)).await.unwrap();
            });
            Self { url, sent, _serving: serving }
        }

        fn has(&self, what: &[u8]) -> bool {
            self.sent.lock().unwrap().windows(what.len()).any(|bytes| bytes == what)
        }
    }

    fn bytes(hex: &str) -> Vec<u8> {
        let byte = |at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
        (0..hex.len()).step_by(2).map(byte).collect()
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_collector_gets_a_span_for_each_request_and_its_store_call() {
        let collector = Collector::start().await;
        let directory = tempfile::tempdir().unwrap();
        let variables =
            [("OTEL_EXPORTER_OTLP_ENDPOINT", &*collector.url), ("OTEL_BSP_SCHEDULE_DELAY", "50")];
        let store = format!("embedded:{}", directory.path().display());
        let service = Process::start(&store, &variables);
        let http = service.http().token(TOKEN);
        let traced = http.with("traceparent", &format!("00-{TRACE}-{PARENT}-01"));
        assert_eq!(traced.post("/locks/traced", "").await.status, 201);
        for what in [
            "lockkeeper".as_bytes(),
            b"POST /locks/{key}",
            b"try_acquire",
            b"granted",
            b"http.response.status_code",
            &bytes(TRACE),
            &bytes(PARENT),
        ] {
            eventually(PATIENCE, async || collector.has(what).then_some(())).await;
        }
        let line = logged(&service, "traced").await;
        assert!(line.contains(&format!("\"trace_id\":\"{TRACE}\"")), "{line}");
        // A request without a trace begins one, which its line has too.
        assert_eq!(http.delete("/locks/traced").await.status, 204);
        let released = eventually(PATIENCE, async || {
            service.log().lines().find(|line| line.contains("\"release\"")).map(str::to_owned)
        })
        .await;
        let (_, rest) =
            released.split_once("\"trace_id\":\"").unwrap_or_else(|| panic!("{released}"));
        let own = bytes(&rest[..32]);
        // The last spans are sent when it ends.
        service.signal("TERM");
        assert_eq!(service.wait(), Some(0));
        assert!(collector.has(&own), "no span of the release");
        assert!(!collector.has(TOKEN.as_bytes()), "a token left the service");
    }

    #[test]
    fn a_collector_that_cannot_be_reached_without_tls_is_refused_in_one_sentence() {
        let mut serve = command(BINARY);
        serve.args(["serve", "--listen", "127.0.0.1:0"]);
        serve.env("OTEL_EXPORTER_OTLP_ENDPOINT", "https://user:s3cret@collector");
        let refused = serve.output().unwrap();
        assert_eq!(refused.status.code(), Some(1));
        let told = String::from_utf8_lossy(&refused.stderr);
        assert!(told.contains("OTEL_EXPORTER_OTLP_ENDPOINT has to begin with http://"), "{told}");
        assert!(!told.contains("s3cret") && told.lines().count() == 1, "{told}");
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn a_collector_that_is_not_there_costs_spans_only() {
        let directory = tempfile::tempdir().unwrap();
        let store = format!("embedded:{}", directory.path().display());
        let nobody = [("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")];
        let service = Process::start(&store, &nobody);
        let http = service.http().token(TOKEN);
        assert_eq!(http.post("/locks/a", "").await.status, 201);
        assert_eq!(http.delete("/locks/a").await.status, 204);
        service.signal("TERM");
        assert_eq!(service.wait(), Some(0));
    }
}
