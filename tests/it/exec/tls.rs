//! `https://`, as behind a proxy that speaks TLS for the service.

use std::net::SocketAddr;
use std::sync::Arc;

use rustls::ServerConfig;
use rustls::crypto::ring::default_provider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use crate::exec::{Ran, Stage, exec};
use crate::support::certificates::Certificates;
use crate::support::process::{command, succeeds};

#[tokio::test(flavor = "multi_thread")]
async fn https_reaches_a_service_whose_certificate_is_trusted_and_no_other() {
    let stage = Stage::new();
    let certificates = Certificates::make();
    let (address, _serving) = secured(stage.service.http().address, &certificates).await;
    for host in ["127.0.0.1", "localhost"] {
        let mut trusting = exec(&format!("https://{host}:{}", address.port()), &["key", "true"]);
        trusting.env("SSL_CERT_FILE", certificates.path("ca.pem"));
        let ran = Ran::of(trusting.output().unwrap());
        assert_eq!((ran.code, &*ran.err), (Some(0), ""));
    }
    // Of the same name, and of another one.
    let other = Certificates::make();
    let (strange, key) = (other.path("strange.pem"), other.path("strange.key"));
    self_signed(&strange, &key);
    for trusted in [other.path("ca.pem"), strange] {
        let mut doubting = exec(&format!("https://{address}"), &["-n", "key", "true"]);
        let ran = Ran::of(doubting.env("SSL_CERT_FILE", trusted).output().unwrap());
        assert_eq!(ran.code, Some(69));
        let told = "is not signed by an authority that is trusted here: name the file of that \
                    authority (--ca, LOCKKEEPER_CA)";
        assert!(ran.err.contains(told), "{}", ran.err);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fault_of_tls_that_people_can_mend_is_told_in_words() {
    let stage = Stage::new();
    let plain = format!("https://{}", stage.service.http().address);
    let ran = Ran::of(exec(&plain, &["-n", "key", "true"]).output().unwrap());
    assert!(ran.code == Some(69) && ran.err.contains("is it http://?"), "{ran:?}");

    // What `openssl req -x509` makes is the certificate of an authority.
    let certificates = Certificates::make();
    let (pem, key) = (certificates.path("server.pem"), certificates.path("server.key"));
    self_signed(&pem, &key);
    let (address, _serving) = secured(stage.service.http().address, &certificates).await;
    let mut trusting = exec(&format!("https://{address}"), &["-n", "key", "true"]);
    let ran = Ran::of(trusting.env("SSL_CERT_FILE", &pem).output().unwrap());
    assert!(ran.code == Some(69) && ran.err.contains("is that of an authority"), "{ran:?}");
}

/// Makes the certificate of an authority that is also that of a server on this machine.
fn self_signed(pem: &str, key: &str) {
    let words = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
    let mut openssl = command("openssl");
    openssl.args(words).args(["-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"]);
    succeeds(openssl.args(["-out", pem, "-keyout", key]));
}

/// Speaks TLS for a service, until it is dropped.
async fn secured(service: SocketAddr, certificates: &Certificates) -> (SocketAddr, JoinSet<()>) {
    let chain = CertificateDer::from_pem_file(certificates.path("server.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(certificates.path("server.key")).unwrap();
    let config = ServerConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![chain], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        let mut connections = JoinSet::new();
        while let Ok((client, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            connections.spawn(async move {
                // A client that does not trust us hangs up.
                let Ok(mut client) = acceptor.accept(client).await else { return };
                let mut service = TcpStream::connect(service).await.unwrap();
                let _ = copy_bidirectional(&mut client, &mut service).await;
            });
        }
    });
    (address, serving)
}
