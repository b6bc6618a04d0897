//! Linux: a clock that counts suspension, /proc, signalfd, and TCP_USER_TIMEOUT.

pub(crate) mod clock;
pub(crate) mod processes;
pub(crate) mod signals;
pub(crate) mod sockets;
