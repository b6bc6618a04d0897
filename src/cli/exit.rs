//! Exit codes: those of `serve`, and one table for the commands that talk to a service, which the
//! README has as well.

/// `serve` was told to end, and did so before all was answered or taken back.
pub(super) const ENDED_EARLY: u8 = 3;

/// `serve` failed while it served. To be restarted.
pub(super) const FAILED: u8 = 4;

/// What is added to the number of the signal that ended COMMAND.
pub(super) const SIGNALLED: i32 = 128;

/// The service does not answer (EX_UNAVAILABLE).
pub(super) const UNREACHABLE: u8 = 69;

/// Somebody else has the key (EX_TEMPFAIL).
pub(super) const BUSY: u8 = 75;

/// The lease is lost.
pub(super) const LOST: u8 = 79;

/// COMMAND ran for too long, as with `timeout`.
pub(super) const TIMED_OUT: u8 = 124;

/// Wrong usage, a refusal of the service, a fault of our own; as with `timeout`, and so on.
pub(super) const INTERNAL: u8 = 125;

/// COMMAND cannot be executed.
pub(super) const NOT_EXECUTABLE: u8 = 126;

/// COMMAND is not there.
pub(super) const NOT_FOUND: u8 = 127;
