//! Redis that speaks TLS and asks for a client certificate, as it does by default, in each
//! arrangement.

use std::time::Duration;

use crate::redis_faults::{LONG, PATIENCE, acquire, unavailable};
use crate::support::certificates::Certificates;
use crate::support::fleet::{MASTER, data};
use crate::support::redis::free_port;
use crate::support::{Process, Redis, eventually};

const TOKEN: &str = "token-of-the-client";

/// What a server needs for TLS on this port.
fn tls(certificates: &Certificates, port: u16) -> [[String; 2]; 4] {
    [
        ["tls-port".to_owned(), port.to_string()],
        ["tls-cert-file".to_owned(), certificates.path("server.pem")],
        ["tls-key-file".to_owned(), certificates.path("server.key")],
        ["tls-ca-cert-file".to_owned(), certificates.path("ca.pem")],
    ]
}

/// A server with TLS on a port beside its own, and that port.
fn server(certificates: &Certificates, arguments: &[&str]) -> (Redis, u16) {
    let port = free_port();
    let mut all: Vec<String> = arguments.iter().map(|&text| text.to_owned()).collect();
    for [name, text] in tls(certificates, port) {
        all.extend([format!("--{name}"), text]);
    }
    (data(&all.iter().map(String::as_str).collect::<Vec<_>>()), port)
}

/// A service that trusts the authority and shows the certificate of this name.
fn showing(url: &str, certificates: &Certificates, name: &str) -> Process {
    let [ca, cert, key] =
        ["ca.pem", &format!("{name}.pem"), &format!("{name}.key")].map(|it| certificates.path(it));
    let variables = [
        ("LOCKKEEPER_STORE", url),
        ("LOCKKEEPER_REDIS_TLS_CA", &*ca),
        ("LOCKKEEPER_REDIS_TLS_CERTIFICATE", &cert),
        ("LOCKKEEPER_REDIS_TLS_KEY", &key),
        // New nodes do not vote for so long.
        ("LOCKKEEPER_REDLOCK_LONGEST_LEASE", "1s"),
        ("LOCKKEEPER_TTL_DEFAULT", "1s"),
    ];
    Process::start_with(&[], &variables)
}

async fn grants(process: &Process, ttl: Duration) {
    let http = process.http();
    eventually(PATIENCE, async || {
        (acquire(&http, "trusted", TOKEN, ttl).await.status == 201).then_some(())
    })
    .await;
}

async fn granted(url: &str, certificates: &Certificates) {
    certificates.sign("client", "2");
    grants(&showing(url, certificates, "client"), LONG).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn redlock_is_reached_on_nodes_that_ask_for_a_certificate() {
    let certificates = Certificates::make();
    let nodes: [_; 3] = std::array::from_fn(|_| server(&certificates, &[]));
    let urls = nodes.each_ref().map(|(_, port)| format!("rediss://localhost:{port}"));
    certificates.sign("client", "2");
    let process = showing(&urls.join(" "), &certificates, "client");
    grants(&process, Duration::from_secs(1)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_that_redis_refuses_is_503_until_another_is_in_its_place() {
    let (certificates, stranger) = (Certificates::make(), Certificates::make());
    let (node, port) = server(&certificates, &[]);
    let install = |from: &Certificates, name: &str| {
        for end in ["pem", "key"] {
            let new = certificates.path("new");
            std::fs::copy(from.path(&format!("{name}.{end}")), &new).unwrap();
            std::fs::rename(new, certificates.path(&format!("shown.{end}"))).unwrap();
        }
    };
    install(&stranger, "server");
    let process = showing(&format!("rediss://localhost:{port}"), &certificates, "shown");
    process.logs("cannot connect; retrying").await;
    let refused = acquire(&process.http(), "trusted", TOKEN, LONG).await;
    assert_eq!(refused.told(), unavailable());
    certificates.sign("client", "2");
    install(&certificates, "client");
    grants(&process, LONG).await;
    assert_eq!(node.run::<String>("GET lock:trusted"), TOKEN);
    process.logs("\"redis_certificates.changed\":true").await;
    assert!(!process.log().contains("PRIVATE"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_with_tls_is_reached_on_the_ports_that_it_names_for_it() {
    let certificates = Certificates::make();
    let (node, port) = server(&certificates, &["--cluster-enabled", "yes", "--tls-cluster", "yes"]);
    node.run::<()>("CLUSTER ADDSLOTSRANGE 0 16383");
    granted(&format!("rediss-cluster://localhost:{port}"), &certificates).await;
    assert_eq!(node.run::<String>("GET lock:trusted"), TOKEN);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_master_that_sentinels_with_tls_name_is_reached_with_tls() {
    let certificates = Certificates::make();
    let (node, port) = server(&certificates, &[]);
    let here = free_port();
    let mut settings =
        format!("sentinel monitor {MASTER} 127.0.0.1 {port} 1\ntls-replication yes\n");
    for [name, text] in tls(&certificates, here) {
        settings.push_str(&format!("{name} {text}\n"));
    }
    let _sentinel = Redis::sentinel(&settings);
    granted(&format!("rediss-sentinel://127.0.0.1:{here}/{MASTER}"), &certificates).await;
    assert_eq!(node.run::<String>("GET lock:trusted"), TOKEN);
}
