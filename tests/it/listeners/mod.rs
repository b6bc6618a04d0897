//! The places where the service listens: TLS, unix sockets, and a place for operators.

mod admin;
mod files;
mod renewal;
mod tls;
mod unix;

use std::process::{Command, Output};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::support::Process;
use crate::support::certificates::Certificates;
use crate::support::process::{BINARY, command};

/// A service with TLS, as a process of its own.
struct Secured {
    certificates: Certificates,
    service: Process,
    _directory: TempDir,
}

impl Secured {
    fn start(variables: &[(&str, &str)]) -> Self {
        Self::with(Certificates::make(), variables)
    }

    fn with(certificates: Certificates, variables: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = format!("embedded:{}", directory.path().display());
        let [certificate, key, ca] = ["server.pem", "server.key", "ca.pem"];
        let [certificate, key, ca] = [certificate, key, ca].map(|name| certificates.path(name));
        let mut all = vec![
            ("LOCKKEEPER_TLS_CERTIFICATE", certificate.as_str()),
            ("LOCKKEEPER_TLS_KEY", key.as_str()),
        ];
        for (name, value) in variables {
            all.push((*name, if *value == "ca.pem" { ca.as_str() } else { *value }));
        }
        let service = Process::start(&store, &all);
        Self { certificates, service, _directory: directory }
    }

    /// curl, which trusts the authority of the test.
    fn curl(&self, path: &str) -> Command {
        let mut curl = command("curl");
        curl.args(["-sS", "--max-time", "20", "--cacert", &self.certificates.path("ca.pem")]);
        curl.arg(format!("{}{path}", self.service.url()));
        curl
    }

    /// A TLS connection that offers these protocols.
    async fn connect(&self, protocols: &[&[u8]]) -> TlsStream<TcpStream> {
        connect(self.service.address(), &self.certificates, protocols).await
    }
}

/// The command line without any variable.
fn lockkeeper(arguments: &[&str]) -> Command {
    let mut started = command("timeout");
    started.args(["20", BINARY]).args(arguments);
    started
}

/// What a program has printed.
fn printed(output: &Output) -> String {
    String::from_utf8_lossy(&[&*output.stdout, &*output.stderr].concat()).into_owned()
}

/// A TLS connection to a service that offers these protocols.
async fn connect(
    address: std::net::SocketAddr,
    certificates: &Certificates,
    protocols: &[&[u8]],
) -> TlsStream<TcpStream> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(certificates.path("ca.pem")).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|name| name.to_vec()).collect();
    let stream = TcpStream::connect(address).await.unwrap();
    stream.set_nodelay(true).unwrap();
    let name = ServerName::from(address.ip());
    TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
}
