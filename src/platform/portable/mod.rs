//! Every Unix, such as macOS.

pub(crate) mod clock;
pub(crate) mod processes;
pub(crate) mod signals;
pub(crate) mod sockets;
