//! `lockkeeper healthcheck`: for images without a shell or curl.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use http_body_util::Empty;
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1::handshake;
use hyper_util::rt::TokioIo;
use tokio::net::{TcpStream, lookup_host};

/// Shorter than the timeout of common health checks.
const PATIENCE: Duration = Duration::from_secs(3);

/// Requests `/healthz` from the service that listens on `listen`.
pub(super) fn healthcheck(listen: &str) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start the runtime: {error}"))?;
    let asked = async { tokio::time::timeout(PATIENCE, ask(listen)).await };
    match runtime.block_on(asked) {
        Ok(Ok(200)) => Ok(()),
        Ok(Ok(status)) => Err(format!("{listen} answered {status}")),
        Ok(Err(error)) => Err(format!("cannot reach {listen}: {error}")),
        Err(_) => Err(format!("{listen} did not answer within {} s", PATIENCE.as_secs())),
    }
}

async fn ask(listen: &str) -> Result<u16, Box<dyn std::error::Error>> {
    let address = lookup_host(listen).await?.next().ok_or("the name has no address")?;
    let stream = TcpStream::connect(reachable(address)).await?;
    let (mut sender, connection) = handshake(TokioIo::new(stream)).await?;
    let request = Request::get("/healthz").header("host", listen).body(Empty::<Bytes>::new())?;
    let answered = async { Ok(sender.send_request(request).await?.status().as_u16()) };
    tokio::select! {
        answer = answered => answer,
        _ = connection => Err("the connection was closed".into()),
    }
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
