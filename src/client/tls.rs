//! A connection with or without TLS. It trusts the system's authorities, or those in
//! `SSL_CERT_FILE` and `SSL_CERT_DIR`, or only those of a file.

use std::error::Error;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{
    AlertDescription, CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore,
    SignatureScheme,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::client::BoxError;
use crate::pem;

pub(super) trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

/// The name of a fault in webpki, whose error types are not public through rustls.
const CA_AS_LEAF: &str = "CaUsedAsEndEntity";

/// The authorities that a client trusts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Trust<'a> {
    System,
    /// Those in this file.
    Only(&'a Path),
    /// Every certificate is accepted: for the health check of the service on this machine. The
    /// certificate need not name this address, the request has no secret, and only its status is
    /// read.
    Unseen,
}

/// TLS with these authorities, and with the certificate in one file, whose private key is in
/// another. The error names the option.
pub(super) fn config(
    trust: Trust<'_>,
    own: Option<(&Path, &Path)>,
) -> Result<Arc<ClientConfig>, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider.clone());
    let config = config.with_safe_default_protocol_versions().map_err(|error| error.to_string())?;
    let config = match trust {
        Trust::System => config.with_root_certificates(system_authorities()?),
        Trust::Only(file) => {
            let roots = pem::read(file).and_then(|text| pem::authorities(file, &text));
            config.with_root_certificates(roots.map_err(|error| format!("--ca: {error}"))?)
        }
        Trust::Unseen => {
            let any = Arc::new(AnyCertificate(provider));
            config.dangerous().with_custom_certificate_verifier(any)
        }
    };
    let Some((file, key)) = own else { return Ok(Arc::new(config.with_no_client_auth())) };
    let shown = || {
        let chain = pem::certificates(file, &pem::read(file)?)?;
        let key = pem::private_key(key, &pem::read(key)?)?;
        config.with_client_auth_cert(chain, key).map_err(|error| error.to_string())
    };
    shown().map(Arc::new).map_err(|error| format!("--cert: {error}"))
}

/// Starts TLS on a connection; the certificate has to name `host`.
pub(super) async fn secured(
    config: Arc<ClientConfig>,
    stream: TcpStream,
    host: &str,
) -> Result<Box<dyn Transport>, BoxError> {
    let name = ServerName::try_from(host.to_owned())?;
    Ok(Box::new(TlsConnector::from(config).connect(name, stream).await?))
}

fn system_authorities() -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    match roots.is_empty() {
        true => Err("no trusted certificate authorities: set SSL_CERT_FILE".into()),
        false => Ok(roots),
    }
}

/// Returns whether an error is the answer of a service that lives and demands a client certificate.
pub(super) fn lives_without(error: &(dyn Error + 'static)) -> bool {
    let demand = rustls::Error::AlertReceived(AlertDescription::CertificateRequired);
    fault(error) == Some(&demand)
}

/// A fault of TLS that people can mend, in words.
pub(super) fn in_words(error: &(dyn Error + 'static)) -> Option<String> {
    let told = match fault(error)? {
        rustls::Error::InvalidMessage(_) => "no TLS is spoken there: is it http://?",
        // The second is of an authority with the name of a trusted one, and another key.
        rustls::Error::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        ) => {
            "its certificate is not signed by an authority that is trusted here: name the file of \
             that authority (--ca, LOCKKEEPER_CA)"
        }
        rustls::Error::InvalidCertificate(why) if format!("{why:?}").contains(CA_AS_LEAF) => {
            "its certificate is that of an authority: make it with `openssl req -x509 -addext \
             basicConstraints=critical,CA:FALSE`, or sign one with it"
        }
        _ => return None,
    };
    Some(told.to_owned())
}

/// The fault of TLS in an error.
fn fault<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a rustls::Error> {
    let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    let found = inner.and_then(|inner| inner.downcast_ref());
    found.or_else(|| fault(error.source()?))
}

/// Accepts every certificate whose key the service has.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
