//! A connection to a host that may have several addresses.

use std::net::SocketAddr;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use tokio::net::TcpStream;
use tokio::time::sleep;

use crate::client::BoxError;

/// The time one address gets to accept before the next one is tried as well (RFC 8305).
const NEXT_ADDRESS: Duration = Duration::from_millis(250);

/// Tries the addresses one after another, slow ones in parallel: an unresponsive address must not
/// use up the timeout.
pub(super) async fn first_to_accept(
    addresses: impl Iterator<Item = SocketAddr>,
) -> Result<TcpStream, BoxError> {
    let mut addresses = addresses.peekable();
    let mut attempts = FuturesUnordered::new();
    let mut failure: BoxError = "the name has no address".into();
    loop {
        match addresses.next() {
            Some(address) => attempts.push(TcpStream::connect(address)),
            None if attempts.is_empty() => return Err(failure),
            None => (),
        }
        tokio::select! {
            Some(attempt) = attempts.next() => match attempt {
                Ok(stream) => return Ok(stream),
                Err(error) => failure = error.into(),
            },
            () = sleep(NEXT_ADDRESS), if addresses.peek().is_some() => (),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpStream};
    use std::time::Duration;

    use socket2::{Domain, Socket, Type};
    use tokio::net::TcpListener;
    use tokio::time::timeout;

    use super::first_to_accept;

    #[tokio::test]
    async fn addresses_that_never_accept_leave_time_for_one_that_does() {
        let deaf = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        deaf.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
        deaf.listen(0).unwrap();
        let nowhere = deaf.local_addr().unwrap().as_socket().unwrap();
        // Until its backlog is full.
        let connect = || TcpStream::connect_timeout(&nowhere, Duration::from_millis(200));
        let _backlog: Vec<_> = (0..16).map_while(|_| connect().ok()).collect();
        let alive = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let somewhere = alive.local_addr().unwrap();
        let addresses = [nowhere; 10].into_iter().chain([somewhere]);
        let connected = timeout(Duration::from_secs(10), first_to_accept(addresses)).await;
        assert_eq!(connected.unwrap().unwrap().peer_addr().unwrap(), somewhere);
        let refused = timeout(Duration::from_secs(10), first_to_accept([].into_iter())).await;
        assert!(refused.unwrap().is_err());
    }
}
