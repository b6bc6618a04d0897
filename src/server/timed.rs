//! A connection's stream with what hyper leaves to it: the time limits of a head and of a client
//! that does not read, and clients that go while their request is under way.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep, sleep_until};

use crate::server::connection_state::ConnectionState;
use crate::server::socket::{LEAST_SENT, Sending, broken, sending};
use crate::server::tls::{Transport, socket};

/// The interval of looks for the end behind bytes that a client has sent ahead.
const LOOK_EVERY: Duration = Duration::from_millis(50);

/// The time in which a client that blocks sending has to take [`LEAST_SENT`].
const SEND_TIME: Duration = Duration::from_secs(10);

/// The errors of a connection that the client closed.
const CLOSED: [io::ErrorKind; 4] = [
    io::ErrorKind::BrokenPipe,
    io::ErrorKind::ConnectionAborted,
    io::ErrorKind::ConnectionReset,
    io::ErrorKind::UnexpectedEof,
];

/// A stream that closes four gaps of hyper. hyper has one timer for a head and the silence before
/// it, but only the silence may be long. If it reads a request and the end at once, it drops the
/// handler before its first poll, but a client that sends DELETE and hangs up must still release.
/// It stops reading at the first byte of the next request, behind which it misses the end. And it
/// keeps an answer in memory for a client that does not read.
pub(super) struct Timed {
    stream: Transport,
    state: Arc<ConnectionState>,
    head_time: Duration,
    /// The end of the time for the current head.
    late: Option<Pin<Box<Sleep>>>,
    /// The time of the next look.
    look: Option<Pin<Box<Sleep>>>,
    /// Set if hyper has read something since it last wrote or flushed, after it ran the handler.
    has_read: bool,
    /// The progress of a client that blocks sending.
    stall: Option<Stall>,
}

struct Stall {
    timer: Pin<Box<Sleep>>,
    sent: usize,
}

impl Timed {
    pub(super) fn new(stream: Transport, state: Arc<ConnectionState>, head_time: Duration) -> Self {
        Self { stream, state, head_time, late: None, look: None, has_read: false, stall: None }
    }

    /// Returns whether the current head takes too long; wakes the task when it does.
    fn is_late(&mut self, context: &mut Context<'_>) -> bool {
        let Some(since) = self.state.head_since() else { return false };
        let end = since + self.head_time;
        let late = self.late.take().filter(|late| late.deadline() == end);
        let late = self.late.insert(late.unwrap_or_else(|| Box::pin(sleep_until(end))));
        late.as_mut().poll(context).is_ready()
    }

    /// Returns whether the client of a request under way has ended its sending side; wakes the task
    /// once it may have. Not in a run that has read something, which may belong to the request.
    fn is_gone(&mut self, context: &mut Context<'_>) -> bool {
        let has_read = std::mem::take(&mut self.has_read);
        match sending(socket(&self.stream), context) {
            Sending::Nothing => (),
            Sending::More => {
                let look = self.look.get_or_insert_with(|| Box::pin(sleep(LOOK_EVERY)));
                if look.as_mut().poll(context).is_ready() {
                    self.look = None;
                    context.waker().wake_by_ref();
                }
            }
            Sending::Ended if has_read => context.waker().wake_by_ref(),
            Sending::Ended => {
                if let Some(error) = broken(socket(&self.stream)) {
                    self.note(&error);
                }
                return true;
            }
        }
        false
    }

    /// Notes why the connection broke: its client closed it, unless it fell silent.
    fn note(&self, error: &io::Error) {
        if !CLOSED.contains(&error.kind()) {
            self.state.timed_out.set();
        }
    }

    /// Fails if a write is blocked and the client has taken too little in the time limit.
    fn limited<T>(
        &mut self,
        context: &mut Context<'_>,
        polled: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if let Poll::Ready(Err(error)) = &polled {
            self.note(error);
        }
        if polled.is_ready() {
            return polled;
        }
        let anew = || Stall { timer: Box::pin(sleep(SEND_TIME)), sent: 0 };
        let stall = self.stall.get_or_insert_with(anew);
        while stall.timer.as_mut().poll(context).is_ready() {
            if stall.sent < LEAST_SENT {
                self.state.timed_out.set();
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            *stall = anew();
        }
        Poll::Pending
    }
}

impl AsyncRead for Timed {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let filled = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(context, buffer);
        if let Poll::Ready(Err(error)) = &polled {
            self.note(error);
        }
        let read = &buffer.filled()[filled..];
        self.has_read |= !read.is_empty();
        if !self.state.is_busy() {
            if polled.is_pending() && self.is_late(context) {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
            if !read.is_empty() {
                self.state.reads_head(read);
            }
        } else if self.has_read && read.is_empty() && polled.is_ready() {
            context.waker().wake_by_ref(); // The end is found again at the next run.
            return Poll::Pending;
        }
        polled
    }
}

impl AsyncWrite for Timed {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(context, &[io::IoSlice::new(bytes)])
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // hyper flushes at the end of every run.
        if self.state.is_busy() && self.is_gone(context) {
            return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
        }
        let polled = Pin::new(&mut self.stream).poll_flush(context);
        if polled.is_ready() {
            self.stall = None; // hyper flushes only once everything is written.
        }
        self.limited(context, polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.stream).poll_shutdown(context);
        self.limited(context, polled)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.has_read = false;
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        if let (Poll::Ready(Ok(length)), Some(stall)) = (&polled, &mut self.stall) {
            stall.sent += length;
        }
        self.limited(context, polled)
    }
}
