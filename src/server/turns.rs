//! The turns on a connection, shared by its handlers and its stream.

use std::future::poll_fn;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Bytes, HttpBody};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::{Request, Version};
use tokio::time::Instant;

use crate::api::InLineFlag;
use crate::lock::time::millis_down;

/// The start of the connections' millisecond clock.
static STARTED: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Shows whether the client has to send a head or the service has to answer, and when.
#[derive(Debug)]
pub(super) struct Turns {
    pub(super) begun: AtomicU32,
    ended: AtomicU32,
    /// The number of runs of the connection's task.
    pub(super) moments: AtomicU32,
    /// The end of the last turn, in milliseconds since [`STARTED`].
    quiet_since: AtomicU64,
    /// Set if the current or last request was read to the end of its body.
    pub(super) whole: AtomicBool,
    /// Set if its client knows interim answers.
    pub(super) modern: AtomicBool,
    /// Set if the current request waits in line.
    pub(super) in_line: InLineFlag,
    /// Set if the client of the current request may be gone.
    pub(super) doubtful: AtomicBool,
    /// Set if the current head has what hyper lets pass.
    pub(super) faulty: AtomicBool,
}

/// The service's turn, until dropped.
pub(super) struct ServiceTurn(Arc<Turns>);

/// A request body that tells the connection when it has been read.
pub(super) struct Read {
    body: Incoming,
    turns: Arc<Turns>,
}

impl Turns {
    /// The turns of a new connection.
    pub(super) fn new() -> Arc<Self> {
        let turns = Self {
            begun: AtomicU32::new(0),
            ended: AtomicU32::new(0),
            moments: AtomicU32::new(0),
            quiet_since: AtomicU64::new(0),
            whole: AtomicBool::new(true),
            modern: AtomicBool::new(false),
            in_line: InLineFlag::default(),
            doubtful: AtomicBool::new(false),
            faulty: AtomicBool::new(false),
        };
        turns.be_quiet();
        Arc::new(turns)
    }

    /// The time without a request under way; `None` during one.
    pub(super) fn idle(&self) -> Option<Duration> {
        let since = Duration::from_millis(self.quiet_since.load(Ordering::Relaxed));
        (!self.is_answering()).then(|| STARTED.elapsed().saturating_sub(since))
    }

    /// Returns whether the last head has what hyper lets pass: a `#` in the path, a bare LF.
    pub(super) fn was_faulty(&self) -> bool {
        self.faulty.swap(false, Ordering::Relaxed)
    }

    /// Returns whether a request is under way.
    pub(super) fn is_answering(&self) -> bool {
        self.ended.load(Ordering::Relaxed) != self.begun.load(Ordering::Relaxed)
    }

    fn be_quiet(&self) {
        let now = millis_down(STARTED.elapsed());
        self.quiet_since.store(now, Ordering::Relaxed);
    }
}

impl ServiceTurn {
    /// Begins a turn with a request whose head was read.
    pub(super) fn begin(turns: &Arc<Turns>, request: &Request<Incoming>) -> Self {
        turns.begun.fetch_add(1, Ordering::Relaxed);
        turns.whole.store(request.body().is_end_stream(), Ordering::Relaxed);
        turns.in_line.set(false);
        turns.doubtful.store(false, Ordering::Relaxed);
        turns.modern.store(request.version() == Version::HTTP_11, Ordering::Relaxed);
        Self(turns.clone())
    }

    /// Runs `answer` only while the client is known to be connected. The connection's task runs
    /// again once that is known.
    pub(super) async fn unless_in_doubt<T>(&self, answer: impl Future<Output = T>) -> T {
        let mut answer = pin!(answer);
        poll_fn(|context| match self.0.doubtful.load(Ordering::Relaxed) {
            true => Poll::Pending,
            false => answer.as_mut().poll(context),
        })
        .await
    }

    /// The flag by which the request says whether it waits in line.
    pub(super) fn in_line(&self) -> InLineFlag {
        self.0.in_line.clone()
    }

    /// The body of the request.
    pub(super) fn reading(&self, body: Incoming) -> Read {
        Read { body, turns: self.0.clone() }
    }
}

impl Drop for ServiceTurn {
    fn drop(&mut self) {
        self.0.be_quiet();
        self.0.ended.fetch_add(1, Ordering::Relaxed);
    }
}

impl HttpBody for Read {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if matches!(polled, Poll::Ready(None)) || self.body.is_end_stream() {
            self.turns.whole.store(true, Ordering::Relaxed);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
