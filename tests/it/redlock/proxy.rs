//! The network to a node: passes, passes late, or takes everything and answers nothing.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// What becomes of what is sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flow {
    Passing,
    /// Requests arrive so late, answers at once.
    SlowThere(Duration),
    /// Requests arrive at once, answers so late.
    SlowBack(Duration),
    /// Nothing arrives, ever.
    Swallowing,
    /// Requests arrive, answers do not.
    Mute,
}

/// A proxy on a port of its own; it ends with the test.
#[derive(Debug)]
pub(super) struct Proxy {
    port: u16,
    flow: Arc<watch::Sender<Flow>>,
    _running: JoinSet<()>,
}

impl Proxy {
    pub(super) async fn to(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let own = listener.local_addr().unwrap().port();
        let flow = Arc::new(watch::Sender::new(Flow::Passing));
        let mut running = JoinSet::new();
        let watched = flow.clone();
        running.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                while connections.try_join_next().is_some() {}
                connections.spawn(connection(client, port, watched.subscribe()));
            }
        });
        Self { port: own, flow, _running: running }
    }

    pub(super) fn url(&self) -> String {
        self.url_by("127.0.0.1")
    }

    pub(super) fn url_by(&self, host: &str) -> String {
        format!("redis://{host}:{}", self.port)
    }

    pub(super) fn set(&self, flow: Flow) {
        self.flow.send_replace(flow);
    }
}

/// One that begins silent stays so: its server never hears of it.
async fn connection(client: TcpStream, port: u16, mut flow: watch::Receiver<Flow>) {
    let (from_client, to_client) = client.into_split();
    let passing = flow.wait_for(|flow| *flow != Flow::Swallowing);
    if passing.await.is_err() {
        return;
    }
    // A server that is gone closes the connection to its client.
    let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else { return };
    let (from_server, to_server) = server.into_split();
    tokio::select! {
        () = there(from_client, to_server, flow.clone()) => (),
        () = back(from_server, to_client, flow) => (),
    }
}

async fn there(from: OwnedReadHalf, to: OwnedWriteHalf, flow: watch::Receiver<Flow>) {
    pump(from, to, flow, |flow| match flow {
        Flow::SlowThere(late) => Some(late),
        Flow::Swallowing => None,
        _ => Some(Duration::ZERO),
    })
    .await;
}

async fn back(from: OwnedReadHalf, to: OwnedWriteHalf, flow: watch::Receiver<Flow>) {
    pump(from, to, flow, |flow| match flow {
        Flow::SlowBack(late) => Some(late),
        Flow::Swallowing | Flow::Mute => None,
        _ => Some(Duration::ZERO),
    })
    .await;
}

/// Passes on what comes, each piece as late as `lateness` says, in order; `None` loses it. TCP has
/// no holes, so a connection that lost something ends as soon as anything passes again.
async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    flow: watch::Receiver<Flow>,
    lateness: fn(Flow) -> Option<Duration>,
) {
    let (pieces, mut waiting) = tokio::sync::mpsc::unbounded_channel();
    let mut later = flow.clone();
    let read = async {
        let mut piece = vec![0; 65_536];
        while let Ok(length @ 1..) = from.read(&mut piece).await {
            let Some(late) = lateness(*flow.borrow()) else { break };
            let due = tokio::time::Instant::now() + late;
            let _ = pieces.send((due, piece[..length].to_vec()));
        }
        // Silent, also where the client has gone.
        let _ = later.wait_for(|flow| lateness(*flow).is_some()).await;
    };
    let write = async {
        while let Some((due, piece)) = waiting.recv().await {
            tokio::time::sleep_until(due).await;
            if to.write_all(&piece).await.is_err() {
                return;
            }
        }
        std::future::pending().await
    };
    tokio::select! {
        () = read => (),
        () = write => (),
    }
}
