//! The listeners, which somebody else has bound, and their connections.

use std::fmt;
use std::fs::File;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use tokio::net::{TcpListener, UnixListener};
use tokio_util::either::Either;

use crate::server::socket::{Socket, set_options};

/// The place of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// An address and a port.
    Network(SocketAddr),
    /// The file of a unix socket.
    Unix(PathBuf),
}

/// A listener.
#[derive(Debug)]
pub enum Listener {
    /// On an address.
    Network(TcpListener),
    /// On a unix socket.
    Unix(UnixListener, SocketFile),
}

/// The file of a unix socket, until dropped.
#[derive(Debug)]
pub struct SocketFile {
    pub(crate) path: PathBuf,
    /// Its lock is what keeps other processes from the path.
    pub(crate) _lock: File,
}

impl Address {
    /// Returns whether only this machine can reach it.
    pub(super) fn is_local(&self) -> bool {
        self.is_loopback() || matches!(self, Self::Unix(_))
    }

    /// Returns whether it is a loopback address, which web browsers of this machine can reach too.
    fn is_loopback(&self) -> bool {
        matches!(self, Self::Network(address) if address.ip().to_canonical().is_loopback())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Network(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
        }
    }
}

impl From<SocketAddr> for Address {
    fn from(address: SocketAddr) -> Self {
        Self::Network(address)
    }
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Self::Network(listener)
    }
}

impl Listener {
    /// Accepts a connection. A client of a unix socket counts as one of this machine.
    pub(super) async fn accept(&self) -> io::Result<(Socket, IpAddr)> {
        match self {
            Self::Network(listener) => {
                let (stream, address) = listener.accept().await?;
                if let Err(error) = set_options(&stream) {
                    tracing::debug!(%error, "cannot set socket options; no keepalive");
                }
                Ok((Either::Left(stream), address.ip()))
            }
            Self::Unix(listener, _) => {
                let (stream, _) = listener.accept().await?;
                Ok((Either::Right(stream), Ipv4Addr::LOCALHOST.into()))
            }
        }
    }

    /// Returns whether it is the kind of listener on which connections use TLS.
    pub(super) fn is_network(&self) -> bool {
        matches!(self, Self::Network(_))
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        // An error means that somebody else has removed it.
        let _ = std::fs::remove_file(&self.path);
    }
}
