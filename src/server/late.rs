//! The end of a connection with HTTP/2, which is reported only once all its requests were heard:
//! else a request and the end at once would be the end without the request, but a client that sends
//! DELETE and hangs up must still release.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};

use axum::body::{Bytes, HttpBody};
use futures_util::task::AtomicWaker;
use hyper::body::{Frame, Incoming, SizeHint};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::server::tls::Transport;
use crate::server::turns::Turns;

/// The number of requests of a connection whose bodies were not read to their ends.
#[derive(Debug, Default)]
pub(super) struct Unheard {
    count: AtomicU32,
    waker: AtomicWaker,
}

/// One of them, until dropped.
struct UnheardOne(Arc<Unheard>);

/// A request body. Its request is heard once the body was read, or dropped.
pub(super) struct Hearing {
    body: Incoming,
    unheard: Option<UnheardOne>,
}

/// A connection that reports its end late: not in the same run as data before it, and not before
/// all requests were heard. hyper gives each request a task of its own, which may not have run yet.
pub(super) struct LateEnd {
    transport: Transport,
    turns: Arc<Turns>,
    unheard: Arc<Unheard>,
    /// The run of the connection's task that last read something.
    read_at: Option<u32>,
}

impl Unheard {
    /// Counts a request, whose body this is, until it was heard.
    pub(super) fn hear(self: &Arc<Self>, body: Incoming) -> Hearing {
        self.count.fetch_add(1, Ordering::AcqRel);
        Hearing { body, unheard: Some(UnheardOne(self.clone())) }
    }

    /// Returns whether all were heard; wakes the task once they are.
    fn is_none(&self, context: &mut Context<'_>) -> bool {
        self.waker.register(context.waker());
        self.count.load(Ordering::Acquire) == 0
    }
}

impl Drop for UnheardOne {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::AcqRel);
        self.0.waker.wake();
    }
}

impl HttpBody for Hearing {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<hyper::Result<Frame<Bytes>>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        if matches!(polled, Poll::Ready(None | Some(Err(_)))) {
            self.unheard = None;
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

impl LateEnd {
    /// The connection with these turns and requests.
    pub(super) fn new(transport: Transport, turns: Arc<Turns>, unheard: Arc<Unheard>) -> Self {
        Self { transport, turns, unheard, read_at: None }
    }
}

impl AsyncRead for LateEnd {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let moment = Some(self.turns.moments.load(Ordering::Relaxed));
        let filled = buffer.filled().len();
        let polled = Pin::new(&mut self.transport).poll_read(context, buffer);
        if buffer.filled().len() > filled {
            self.read_at = moment;
        } else if polled.is_ready() && self.read_at == moment {
            context.waker().wake_by_ref();
            return Poll::Pending;
        } else if polled.is_ready() && !self.unheard.is_none(context) {
            return Poll::Pending;
        }
        polled
    }
}

impl AsyncWrite for LateEnd {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.transport).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.transport).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.transport).poll_shutdown(context)
    }

    fn is_write_vectored(&self) -> bool {
        self.transport.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.transport).poll_write_vectored(context, slices)
    }
}
