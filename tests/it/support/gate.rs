//! A way to a service that holds the requests of one method until it is opened.

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::support::PATIENCE;
use crate::support::eventually;

/// A gate before a port; gone when it is dropped.
#[derive(Debug)]
pub(crate) struct Gate {
    port: u16,
    open: watch::Sender<bool>,
    /// The number of requests that were held.
    held: watch::Receiver<usize>,
    _ways: JoinSet<()>,
}

impl Gate {
    /// A closed gate for requests of this method.
    pub(crate) async fn before(port: u16, method: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let here = listener.local_addr().unwrap().port();
        let (open, opened) = watch::channel(false);
        let (holds, held) = watch::channel(0);
        let mut ways = JoinSet::new();
        ways.spawn(async move {
            let mut streams = JoinSet::new();
            while let Ok((near, _)) = listener.accept().await {
                let Ok(far) = TcpStream::connect(("127.0.0.1", port)).await else { continue };
                let (from_near, mut to_near) = near.into_split();
                let (mut from_far, to_far) = far.into_split();
                let (opened, holds) = (opened.clone(), holds.clone());
                streams.spawn(pass(from_near, to_far, method, opened, holds));
                streams.spawn(async move { drop(copy(&mut from_far, &mut to_near).await) });
            }
        });
        Self { port: here, open, held, _ways: ways }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Waits until so many requests are held.
    pub(crate) async fn holds(&self, requests: usize) {
        eventually(PATIENCE, async || (*self.held.borrow() == requests).then_some(())).await;
    }

    /// Lets all requests pass.
    pub(crate) fn open(&self) {
        self.open.send_replace(true);
    }
}

/// Passes requests on; each begins a read, because a client awaits its answer.
async fn pass(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    method: &str,
    mut opened: watch::Receiver<bool>,
    holds: watch::Sender<usize>,
) {
    let mut buffer = vec![0; 64 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        if buffer.starts_with(method.as_bytes()) {
            holds.send_modify(|held| *held += 1);
            let _ = opened.wait_for(|open| *open).await;
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
