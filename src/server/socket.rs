//! An accepted socket: its options, and what its client sends.

use std::io;
use std::task::Context;
use std::time::Duration;

use futures_util::FutureExt;
use rustix::io::ioctl_fionread;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::Interest;
use tokio::net::{TcpStream, UnixStream};
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

/// The least bytes that a client has to take in a while: one that reads less is cut.
pub(super) const LEAST_SENT: usize = 10_000;

/// The most bytes that a client may send behind a request under way: an end behind so many that the
/// system takes no more would not be seen.
const MOST_AHEAD: u64 = 16 * 1024;

/// A connection over a network or over a unix socket.
pub(super) type Socket = Either<TcpStream, UnixStream>;

/// What a client sends.
pub(super) enum Sending {
    /// Nothing for now.
    Nothing,
    /// Bytes that nobody has read, and maybe the end behind them.
    More,
    /// No more: it has ended its sending side or sent too much, or the connection is broken.
    Ended,
}

/// Waits for the first byte of the client, and leaves it in place. `None` if the client has ended
/// its sending side, and always for a unix socket.
pub(super) async fn first_byte(socket: &Socket) -> io::Result<Option<u8>> {
    let Either::Left(stream) = socket else { return Ok(None) };
    let mut first = [0];
    let length = stream.peek(&mut first).await?;
    Ok((length > 0).then_some(first[0]))
}

/// The state of the client's sending side, behind what was read; wakes the task once there is more.
/// In the state [`Sending::More`] an end does not wake it.
pub(super) fn sending(socket: &Socket, context: &mut Context<'_>) -> Sending {
    let ready = match socket {
        Either::Left(stream) => stream.poll_read_ready(context),
        Either::Right(stream) => stream.poll_read_ready(context),
    };
    if ready.is_pending() {
        return Sending::Nothing;
    }
    let (ready, unread) = match socket {
        Either::Left(stream) => {
            (stream.ready(Interest::READABLE).now_or_never(), ioctl_fionread(stream))
        }
        Either::Right(stream) => {
            (stream.ready(Interest::READABLE).now_or_never(), ioctl_fionread(stream))
        }
    };
    let is_visible = unread.is_ok_and(|bytes| bytes <= MOST_AHEAD);
    match ready {
        Some(Ok(ready)) if is_visible && !ready.is_read_closed() => Sending::More,
        Some(_) => Sending::Ended,
        // The runtime wants the task to pause, and wakes it.
        None => Sending::Nothing,
    }
}

/// The error that has broken a connection, if one has.
pub(super) fn broken(socket: &Socket) -> Option<io::Error> {
    match socket {
        Either::Left(stream) => SockRef::from(stream).take_error(),
        Either::Right(stream) => SockRef::from(stream).take_error(),
    }
    .unwrap_or_default()
}

/// Has a peer that vanished noticed, and small answers sent at once.
pub(super) fn set_options(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_AFTER)
        .with_interval(KEEPALIVE_EVERY)
        .with_retries(KEEPALIVE_TRIES);
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&keepalive)?;
    give_up_after(&socket, UNACKNOWLEDGED)
}
