//! The health of the service on this machine, for its own health check.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use http_body_util::Empty;
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::time::timeout;

use crate::client::BoxError;
use crate::client::tls::{Transport, lives_without, secured_unseen};

/// Shorter than the timeout of common health checks.
const PATIENCE: Duration = Duration::from_secs(3);

/// The place where the service listens.
#[derive(Clone, Copy, Debug)]
pub enum HealthPlace<'a> {
    /// An address or name, and a port.
    Plain(&'a str),
    /// The same, with TLS. The certificate is not verified: it need not name this address, the
    /// request has no secret, and only its status is read.
    Secured(&'a str),
    /// A unix socket.
    Unix(&'a Path),
}

/// The status of `/healthz`. A service that demands a client certificate has answered as well: 200.
///
/// # Errors
///
/// The reason why there is no answer.
///
/// # Cancel safety
///
/// Safe.
pub async fn healthz(place: HealthPlace<'_>) -> Result<u16, BoxError> {
    match timeout(PATIENCE, ask(place)).await {
        Ok(Err(error)) if lives_without(&*error) => Ok(200),
        Ok(answer) => answer,
        Err(_) => Err(format!("it did not answer within {} s", PATIENCE.as_secs()).into()),
    }
}

async fn ask(place: HealthPlace<'_>) -> Result<u16, BoxError> {
    let (stream, host): (Box<dyn Transport>, _) = match place {
        HealthPlace::Plain(listen) => (Box::new(connect(listen).await?), listen),
        HealthPlace::Secured(listen) => (secured_unseen(connect(listen).await?).await?, listen),
        HealthPlace::Unix(path) => (Box::new(UnixStream::connect(path).await?), "localhost"),
    };
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
    let request = Request::get("/healthz").header("host", host).body(Empty::<Bytes>::new())?;
    let answered = async { Ok(sender.send_request(request).await?.status().as_u16()) };
    tokio::select! {
        answer = answered => answer,
        ended = connection => Err(match ended {
            Ok(()) => "the connection was closed".into(),
            Err(error) => error.into(),
        }),
    }
}

async fn connect(listen: &str) -> Result<TcpStream, BoxError> {
    let address = lookup_host(listen).await?.next().ok_or("the name has no address")?;
    Ok(TcpStream::connect(reachable(address)).await?)
}

/// The local address of a service that may listen on every address.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}
