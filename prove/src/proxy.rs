//! A TCP proxy that delays, stalls, swallows, cuts, half-closes, and loses the answer to a chosen request.
//!
//! TCP has no holes: a connection of which bytes were swallowed is reset when bytes pass again.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Treatment of what passes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Flow {
    /// By how much each piece is late, at least.
    pub(crate) delay: Duration,
    /// By how much it may be later than that.
    pub(crate) jitter: Duration,
    /// Whether answers stay here until it passes them again.
    pub(crate) stalled: bool,
    /// Whether nothing reaches the server.
    pub(crate) swallow_there: bool,
    /// Whether nothing reaches the client.
    pub(crate) swallow_back: bool,
    /// The bytes of requests of which the answers are lost, by a reset, and how many still are.
    pub(crate) loses: Option<(&'static [u8], u32)>,
    /// Counts the resets of all connections.
    pub(crate) cuts: u64,
    /// Counts the times when the client's direction of all connections was ended.
    pub(crate) half_closes: u64,
    /// Counts the times when the server's direction of all connections was ended: the client takes them
    /// for broken, but what it has sent arrives.
    pub(crate) hang_ups: u64,
}

#[derive(Debug)]
struct Shared {
    /// By how much each piece is always late, at least.
    distance: Duration,
    flow: watch::Sender<Flow>,
}

/// A proxy with a port of its own. It ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Proxy {
    pub(crate) port: u16,
    shared: Arc<Shared>,
    _running: JoinSet<()>,
}

impl Proxy {
    /// Starts a proxy on this port of loopback, or on any if it is 0, to a server on another, which is so
    /// far away, in each direction, at least.
    pub(crate) async fn start(port: u16, server: u16, distance: Duration) -> io::Result<Self> {
        let listener = TcpListener::bind(("127.0.0.1", port)).await?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared { distance, flow: watch::Sender::default() });
        let mut running = JoinSet::new();
        running.spawn(serve(listener, server, shared.clone()));
        Ok(Self { port, shared, _running: running })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    pub(crate) fn change(&self, change: impl FnOnce(&mut Flow)) {
        self.shared.flow.send_modify(change);
    }

    /// Passes everything again, at once.
    pub(crate) fn heal(&self) {
        self.change(|flow| {
            let Flow { cuts, half_closes, hang_ups, .. } = *flow;
            *flow = Flow { cuts, half_closes, hang_ups, ..Flow::default() };
        });
    }
}

impl Shared {
    /// Returns how much may be on its way at a time: over a distance, all that comes meanwhile.
    fn piece(&self) -> usize {
        if self.distance.is_zero() { 1 << 14 } else { 1 << 20 }
    }

    async fn late(&self, flow: &Flow) {
        let delay = self.distance + flow.delay;
        if !delay.is_zero() {
            let jitter = (self.distance / 4 + flow.jitter).mul_f64(fastrand::f64());
            tokio::time::sleep(delay + jitter).await;
        }
    }

    /// Whether this piece begins a request of which the answer is to be lost.
    fn is_lost(&self, piece: &[u8]) -> bool {
        self.flow.send_if_modified(|flow| match &mut flow.loses {
            Some((contains, left)) if *left > 0 => {
                let found = piece.windows(contains.len()).any(|bytes| bytes == *contains);
                *left -= u32::from(found);
                found
            }
            _ => false,
        })
    }
}

async fn serve(listener: TcpListener, server: u16, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        // An accept fails for lack of descriptors, which floods are made to cause.
        let Ok((client, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        while connections.try_join_next().is_some() {}
        connections.spawn(pass(client, server, shared.clone()));
    }
}

/// Passes one connection until either side ends it or a fault does.
async fn pass(mut client: TcpStream, server: u16, shared: Arc<Shared>) {
    let mut flow = shared.flow.subscribe();
    let began = *flow.borrow_and_update();
    if began.swallow_there && began.swallow_back {
        // A network that takes connections and no more.
        let _ = flow.wait_for(|flow| !flow.swallow_there || flow.cuts > began.cuts).await;
        let _ = client.set_zero_linger();
        return;
    }
    let Ok(mut server) = TcpStream::connect(("127.0.0.1", server)).await else {
        let _ = client.set_zero_linger();
        return;
    };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let lost = Lost::default();
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    let there = one_way(Way::There, (from_client, to_server), &shared, &lost);
    let back = one_way(Way::Back, (from_server, to_client), &shared, &lost);
    let ended = tokio::select! {
        () = cut(&mut flow, &began, &lost) => Err(Reset),
        ended = async { tokio::try_join!(there, back) } => ended,
    };
    if ended.is_err() {
        let _ = (client.set_zero_linger(), server.set_zero_linger());
    }
}

/// An end of a connection that is a reset.
#[derive(Debug)]
struct Reset;

/// What a connection has lost.
#[derive(Debug, Default)]
struct Lost {
    /// Whether bytes of it were swallowed.
    bytes: AtomicBool,
    /// Whether its next answer is to be dropped.
    next_answer: AtomicBool,
}

/// Waits until all connections are cut, or until bytes pass again and this one has lost some.
async fn cut(flow: &mut watch::Receiver<Flow>, began: &Flow, lost: &Lost) {
    let over = |flow: &Flow| {
        let passes = !flow.swallow_there && !flow.swallow_back;
        flow.cuts > began.cuts || passes && lost.bytes.load(Ordering::Relaxed)
    };
    if flow.wait_for(over).await.is_err() {
        std::future::pending().await
    }
}

/// The direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    There,
    Back,
}

impl Way {
    fn swallows(self, flow: &Flow) -> bool {
        if self == Self::There { flow.swallow_there } else { flow.swallow_back }
    }

    /// Returns how often this direction of all connections was ended.
    fn ends(self, flow: &Flow) -> u64 {
        if self == Self::There { flow.half_closes } else { flow.hang_ups }
    }
}

/// Passes one direction of a connection.
async fn one_way(
    way: Way,
    (mut from, mut to): (ReadHalf<'_>, WriteHalf<'_>),
    shared: &Shared,
    lost: &Lost,
) -> Result<(), Reset> {
    let mut flow = shared.flow.subscribe();
    let began = way.ends(&flow.borrow_and_update());
    let mut piece = vec![0; shared.piece()];
    loop {
        let (read, struck) = tokio::select! {
            read = from.read(&mut piece) => (read, false),
            Ok(_) = flow.wait_for(|flow| way.ends(flow) > began) => (Ok(0), true),
        };
        if way == Way::Back {
            // It cannot fail: the sender is shared with the proxy.
            let _ = flow.wait_for(|flow| !flow.stalled).await;
        }
        let treatment = *flow.borrow();
        match read {
            // A hang-up is of the proxy, whatever the network swallows.
            Ok(_) if way.swallows(&treatment) && !(struck && way == Way::Back) => {
                swallow(read.ok(), lost).await;
            }
            Ok(0) => {
                // Its other side may be gone as well.
                let _ = to.shutdown().await;
                // A server that has ended its direction has ended.
                return if way == Way::Back && !struck { Err(Reset) } else { Ok(()) };
            }
            Ok(_) if way == Way::Back && lost.next_answer.load(Ordering::Relaxed) => {
                return Err(Reset);
            }
            Ok(length) => {
                shared.late(&treatment).await;
                if way == Way::There && shared.is_lost(&piece[..length]) {
                    lost.next_answer.store(true, Ordering::Relaxed);
                }
                to.write_all(&piece[..length]).await.map_err(|_| Reset)?;
            }
            Err(_) => return Err(Reset),
        }
    }
}

/// Loses a piece, or keeps the end of a direction for itself.
async fn swallow(read: Option<usize>, lost: &Lost) {
    lost.bytes.store(true, Ordering::Relaxed);
    if read == Some(0) {
        std::future::pending().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A server that answers each piece with itself.
    async fn echo() -> (u16, JoinSet<()>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let mut running = JoinSet::new();
        running.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                connections.spawn(async move {
                    let (mut from, mut to) = stream.split();
                    let _ = tokio::io::copy(&mut from, &mut to).await;
                });
            }
        });
        (port, running)
    }

    async fn asked(stream: &mut TcpStream, text: &str) -> io::Result<String> {
        stream.write_all(text.as_bytes()).await?;
        let mut piece = vec![0; 100];
        let read = tokio::time::timeout(Duration::from_millis(300), stream.read(&mut piece));
        let length = read.await.map_err(|_| io::ErrorKind::TimedOut)??;
        Ok(String::from_utf8_lossy(&piece[..length]).into_owned())
    }

    #[tokio::test]
    async fn the_answer_to_a_chosen_request_is_lost_and_no_other() {
        let (server, _running) = echo().await;
        let proxy = Proxy::start(0, server, Duration::ZERO).await.unwrap();
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        proxy.change(|flow| flow.loses = Some((b"DELETE", 1)));
        assert_eq!(asked(&mut stream, "POST").await.unwrap(), "POST");
        assert!(asked(&mut stream, "a DELETE").await.is_err());
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        assert_eq!(asked(&mut stream, "a DELETE").await.unwrap(), "a DELETE");
    }

    #[tokio::test]
    async fn a_connection_that_lost_bytes_is_reset_when_bytes_pass_again() {
        let (server, _running) = echo().await;
        let proxy = Proxy::start(0, server, Duration::ZERO).await.unwrap();
        for (there, back) in [(true, false), (false, true), (true, true)] {
            let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
            assert_eq!(asked(&mut stream, "before").await.unwrap(), "before");
            proxy.change(|flow| (flow.swallow_there, flow.swallow_back) = (there, back));
            let silent = asked(&mut stream, "swallowed").await.unwrap_err();
            assert_eq!(silent.kind(), io::ErrorKind::TimedOut);
            proxy.heal();
            assert_eq!(stream.read(&mut [0]).await.unwrap_err().kind(), CUT);
        }
    }

    #[tokio::test]
    async fn a_stalled_answer_is_read_once_the_network_passes_again() {
        let (server, _running) = echo().await;
        let proxy = Proxy::start(0, server, Duration::ZERO).await.unwrap();
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        proxy.change(|flow| flow.stalled = true);
        assert_eq!(asked(&mut stream, "first").await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        proxy.heal();
        stream.read_exact(&mut [0; 5]).await.unwrap();
        assert_eq!(asked(&mut stream, "second").await.unwrap(), "second");
    }

    #[tokio::test]
    async fn a_cut_resets_and_a_half_close_ends_the_direction_of_the_client() {
        let (server, _running) = echo().await;
        let proxy = Proxy::start(0, server, Duration::ZERO).await.unwrap();
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        assert_eq!(asked(&mut stream, "before").await.unwrap(), "before");
        proxy.change(|flow| flow.cuts += 1);
        assert_eq!(stream.read(&mut [0]).await.unwrap_err().kind(), CUT);
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        assert_eq!(asked(&mut stream, "before").await.unwrap(), "before");
        proxy.change(|flow| flow.half_closes += 1);
        assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_request_sent_before_a_hang_up_arrives_after_it() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let proxy = Proxy::start(0, port, Duration::ZERO).await.unwrap();
        let mut stream = TcpStream::connect(proxy.address()).await.unwrap();
        let (mut server, _) = listener.accept().await.unwrap();
        stream.write_all(b"before").await.unwrap();
        server.read_exact(&mut [0; 6]).await.unwrap();
        proxy.change(|flow| flow.delay = Duration::from_millis(200));
        stream.write_all(b"later").await.unwrap();
        proxy.change(|flow| flow.hang_ups += 1);
        proxy.heal();
        assert_eq!(stream.read(&mut [0]).await.unwrap(), 0);
        drop(stream);
        let mut all = Vec::new();
        server.read_to_end(&mut all).await.unwrap();
        assert_eq!(all, b"later");
    }

    const CUT: io::ErrorKind = io::ErrorKind::ConnectionReset;
}
