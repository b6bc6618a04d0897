//! An accepted socket, and the time limit for clients that do not read.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use rustix::io::ioctl_fionread;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::{Sleep, sleep};
use tokio_util::either::Either;

use crate::platform::sockets::give_up_after;

/// The silence of a client after which keepalive probes begin.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(10);
/// The interval of the probes.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(5);
/// The unanswered probes allowed: a vanished peer is noticed within 20 s.
const KEEPALIVE_TRIES: u32 = 2;
/// The time that sent data may stay unacknowledged.
const UNACKNOWLEDGED: Duration = Duration::from_secs(20);

/// The time a client may block sending, and the bytes that it has to take in it. Unsent data is
/// in memory, so clients that do not read are cut.
const SEND_TIME: Duration = Duration::from_secs(10);
const LEAST_SENT: usize = 10_000;

/// The most bytes that a client may send behind a request under way: an end behind so many that the
/// system takes no more would not be seen.
const MOST_AHEAD: u64 = 16 * 1024;

/// A socket whose writes fail if its client takes too little of the data in the time limit.
pub(super) struct Socket {
    stream: Either<TcpStream, UnixStream>,
    /// The progress of a client that blocks sending.
    stall: Option<Stall>,
}

/// What a client sends.
pub(super) enum Sending {
    /// Nothing for now.
    Nothing,
    /// Bytes that nobody has read, and maybe the end behind them.
    More,
    /// No more: it has ended its sending side or sent too much, or the connection is broken.
    Ended,
}

struct Stall {
    timer: Pin<Box<Sleep>>,
    sent: usize,
}

impl Socket {
    /// A connection over a network.
    pub(super) fn tcp(stream: TcpStream) -> Self {
        if let Err(error) = set_options(&stream) {
            tracing::debug!(%error, "cannot set socket options; no keepalive");
        }
        Self { stream: Either::Left(stream), stall: None }
    }

    /// A connection over a unix socket.
    pub(super) fn unix(stream: UnixStream) -> Self {
        Self { stream: Either::Right(stream), stall: None }
    }

    /// Waits for the first byte of the client, and leaves it in place. `None` if the client has
    /// ended its sending side, and always for a unix socket.
    pub(super) async fn first_byte(&self) -> io::Result<Option<u8>> {
        let Either::Left(stream) = &self.stream else { return Ok(None) };
        let mut first = [0];
        let length = stream.peek(&mut first).await?;
        Ok((length > 0).then_some(first[0]))
    }

    /// The state of the client's sending side, behind what was read; wakes the task once there is
    /// more. In the state [`Sending::More`] an end does not wake it.
    pub(super) fn sending(&self, context: &mut Context<'_>) -> Sending {
        let ready = match &self.stream {
            Either::Left(stream) => stream.poll_read_ready(context),
            Either::Right(stream) => stream.poll_read_ready(context),
        };
        if ready.is_pending() {
            return Sending::Nothing;
        }
        let ready = match &self.stream {
            Either::Left(stream) => stream.ready(Interest::READABLE).now_or_never(),
            Either::Right(stream) => stream.ready(Interest::READABLE).now_or_never(),
        };
        let unread = match &self.stream {
            Either::Left(stream) => ioctl_fionread(stream),
            Either::Right(stream) => ioctl_fionread(stream),
        };
        let is_visible = unread.is_ok_and(|bytes| bytes <= MOST_AHEAD);
        match ready {
            Some(Ok(ready)) if is_visible && !ready.is_read_closed() => Sending::More,
            Some(_) => Sending::Ended,
            // The runtime wants the task to pause, and wakes it.
            None => Sending::Nothing,
        }
    }

    /// Fails if the client takes too little of the data in the time limit.
    fn wait_to_send(&mut self, context: &mut Context<'_>) -> io::Result<()> {
        let anew = || Stall { timer: Box::pin(sleep(SEND_TIME)), sent: 0 };
        let stall = self.stall.get_or_insert_with(anew);
        while stall.timer.as_mut().poll(context).is_ready() {
            if stall.sent < LEAST_SENT {
                return Err(io::ErrorKind::TimedOut.into());
            }
            *stall = anew();
        }
        Ok(())
    }

    fn written(
        &mut self,
        context: &mut Context<'_>,
        polled: Poll<io::Result<usize>>,
    ) -> Poll<io::Result<usize>> {
        match (&polled, &mut self.stall) {
            (Poll::Pending, _) => self.wait_to_send(context)?,
            (Poll::Ready(Ok(length)), Some(stall)) => stall.sent += length,
            _ => (),
        }
        polled
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
    give_up_after(&socket, UNACKNOWLEDGED)
}

impl AsyncRead for Socket {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Socket {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let polled = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.written(context, polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Both hyper and TLS flush only once everything is written.
        self.stall = None;
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
        let polled = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.written(context, polled)
    }
}
