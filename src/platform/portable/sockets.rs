//! The time after which a peer that acknowledges nothing is given up: the system's own, minutes on
//! macOS. An idle peer that is gone is noticed by keepalive as elsewhere.

use std::io;
use std::time::Duration;

use redis::io::tcp::TcpSettings;
use socket2::SockRef;

/// Leaves the time to the system.
pub(crate) fn give_up_after(_: &SockRef<'_>, _: Duration) -> io::Result<()> {
    Ok(())
}

/// Leaves the time to the system.
pub(crate) fn giving_up_after(settings: TcpSettings, _: Duration) -> TcpSettings {
    settings
}
