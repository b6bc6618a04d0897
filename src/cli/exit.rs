//! Exit codes of `serve` and of the commands that talk to a service.
//! docs/reference.md has the same table.

/// `serve` was ended by a signal before all requests were answered and grants undone.
pub(super) const ENDED_EARLY: u8 = 3;

/// `serve` failed while serving; a supervisor should restart it.
pub(super) const FAILED: u8 = 4;

/// Added to the number of the signal that ended COMMAND.
pub(super) const SIGNALLED: i32 = 128;

/// The service is unreachable (EX_UNAVAILABLE).
pub(super) const UNREACHABLE: u8 = 69;

/// Another client holds the key (EX_TEMPFAIL).
pub(super) const BUSY: u8 = 75;

/// The lease is lost.
pub(super) const LOST: u8 = 79;

/// COMMAND ran longer than --max-run, as with `timeout`.
pub(super) const TIMED_OUT: u8 = 124;

/// Wrong usage, a refused request or an internal error. As in `timeout`, like the codes below.
pub(super) const INTERNAL: u8 = 125;

/// COMMAND cannot be executed.
pub(super) const NOT_EXECUTABLE: u8 = 126;

/// COMMAND was not found.
pub(super) const NOT_FOUND: u8 = 127;
