//! What operating systems do differently. `linux` has all that lockkeeper uses. `portable` does
//! what every Unix can, such as macOS; each of its items says what is missing. Nothing else names
//! what only Linux has (`tests/tidy/layers.rs`).
//!
//! The feature `portable` selects that sibling on Linux, so that it is compiled and tried there.

#[cfg(all(target_os = "linux", not(feature = "portable")))]
mod linux;
#[cfg(not(all(target_os = "linux", not(feature = "portable"))))]
mod portable;

#[cfg(all(target_os = "linux", not(feature = "portable")))]
pub(crate) use self::linux::{clock, processes, signals, sockets};
#[cfg(not(all(target_os = "linux", not(feature = "portable"))))]
pub(crate) use self::portable::{clock, processes, signals, sockets};

/// The sender of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sender {
    /// The terminal, to its whole foreground process group.
    Terminal,
    /// A process, to this process.
    Process,
}
