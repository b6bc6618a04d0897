//! A log that is slow, broken or full costs log lines, and nothing else.

use std::fs::File;
use std::net::SocketAddr;
use std::process::{Child, Stdio};

use serde_json::{Value, json};
use tokio::task::JoinSet;
use tracing::{Event, Metadata, Subscriber, span};

use crate::support::process::{BINARY, command};
use crate::support::redis::free_port;
use crate::support::{Http, PATIENCE, Process, Service, eventually};

const LOST: &str = "lockkeeper_log_lines_dropped_total";
const TOKEN: &str = "token-of-the-holder";

#[tokio::test(flavor = "multi_thread")]
async fn a_log_whose_reader_is_gone_or_whose_disk_is_full_costs_lines_only() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    for log in [Stdio::from(writer), File::options().write(true).open("/dev/full").unwrap().into()]
    {
        let service = Logging::start(log).await;
        let http = service.http();
        for number in 0..20 {
            let path = format!("/locks/{number}?ttl=60s");
            let granted = http.post(&path, "").await;
            assert_eq!(granted.status, 201, "{granted:?}");
            let holder = http.token(&granted.text("token"));
            assert_eq!(holder.delete(&format!("/locks/{number}")).await.status, 204);
        }
        assert_eq!(http.token(TOKEN).delete("/locks/none").await.status, 409);
        eventually(PATIENCE, async || (http.figure(LOST).await >= 41.0).then_some(())).await;
        eventually(PATIENCE, async || {
            (http.figure("lockkeeper_http_connections").await <= 1.0).then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn no_text_of_a_client_ends_or_turns_around_a_line_of_the_log() {
    let odd = "\u{85}\u{9b}\u{7f}\u{61c}\u{200e}\u{2028}\u{2029}\u{202e}\u{2066}\u{feff}\u{e0041}";
    for format in ["json", "text"] {
        let directory = tempfile::tempdir().unwrap();
        let store = format!("embedded:{}", directory.path().display());
        let service = Process::start(&store, &[("LOCKKEEPER_LOG_FORMAT", format)]);
        let http = service.http();
        // Neither an owner nor a reason has control characters.
        let owner: String = odd.chars().filter(|letter| !letter.is_control()).collect();
        assert_eq!(http.post("/locks/a", &json!({ "owner": owner }).to_string()).await.status, 201);
        let reason = json!({ "reason": format!("ü{owner}") }).to_string();
        assert_eq!(http.send("DELETE", "/admin/locks/a", &reason).await.status, 200);
        service.logs("force_release").await;
        let log = service.log();
        assert!(!log.contains(|letter| odd.contains(letter)), "{format}: {log:?}");
        assert!(log.contains('ü'), "{format}: {log}");
        if format == "json" {
            let line = log.lines().find(|line| line.contains("force_release")).unwrap();
            let line: Value = serde_json::from_str(line).unwrap();
            assert_eq!(line["reason"], format!("ü{owner}"), "the text is the same");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_log_that_nobody_reads_stops_nobody() {
    const CLIENTS: usize = 8;
    const REFUSALS: usize = 1_500;
    let (reader, writer) = std::io::pipe().unwrap();
    let service = Logging::start(writer.into()).await;
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        let http = service.http().token(TOKEN);
        clients.spawn(async move {
            for _ in 0..REFUSALS {
                assert_eq!(http.delete("/locks/none").await.status, 409);
            }
        });
    }
    clients.join_all().await;
    let http = service.http();
    assert!(http.figure(LOST).await > 0.0, "all lines were kept");
    assert_eq!(http.post("/locks/a", "").await.status, 201);
    assert_eq!(http.get("/healthz").await.status, 200);
    // Not even its end waits for a reader.
    service.signal("TERM");
    assert_eq!(service.wait(), Some(0));
    drop(reader);
}

#[tokio::test]
async fn a_panic_after_a_grant_takes_the_lease_back_and_is_answered() {
    let directory = tempfile::tempdir().unwrap();
    let service = Service::embedded(&directory).await;
    let http = service.http();
    let _panics = tracing::subscriber::set_default(PanicsAtGrants);
    // If another test's thread has met the line of a grant before there was a subscriber, tracing
    // takes it for one that nobody wants, until it is asked again.
    eventually(PATIENCE, async || {
        tracing::callsite::rebuild_interest_cache();
        // Each is another key: a grant that went well is held.
        let answer = http.post(&format!("/locks/before/{}", fastrand::u64(..)), "").await;
        (answer.status == 500).then_some(())
    })
    .await;
    let answer = http.post("/locks/a?ttl=24h", "").await;
    assert_eq!(answer.told(), (500, "internal".into()), "{answer:?}");
    assert_eq!(answer.header("content-type"), Some("application/problem+json"));
    eventually(PATIENCE, async || {
        (http.get("/locks/a").await.field("held") == false).then_some(())
    })
    .await;
    // The client knows a token that it chose itself.
    let answer = http.token(TOKEN).post("/locks/b?ttl=24h", "").await;
    assert_eq!(answer.told(), (500, "internal".into()), "{answer:?}");
    assert_eq!(http.token(TOKEN).get("/locks/b").await.field("mine"), true);
    let counted = http.figure("lockkeeper_http_connections").await;
    assert!(counted <= 2.0, "{counted} connections");
}

/// A subscriber that panics where a grant is logged.
struct PanicsAtGrants;

impl Subscriber for PanicsAtGrants {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut granted = false;
        event.record(&mut |field: &tracing::field::Field, value: &dyn std::fmt::Debug| {
            granted |= field.name() == "outcome" && format!("{value:?}") == "\"granted\"";
        });
        assert!(!granted, "on purpose");
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// A service whose log goes elsewhere.
struct Logging {
    child: Child,
    address: SocketAddr,
    _directory: tempfile::TempDir,
}

impl Logging {
    async fn start(log: Stdio) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let address = format!("127.0.0.1:{}", free_port());
        let child = command(BINARY)
            .args(["serve", "--listen", &address, "--store"])
            .arg(format!("embedded:{}", directory.path().display()))
            .stderr(log)
            .spawn()
            .unwrap();
        let address: SocketAddr = address.parse().unwrap();
        let http = Http::new(address);
        eventually(PATIENCE, async || http.try_send("GET", "/readyz", "").await.ok()).await;
        Self { child, address, _directory: directory }
    }

    fn http(&self) -> Http {
        Http::new(self.address)
    }

    fn signal(&self, name: &str) {
        crate::support::process::signal(self.child.id(), name);
    }

    fn wait(mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for Logging {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
