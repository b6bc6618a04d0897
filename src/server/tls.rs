//! TLS: the service's certificate, read at the start and again while it serves, and the handshake.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use rustls::server::{Acceptor, WebPkiClientVerifier};
use rustls::{Error, ServerConfig};
use sha2::{Digest, Sha256};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::Instant;
use tokio_rustls::LazyConfigAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;
use x509_cert::certificate::{CertificateInner, Raw};
use x509_cert::der::{DateTime, Decode};

use crate::lock::error::chain;
use crate::lock::time::wall_clock_micros;
use crate::metrics::SecondsGauge;
use crate::pem;
use crate::server::socket::{LEAST_SENT, Socket, first_byte};

const HTTP_1_1: &[u8] = b"http/1.1";

/// The first byte of a handshake.
const HANDSHAKE: u8 = 22;

/// The time before its end from which on a certificate is due for renewal.
const RENEWAL: Duration = Duration::from_secs(14 * 86_400);

/// The pause between log lines about handshakes that failed: anybody can cause them.
const NOTICE_EVERY: Duration = Duration::from_secs(10);

/// The answer to HTTP without TLS.
const PLAIN_HTTP: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\n\
    content-length: 40\r\nconnection: close\r\n\r\nthis address speaks TLS: call https://\r\n";

/// The most bytes of a request without TLS that are read before the connection is closed: a close
/// with unread bytes could destroy the answer on its way.
const MOST_PLAIN: u64 = 64 * 1024;

/// A connection with or without TLS.
pub(super) type Transport = Either<Socket, Box<TlsStream<Socket>>>;

pub(super) fn socket(transport: &Transport) -> &Socket {
    match transport {
        Either::Left(socket) => socket,
        Either::Right(stream) => stream.get_ref().0,
    }
}

#[derive(Clone, Debug)]
pub(crate) struct TlsFiles {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    pub(crate) client_ca: Option<PathBuf>,
}

/// The certificate in use. Each handshake takes the current one; open connections go on.
pub(crate) struct Certificate {
    files: TlsFiles,
    current: RwLock<Loaded>,
    /// The metric of its end.
    end_metric: SecondsGauge,
    noticed: Mutex<Option<Instant>>,
}

/// What the files have.
#[derive(Clone)]
pub(super) struct Loaded {
    config: Arc<ServerConfig>,
    /// The digest of the files' bytes.
    digest: [u8; 32],
    end: DateTime,
}

impl Certificate {
    /// Reads and checks the files. The error names the setting and the remedy.
    pub(super) fn load(files: TlsFiles, end_metric: SecondsGauge) -> Result<Self, String> {
        let loaded = files.load()?;
        end_metric.set(seconds(loaded.end) as f64);
        Ok(Self { files, current: RwLock::new(loaded), end_metric, noticed: Mutex::default() })
    }

    /// Reads the files again. The error says that they cannot be used, or do not fit each other.
    pub(super) fn read(&self) -> Result<Loaded, String> {
        self.files.load()
    }

    /// Uses what was read for new connections; returns whether it differs.
    pub(super) fn replace(&self, loaded: Loaded) -> bool {
        {
            let mut current = self.current.write().unwrap_or_else(PoisonError::into_inner);
            if current.digest == loaded.digest {
                return false;
            }
            self.end_metric.set(seconds(loaded.end) as f64);
            *current = loaded;
        }
        self.remind();
        true
    }

    pub(super) fn end(&self) -> DateTime {
        self.current().end
    }

    /// Warns that the certificate ends soon.
    pub(super) fn remind(&self) {
        let end = self.end();
        if seconds(end).saturating_sub(now()) < RENEWAL.as_secs() {
            let file = self.files.certificate.display();
            tracing::warn!(certificate = %file, %end, "the TLS certificate ends soon");
        }
    }

    fn current(&self) -> Loaded {
        self.current.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Makes a connection of a new client secure.
    pub(super) async fn secure(&self, socket: Socket) -> io::Result<Transport> {
        match first_byte(&socket).await? {
            Some(HANDSHAKE) => (),
            Some(letter) if letter.is_ascii_uppercase() => {
                refuse_plain_http(socket).await?;
                return Err(io::Error::other("HTTP without TLS"));
            }
            _ => return Err(io::ErrorKind::UnexpectedEof.into()),
        }
        let start = LazyConfigAcceptor::new(Acceptor::default(), socket).await?;
        let mut stream = start.into_stream(self.current().config).await?;
        // What waits here for the client is no progress.
        stream.get_mut().1.set_buffer_limit(Some(LEAST_SENT));
        Ok(Either::Right(Box::new(stream)))
    }

    /// Logs that a handshake failed, but not for each connection.
    pub(super) fn notice(&self, address: IpAddr, error: &io::Error) {
        // The client's fault, or a rejected certificate; other connections ended or were probes.
        let is_refusal = error.kind() == io::ErrorKind::InvalidData;
        let mut noticed = self.noticed.lock().unwrap_or_else(PoisonError::into_inner);
        if is_refusal && noticed.is_none_or(|last| last.elapsed() >= NOTICE_EVERY) {
            *noticed = Some(Instant::now());
            tracing::warn!(client.address = %address, error = chain(error), "TLS handshake failed");
        } else {
            tracing::debug!(client.address = %address, error = chain(error), "no TLS handshake");
        }
    }
}

impl std::fmt::Debug for Certificate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Certificate").field(&self.files).finish()
    }
}

impl TlsFiles {
    fn load(&self) -> Result<Loaded, String> {
        let of = |setting| move |what| format!("`tls.{setting}`: {what}");
        let mut digest = Sha256::new();
        let mut read = |setting, path: &PathBuf| {
            let text = pem::read(path).map_err(of(setting))?;
            digest.update(text.len().to_be_bytes());
            digest.update(&text);
            Ok::<_, String>(text)
        };
        let text = read("certificate", &self.certificate)?;
        let chain = pem::certificates(&self.certificate, &text).map_err(of("certificate"))?;
        let text = read("key", &self.key)?;
        let key = pem::private_key(&self.key, &text).map_err(of("key"))?;
        let end = end(&self.certificate, &chain[0]).map_err(of("certificate"))?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = ServerConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| of("certificate")(error.to_string()))?;
        let config = match &self.client_ca {
            None => config.with_no_client_auth(),
            Some(path) => {
                let text = read("client_ca", path)?;
                let roots = Arc::new(pem::authorities(path, &text).map_err(of("client_ca"))?);
                let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider);
                let wrong = |error| of("client_ca")(format!("{}: {error}", path.display()));
                config.with_client_cert_verifier(verifier.build().map_err(wrong)?)
            }
        };
        let mut config = config
            .with_single_cert(chain, key)
            .map_err(|error| of("key")(unfit(&self.certificate, &self.key, error)))?;
        config.alpn_protocols = vec![HTTP_1_1.to_vec()];
        Ok(Loaded { config: Arc::new(config), digest: digest.finalize().into(), end })
    }
}

/// Why a certificate and a key cannot be used together.
pub(super) fn unfit(certificate: &Path, key: &Path, error: Error) -> String {
    let (certificate, key) = (certificate.display(), key.display());
    match error {
        Error::InconsistentKeys(_) => format!(
            "{key} is not the key of the certificate in {certificate}: name the one that it was \
             requested with"
        ),
        error => format!("{key}: {error}"),
    }
}

/// The end of a certificate in the file at `path`; an error if it is over.
pub(super) fn end(path: &Path, certificate: &[u8]) -> Result<DateTime, String> {
    let path = path.display();
    let parsed = CertificateInner::<Raw>::from_der(certificate)
        .map_err(|_| format!("{path} has a part that is no X.509 certificate"))?;
    let end = parsed.tbs_certificate.validity.not_after.to_date_time();
    if seconds(end) > now() {
        return Ok(end);
    }
    let subject = parsed.tbs_certificate.subject;
    Err(format!("the certificate of `{subject}` in {path} ended on {end}: renew it"))
}

/// A date in seconds since 1970.
fn seconds(date: DateTime) -> u64 {
    date.unix_duration().as_secs()
}

/// The seconds since 1970.
fn now() -> u64 {
    wall_clock_micros() / 1_000_000
}

/// Tells a client that sends HTTP without TLS what is wrong.
async fn refuse_plain_http(mut socket: Socket) -> io::Result<()> {
    socket.write_all(PLAIN_HTTP).await?;
    socket.shutdown().await?;
    tokio::io::copy(&mut socket.take(MOST_PLAIN), &mut tokio::io::sink()).await?;
    Ok(())
}
