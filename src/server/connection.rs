//! Connections: accepted up to a limit, each with its timers, ended gracefully.

use std::convert::Infallible;
use std::future::Future;
use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering;
use std::task::Context;
use std::task::Poll;
use std::time::Duration;

use axum::body::Body;
use axum::body::HttpBody;
use http_body_util::BodyExt;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::TokioIo;
use hyper_util::rt::TokioTimer;
use hyper_util::server::graceful::GracefulShutdown;
use socket2::SockRef;
use socket2::TcpKeepalive;
use tokio::io::AsyncRead;
use tokio::io::AsyncWrite;
use tokio::io::ReadBuf;
use tokio::net::TcpListener;
use tokio::net::TcpStream;
use tokio::sync::Semaphore;
use tokio::time::Instant;
use tokio::time::Sleep;
use tokio::time::sleep;
use tokio_util::task::TaskTracker;

use crate::api::Api;
use crate::config::Limits;
use crate::metrics::Metrics;

/// How long a client may be silent before it is asked whether it is still there.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(10);
/// How often it is asked then.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(5);
/// How often it may leave that unanswered: a peer that vanished is noticed within 20 s.
const KEEPALIVE_TRIES: u32 = 2;
/// How long what was sent may stay unacknowledged.
const UNACKNOWLEDGED: Duration = Duration::from_secs(20);

/// Between two tries to accept where the system has no descriptor left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// How long a handler is at work before a client that has sent more behind its request is watched:
/// one that waits. What is answered at once is not worth the trouble.
const WATCH_AFTER: Duration = Duration::from_millis(50);
/// How much is read ahead to see the end behind it.
const AHEAD: usize = 16 * 1024;

/// Accepts connections and serves them.
pub(super) struct Acceptor {
    api: Api,
    http: http1::Builder,
    head_time: Duration,
    room: Arc<Semaphore>,
    graceful: GracefulShutdown,
    tasks: TaskTracker,
    metrics: Arc<Metrics>,
}

impl Acceptor {
    /// Serves `api`, at most `connections` clients at a time.
    pub(super) fn new(
        api: Api,
        limits: &Limits,
        connections: usize,
        metrics: Arc<Metrics>,
    ) -> Self {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            // hyper counts from the end of the answer before, so this is the idle time.
            .header_read_timeout(limits.idle_time.get())
            .max_buf_size(limits.head_bytes);
        Self {
            api,
            http,
            head_time: limits.head_time.get(),
            room: Arc::new(Semaphore::new(connections)),
            graceful: GracefulShutdown::new(),
            tasks: TaskTracker::new(),
            metrics,
        }
    }

    /// Accepts for as long as it is polled. Where there is no room it leaves new clients in the
    /// system's queue.
    pub(super) async fn accept(&mut self, listener: &TcpListener) {
        loop {
            let room = self.room.clone().acquire_owned().await.expect("never closed");
            match listener.accept().await {
                Ok((stream, address)) => {
                    let connection = self.serve(stream, address.ip());
                    let metrics = self.metrics.clone();
                    self.tasks.spawn(async move {
                        metrics.connections().inc();
                        connection.await;
                        metrics.connections().dec();
                        drop(room);
                    });
                }
                Err(error) => {
                    tracing::debug!(%error, "a connection could not be accepted");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Answers what is under way, closes idle connections, and returns after `patience` even if
    /// some are left.
    pub(super) async fn finish(self, patience: Duration) {
        self.tasks.close();
        let finished = async {
            self.graceful.shutdown().await;
            self.tasks.wait().await;
        };
        if tokio::time::timeout(patience, finished).await.is_err() {
            tracing::warn!("some connections were cut: their requests took too long");
        }
    }

    fn serve(&self, stream: TcpStream, peer: IpAddr) -> impl Future<Output = ()> + Send + 'static {
        if let Err(error) = set_options(&stream) {
            tracing::debug!(%error, "a connection has no keepalive");
        }
        let turns = Arc::new(Turns::default());
        let io = TokioIo::new(TimedHead::new(stream, turns.clone(), self.head_time));
        let (api, moments) = (self.api.clone(), turns.clone());
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            let turn = Turn::begin(&turns);
            let api = api.clone();
            async move {
                let answer = api.answer(request.map(Body::new), peer).await;
                Ok::<_, Infallible>(match answer.body().size_hint().exact() {
                    Some(_) => answer,
                    // A stream is under way until it ends.
                    None => answer.map(|body| {
                        Body::new(body.map_frame(move |frame| {
                            let _ = &turn;
                            frame
                        }))
                    }),
                })
            }
        });
        let connection = self.graceful.watch(self.http.serve_connection(io, service));
        async move {
            let mut connection = pin!(connection);
            let ended = poll_fn(|context| {
                moments.moments.fetch_add(1, Ordering::Relaxed);
                connection.as_mut().poll(context)
            });
            if let Err(error) = ended.await {
                tracing::debug!(%error, "a connection ended early");
            }
        }
    }
}

fn set_options(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_AFTER)
        .with_interval(KEEPALIVE_EVERY)
        .with_retries(KEEPALIVE_TRIES);
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED))
}

/// Whose turn it is on a connection: the client's to send a head, or the service's to answer; and
/// how time goes by on it.
#[derive(Debug, Default)]
struct Turns {
    begun: AtomicU32,
    ended: AtomicU32,
    /// How often the connection's task has run.
    moments: AtomicU32,
}

/// The service's turn, until it is dropped.
struct Turn(Arc<Turns>);

impl Turn {
    fn begin(turns: &Arc<Turns>) -> Self {
        turns.begun.fetch_add(1, Ordering::Relaxed);
        Self(turns.clone())
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.ended.fetch_add(1, Ordering::Relaxed);
    }
}

/// A stream on which a head may take only so long from its first byte on, and whose end is not
/// found in the same moment as what came before it.
///
/// hyper has one timer for a head and for the silence before it; the silence may be long, a head
/// that comes byte by byte must not be. And where it finds a request and the end at once, it drops
/// the handler before its first step; but who sends a release and hangs up has released.
/// hyper reads no further, either, once it has a byte of the next request: then the stream reads
/// ahead itself while a handler is at work, lest that byte hide that the client is gone.
struct TimedHead {
    stream: TcpStream,
    turns: Arc<Turns>,
    allowed: Duration,
    /// How many heads were complete when the one under way began.
    complete: u32,
    began: Option<Instant>,
    timer: Option<Pin<Box<Sleep>>>,
    /// At which moment of the connection there was something to read.
    read_at: u32,
    /// At which moment hyper waited for more: as long as it does, it sees the end itself.
    wanted_at: u32,
    /// When to begin to read ahead.
    watch: Option<Pin<Box<Sleep>>>,
    /// What was read ahead.
    ahead: Vec<u8>,
}

impl TimedHead {
    fn new(stream: TcpStream, turns: Arc<Turns>, allowed: Duration) -> Self {
        Self {
            stream,
            turns,
            allowed,
            complete: 0,
            began: None,
            timer: None,
            read_at: 0,
            wanted_at: 0,
            watch: None,
            ahead: Vec::new(),
        }
    }

    /// Whether a head is under way that has taken too long; wakes the task when it will have.
    fn late(&mut self, context: &mut Context<'_>) -> bool {
        let Some(began) = self.began else { return false };
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(tokio::time::sleep_until(began + self.allowed)));
        timer.as_mut().poll(context).is_ready()
    }

    fn is_answering(&self) -> bool {
        self.turns.ended.load(Ordering::Relaxed) != self.turns.begun.load(Ordering::Relaxed)
    }

    /// Reads what was read ahead, and then the stream.
    fn read(
        &mut self,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.ahead.is_empty() {
            return Pin::new(&mut self.stream).poll_read(context, buffer);
        }
        let length = self.ahead.len().min(buffer.remaining());
        buffer.put_slice(&self.ahead[..length]);
        self.ahead.drain(..length);
        Poll::Ready(Ok(()))
    }

    /// Fails if a handler is at work, hyper does not look, and the client is gone.
    fn watch(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let moment = self.turns.moments.load(Ordering::Relaxed);
        if !self.is_answering() || self.wanted_at == moment {
            self.watch = None;
            return Ok(());
        }
        let watch = self.watch.get_or_insert_with(|| Box::pin(sleep(WATCH_AFTER)));
        if !watch.is_elapsed() && watch.as_mut().poll(context).is_pending() {
            return Ok(());
        }
        let mut piece = [0; 1024];
        while self.ahead.len() < AHEAD {
            let mut buffer = ReadBuf::new(&mut piece);
            match Pin::new(&mut self.stream).poll_read(context, &mut buffer) {
                Poll::Pending => break,
                Poll::Ready(read) => read?,
            }
            if buffer.filled().is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.ahead.extend_from_slice(buffer.filled());
        }
        if self.ahead.len() >= AHEAD {
            // The end behind so much could not be seen any more.
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        Ok(())
    }
}

impl AsyncRead for TimedHead {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let begun = self.turns.begun.load(Ordering::Relaxed);
        if begun != self.complete {
            (self.complete, self.began, self.timer) = (begun, None, None);
        }
        let answering = self.is_answering();
        let (moment, filled) = (self.turns.moments.load(Ordering::Relaxed), buffer.filled().len());
        let polled = self.read(context, buffer);
        if polled.is_pending() {
            self.wanted_at = moment;
        }
        if buffer.filled().len() > filled {
            self.read_at = moment;
        } else if answering && polled.is_ready() && self.read_at == moment {
            // The end will be found again at the next moment, after the handler's first step.
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        if answering {
            return polled;
        }
        if polled.is_ready() {
            self.began = self.began.or_else(|| Some(Instant::now()));
        } else if self.late(context) {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        polled
    }
}

impl AsyncWrite for TimedHead {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // hyper flushes at every moment, whether or not there is anything to be flushed.
        self.watch(context)?;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(context, slices)
    }
}
