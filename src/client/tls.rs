//! A connection with or without TLS. It trusts the system's authorities, or those in
//! `SSL_CERT_FILE` and `SSL_CERT_DIR`, or only those of a file.

use std::error::Error;
use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    AlertDescription, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::client::BoxError;
use crate::pem;

/// The transport of HTTP.
pub(super) trait Transport: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Transport for T {}

/// The authorities that a client trusts, and its own certificate.
#[derive(Clone, Debug, Default)]
pub(crate) struct Trust {
    authorities: Authorities,
    own: Option<Arc<OwnCertificate>>,
}

#[derive(Clone, Debug, Default)]
enum Authorities {
    #[default]
    System,
    Only(RootCertStore),
    /// Every certificate is accepted, whatever it names.
    Unseen,
}

#[derive(Debug)]
struct OwnCertificate {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Trust {
    /// Trusts only the authorities in `file`. The error says what is wrong with it.
    pub(crate) fn only(mut self, file: &Path) -> Result<Self, String> {
        self.authorities = Authorities::Only(pem::authorities(file, &pem::read(file)?)?);
        Ok(self)
    }

    /// Trusts every certificate: for the health check of the service on this machine. The
    /// certificate need not name this address, the request has no secret, and only its status is
    /// read.
    pub(crate) fn unseen() -> Self {
        Self { authorities: Authorities::Unseen, own: None }
    }

    /// Shows the certificate in `file` to the service; `key` has its private key. The error says what
    /// is wrong with one of them.
    pub(crate) fn showing(mut self, file: &Path, key: &Path) -> Result<Self, String> {
        let chain = pem::certificates(file, &pem::read(file)?)?;
        let key = pem::private_key(key, &pem::read(key)?)?;
        self.own = Some(Arc::new(OwnCertificate { chain, key }));
        Ok(self)
    }

    /// Starts TLS on a connection; a certificate has to name `host`.
    pub(super) async fn secured(
        &self,
        stream: TcpStream,
        host: &str,
    ) -> Result<Box<dyn Transport>, BoxError> {
        let config = ClientConfig::builder_with_provider(provider())
            .with_safe_default_protocol_versions()?;
        let config = match &self.authorities {
            Authorities::System => config.with_root_certificates(system_authorities()?),
            Authorities::Only(roots) => config.with_root_certificates(roots.clone()),
            Authorities::Unseen => {
                let any = Arc::new(AnyCertificate(provider()));
                config.dangerous().with_custom_certificate_verifier(any)
            }
        };
        let config = match &self.own {
            None => config.with_no_client_auth(),
            Some(own) => config.with_client_auth_cert(own.chain.clone(), own.key.clone_key())?,
        };
        let name = ServerName::try_from(host.to_owned())?;
        Ok(Box::new(TlsConnector::from(Arc::new(config)).connect(name, stream).await?))
    }
}

fn system_authorities() -> Result<RootCertStore, BoxError> {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    roots.add_parsable_certificates(found.certs);
    match roots.is_empty() {
        true => Err("no trusted certificate authorities: set SSL_CERT_FILE".into()),
        false => Ok(roots),
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}

/// Returns whether an error is the answer of a service that lives and demands a client certificate.
pub(super) fn lives_without(error: &(dyn Error + 'static)) -> bool {
    let mut cause = Some(error);
    while let Some(error) = cause {
        let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        let tls = inner.and_then(|inner| inner.downcast_ref::<rustls::Error>());
        if let Some(rustls::Error::AlertReceived(AlertDescription::CertificateRequired)) = tls {
            return true;
        }
        cause = error.source();
    }
    false
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
