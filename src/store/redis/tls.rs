//! The certificates for TLS to the nodes, which may be replaced while the service runs.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use redis::{Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, RedisError, TlsCertificates};

/// What TLS to the nodes needs besides the system's authorities, as PEM.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct NodeCertificates {
    /// The only authorities to trust.
    pub authorities: Option<Vec<u8>>,
    /// The certificate that is shown to a node, and its private key.
    pub own: Option<(Vec<u8>, Vec<u8>)>,
}

/// The certificates in use: every connection is made with the current ones.
#[derive(Clone, Debug, Default)]
pub struct NodeTls(Arc<RwLock<Arc<NodeCertificates>>>);

impl NodeTls {
    /// Uses these from now on; returns whether they differ from those before.
    pub fn replace(&self, certificates: NodeCertificates) -> bool {
        let mut current = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let differ = **current != certificates;
        if differ {
            *current = Arc::new(certificates);
        }
        differ
    }

    pub(super) fn current(&self) -> Arc<NodeCertificates> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl NodeCertificates {
    /// The way to a node with these certificates.
    pub(super) fn on(&self, info: &ConnectionInfo) -> Result<ConnectionInfo, RedisError> {
        if *self == Self::default() || !matches!(info.addr(), ConnectionAddr::TcpTls { .. }) {
            return Ok(info.clone());
        }
        let own = self.own.clone();
        let own = own.map(|(client_cert, client_key)| ClientTlsConfig { client_cert, client_key });
        let all = TlsCertificates { client_tls: own, root_cert: self.authorities.clone() };
        Ok(Client::build_with_tls(info.clone(), all)?.get_connection_info().clone())
    }
}

impl fmt::Debug for NodeCertificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodeCertificates") // A private key is in it.
    }
}
