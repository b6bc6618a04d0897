//! All files of TLS: those of the service's own certificate, and those for Redis. They are read
//! together; unless all are good, what was in use stays in use.

use std::path::Path;
use std::sync::Arc;

use rustls::crypto::ring::default_provider;
use rustls::sign::CertifiedKey;
use x509_cert::der::DateTime;

use crate::config::{Config, RedisTlsSection, TlsSection};
use crate::metrics::Metrics;
use crate::pem;
use crate::server::tls::{Certificate, TlsFiles, end, unfit};
use crate::store::redis::{NodeCertificates, NodeTls};

/// The certificates in use, and their files.
#[derive(Debug)]
pub(crate) struct Certificates {
    own: Option<Arc<Certificate>>,
    redis: RedisTlsSection,
    nodes: NodeTls,
}

/// What was read again.
#[derive(Debug)]
pub(crate) struct ReadAgain {
    /// Whether the service's own certificate has changed, and when it ends.
    pub(crate) own: Option<(bool, DateTime)>,
    /// Whether anything for Redis has changed.
    pub(crate) redis: Option<bool>,
}

impl Certificates {
    /// Reads the files of the service's own certificate, beside those of `nodes`. The error names
    /// the setting and the remedy.
    pub(super) fn load(
        config: &Config,
        nodes: NodeTls,
        metrics: &mut Metrics,
    ) -> Result<Self, String> {
        let own = match &config.tls {
            TlsSection { certificate: Some(certificate), key: Some(key), client_ca } => {
                let (certificate, key) = (certificate.clone(), key.clone());
                let files = TlsFiles { certificate, key, client_ca: client_ca.clone() };
                Some(Arc::new(Certificate::load(files, metrics.certificate_end())?))
            }
            _ => None,
        };
        Ok(Self { own, redis: config.redis.tls.clone(), nodes })
    }

    /// The service's own, if it has one.
    pub(super) fn own(&self) -> Option<Arc<Certificate>> {
        self.own.clone()
    }

    /// Returns whether the settings name any.
    pub(crate) fn are_used(&self) -> bool {
        self.own.is_some() || self.redis.is_used()
    }

    /// Reads the files again, for new connections.
    pub(crate) fn reload(&self) -> Result<ReadAgain, String> {
        let own = self.own.as_ref().map(|own| own.read().map(|read| (own, read))).transpose()?;
        let redis = read(&self.redis)?;
        let own = own.map(|(own, read)| (own.replace(read), own.end()));
        let redis = self.redis.is_used().then(|| self.nodes.replace(redis));
        Ok(ReadAgain { own, redis })
    }
}

/// The certificates for Redis in these files.
pub(super) fn nodes(files: &RedisTlsSection) -> Result<NodeTls, String> {
    let nodes = NodeTls::default();
    nodes.replace(read(files)?);
    Ok(nodes)
}

fn read(files: &RedisTlsSection) -> Result<NodeCertificates, String> {
    let of = |setting| move |what| format!("`redis.tls.{setting}`: {what}");
    let authorities = |path: &Path| {
        let text = pem::read(path)?;
        pem::authorities(path, &text).map(|_| text)
    };
    let authorities = files.ca.as_deref().map(authorities).transpose().map_err(of("ca"))?;
    let Some((path, key_path)) = files.certificate.as_ref().zip(files.key.as_ref()) else {
        return Ok(NodeCertificates { authorities, own: None });
    };
    let text = pem::read(path).map_err(of("certificate"))?;
    let chain = pem::certificates(path, &text).map_err(of("certificate"))?;
    end(path, &chain[0]).map_err(of("certificate"))?;
    let key_text = pem::read(key_path).map_err(of("key"))?;
    let key = pem::private_key(key_path, &key_text).map_err(of("key"))?;
    CertifiedKey::from_der(chain, key, &default_provider())
        .map_err(|error| of("key")(unfit(path, key_path, error)))?;
    Ok(NodeCertificates { authorities, own: Some((text, key_text)) })
}
