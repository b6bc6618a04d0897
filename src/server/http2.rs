//! A connection with HTTP/2: its limits, and one task for each of its requests.
//!
//! A client that resets a stream is gone, as one that ends its connection in HTTP/1: the handler is
//! dropped, and with it a place in line or a hold. The other streams go on.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Body;
use hyper::body::Incoming;
use hyper::header::HOST;
use hyper::rt::Executor;
use hyper::server::conn::http2;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::Limits;
use crate::server::house::RequestPlace;
use crate::server::late::{LateEnd, Unheard};
use crate::server::tls::Transport;
use crate::server::turns::{ServiceTurn, Turns};
use crate::server::unread::{Answer, Unread, Whole};
use crate::server::visit::{Visit, malformed};

/// Requests at a time on a connection: more than the waiting requests of most processes, which
/// share a connection with the refreshes, and few enough for the memory of their heads.
const STREAMS: u32 = 200;

/// Streams that a client has reset before the service has seen them; then its connection is closed
/// (rapid reset, CVE-2023-44487).
const RESETS_UNSEEN: usize = 20;

/// Streams that the service has reset for faults of the client; then its connection is closed.
const RESETS_FOR_FAULTS: usize = 100;

/// Requests that a client may cancel in [`RESETS_TIME`]; then its connection is closed. Each may
/// leave a call to the store behind, which runs to its end. All of a connection, and as many again.
const RESETS: u32 = 2 * STREAMS;
const RESETS_TIME: Duration = Duration::from_secs(8);

/// The bytes that may arrive unread for a request, and for all requests of a connection. Bodies are
/// small and read at once.
const STREAM_WINDOW: u32 = 64 * 1024;
const CONNECTION_WINDOW: u32 = 4 * STREAM_WINDOW;

/// The bytes of an answer that wait for its client's window, beside a part that is larger.
const SEND_BUFFER: usize = 64 * 1024;

/// The silence after which the client is asked for a sign of life, and the time for it. In HTTP/1
/// the system asks; here the answer comes from the client itself, through every proxy.
const PING_AFTER: Duration = Duration::from_secs(20);
const PING_TIME: Duration = Duration::from_secs(20);

/// The interval of looks at whether a connection is idle, or its client does not read.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// The time that an idle client has to close the connection once it was asked to.
const GOODBYE: Duration = Duration::from_secs(1);

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// HTTP/2 with its limits.
pub(super) struct Http2 {
    http: http2::Builder<Tasks>,
    idle_time: Duration,
    closing: CancellationToken,
}

/// Runs the requests of connections.
#[derive(Clone)]
struct Tasks(TaskTracker);

/// A request that found no place. The client knows that nothing was done, and may retry.
#[derive(Debug, thiserror::Error)]
#[error("too many requests at a time")]
struct NoPlace(#[source] h2::Error);

/// The service's turn on one stream, until dropped.
struct StreamTurn {
    _turn: ServiceTurn,
    _place: RequestPlace,
    cancelled: Arc<AtomicU32>,
    whole: bool,
}

impl Http2 {
    /// HTTP/2 within `limits`. Requests run in `tasks`; connections end once `closing` is
    /// cancelled.
    pub(super) fn new(limits: &Limits, tasks: TaskTracker, closing: CancellationToken) -> Self {
        let mut http = http2::Builder::new(Tasks(tasks));
        let head_bytes = u32::try_from(limits.head_bytes).unwrap_or(u32::MAX);
        http.timer(TokioTimer::new())
            .max_concurrent_streams(STREAMS)
            .max_pending_accept_reset_streams(RESETS_UNSEEN)
            .max_local_error_reset_streams(RESETS_FOR_FAULTS)
            .max_header_list_size(head_bytes)
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buf_size(SEND_BUFFER)
            .keep_alive_interval(PING_AFTER)
            .keep_alive_timeout(PING_TIME);
        Self { http, idle_time: limits.idle_time.get(), closing }
    }

    /// Serves a connection to its end.
    pub(super) async fn serve(self: Arc<Self>, transport: Transport, visit: Visit) {
        let turns = visit.guest.turns().clone();
        let (cancelled, unread) = (Arc::new(AtomicU32::new(0)), Arc::new(Unread::default()));
        let unheard = Arc::new(Unheard::default());
        let io = TokioIo::new(LateEnd::new(transport, turns.clone(), unheard.clone()));
        let requests = Requests {
            visit,
            cancelled: cancelled.clone(),
            unread: unread.clone(),
            unheard,
            count: Arc::default(),
        };
        let service = hyper::service::service_fn(move |request| requests.clone().answer(request));
        let mut connection = pin!(self.http.serve_connection(io, service));
        let mut resets = Resets { since: Instant::now(), count: 0 };
        let mut run = |connection: Pin<&mut _>, context: &mut Context<'_>| {
            turns.moments.fetch_add(1, Ordering::Relaxed);
            if resets.are_too_many(cancelled.swap(0, Ordering::Relaxed)) {
                return Poll::Ready(Err("the client cancels too many requests".to_owned()));
            }
            let ended: Poll<hyper::Result<()>> = Future::poll(connection, context);
            ended.map_err(|error| error.to_string())
        };
        let mut ended = tokio::select! {
            ended = poll_fn(|context| run(connection.as_mut(), context)) => Some(ended),
            () = stalled(&unread) => Some(Err("the client does not read".to_owned())),
            () = idle(&turns, self.idle_time) => None,
            () = self.closing.cancelled() => None,
        };
        if ended.is_none() {
            connection.as_mut().graceful_shutdown();
            ended = tokio::select! {
                ended = poll_fn(|context| run(connection.as_mut(), context)) => Some(ended),
                () = stalled(&unread) => Some(Err("the client does not read".to_owned())),
                () = goodbye(&turns) => None,
            };
        }
        if let Some(Err(error)) = ended {
            tracing::debug!(error, "connection ended early");
        }
    }
}

/// The requests of one connection.
#[derive(Clone)]
struct Requests {
    visit: Visit,
    /// Requests that were cancelled since somebody looked.
    cancelled: Arc<AtomicU32>,
    unread: Arc<Unread>,
    unheard: Arc<Unheard>,
    /// The number of requests so far.
    count: Arc<AtomicU64>,
}

impl Requests {
    /// Answers a request. It counts from its call on, not only once this is polled.
    fn answer(
        mut self,
        request: Request<Incoming>,
    ) -> impl Future<Output = Result<Response<Answer<StreamTurn>>, BoxError>> {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let turn = ServiceTurn::begin_one_of_many(self.visit.guest.turns());
        let request = request.map(|body| self.unheard.hear(body));
        async move {
            let place = self.visit.house.request(&self.visit.guest).map_err(|_| {
                self.visit.house.notice_request(self.visit.guest.peer());
                NoPlace(h2::Reason::REFUSED_STREAM.into())
            })?;
            let (cancelled, whole) = (self.cancelled.clone(), false);
            let turn = StreamTurn { _turn: turn, _place: place, cancelled, whole };
            let answer = match has_one_host(&request) {
                false => malformed(),
                true => {
                    self.visit.entered(request.uri().path()).await?;
                    self.visit.answer(request.map(Body::new)).await
                }
            };
            Ok(answer.map(|body| Answer::new(body, number, self.unread, turn)))
        }
    }
}

impl Whole for StreamTurn {
    fn whole(&mut self) {
        self.whole = true;
    }
}

impl Drop for StreamTurn {
    fn drop(&mut self) {
        if !self.whole {
            self.cancelled.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl<F: Future<Output = ()> + Send + 'static> Executor<F> for Tasks {
    fn execute(&self, request: F) {
        self.0.spawn(request);
    }
}

/// The cancelled requests of a connection.
struct Resets {
    since: Instant,
    count: u32,
}

impl Resets {
    /// Counts some more.
    fn are_too_many(&mut self, more: u32) -> bool {
        if self.since.elapsed() >= RESETS_TIME {
            (self.since, self.count) = (Instant::now(), 0);
        }
        self.count += more;
        self.count > RESETS
    }
}

/// Returns once the client does not take what waits for it.
async fn stalled(unread: &Unread) {
    while !unread.is_stalled() {
        sleep(LOOK_EVERY).await;
    }
}

/// Returns once no request was under way for `limit`.
async fn idle(turns: &Turns, limit: Duration) {
    loop {
        match turns.idle() {
            Some(idle) if idle >= limit => return,
            Some(idle) => sleep(LOOK_EVERY.min(limit - idle)).await,
            None => sleep(LOOK_EVERY).await,
        }
    }
}

/// Returns once an asked client had the time to go, and its last requests are answered.
async fn goodbye(turns: &Turns) {
    sleep(GOODBYE).await;
    idle(turns, GOODBYE).await;
}

/// Returns whether a request has one host: in `:authority`, in `Host`, or the same in both.
fn has_one_host<T>(request: &Request<T>) -> bool {
    let mut hosts = request.headers().get_all(HOST).iter();
    let named = hosts.next();
    if hosts.next().is_some() {
        return false;
    }
    match (request.uri().authority(), named) {
        (None, None) => false,
        (Some(authority), Some(host)) => authority.as_str().as_bytes() == host.as_bytes(),
        _ => true,
    }
}
