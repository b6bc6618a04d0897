//! The time after which a peer that acknowledges nothing is given up.

use std::io;
use std::time::Duration;

use redis::io::tcp::TcpSettings;
use socket2::SockRef;

/// Gives the peer of this socket up after so much time without an acknowledgement.
pub(crate) fn give_up_after(socket: &SockRef<'_>, unacknowledged: Duration) -> io::Result<()> {
    socket.set_tcp_user_timeout(Some(unacknowledged))
}

/// Does so for connections to Redis.
pub(crate) fn giving_up_after(settings: TcpSettings, unacknowledged: Duration) -> TcpSettings {
    settings.set_user_timeout(unacknowledged)
}
