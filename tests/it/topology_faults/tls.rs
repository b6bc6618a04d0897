//! Sentinels and a Cluster that speak TLS, as do the nodes that they name.

use crate::redis_faults::{LONG, PATIENCE, acquire};
use crate::support::certificates::Certificates;
use crate::support::fleet::{MASTER, data};
use crate::support::redis::free_port;
use crate::support::{Process, Redis, eventually};

const TOKEN: &str = "token-of-the-client";

/// What a server needs for TLS on this port.
fn tls(certificates: &Certificates, port: u16) -> [[String; 2]; 5] {
    [
        ["tls-port".to_owned(), port.to_string()],
        ["tls-cert-file".to_owned(), certificates.path("server.pem")],
        ["tls-key-file".to_owned(), certificates.path("server.key")],
        ["tls-ca-cert-file".to_owned(), certificates.path("ca.pem")],
        ["tls-auth-clients".to_owned(), "no".to_owned()],
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

async fn granted(url: &str, certificates: &Certificates) {
    let process = Process::start(url, &[("SSL_CERT_FILE", &certificates.path("ca.pem"))]);
    let http = process.http();
    eventually(PATIENCE, async || {
        (acquire(&http, "trusted", TOKEN, LONG).await.status == 201).then_some(())
    })
    .await;
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
