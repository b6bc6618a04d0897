//! The runtime of the commands that talk to a service.

use rustix::io::fcntl_dupfd_cloexec;
use tokio::runtime::{Builder, Runtime};

use crate::cli::exit;
use crate::cli::exit::Failure;
use crate::cli::voice::{Voice, flush};

/// More descriptors than a command and its children open at once. With fewer, something fails after
/// the lease is granted, or the runtime panics.
const DESCRIPTORS: usize = 24;

/// Runs a command to its end, reports why it failed, and returns its exit code.
pub(super) fn command(voice: Voice, command: impl Future<Output = Result<u8, Failure>>) -> u8 {
    ended(voice, run(command).map_err(Failure::from).flatten())
}

/// The same for the harness of an agent: it takes 2 for a denial, and would let a call pass after
/// any other failure.
pub(super) fn for_harness(voice: Voice, command: impl Future<Output = Result<u8, Failure>>) -> u8 {
    let done = run(command).map_err(Failure::from).flatten();
    ended(voice, done.map_err(|failure| Failure { code: exit::WRONG_USAGE, ..failure }))
}

fn ended(voice: Voice, done: Result<u8, Failure>) -> u8 {
    let code = done.unwrap_or_else(|failure| failure.say(voice, exit::BUSY));
    flush();
    code
}

/// Runs a future to its end. The error, that it cannot be run, says what to do.
pub(super) fn run<T>(future: impl Future<Output = T>) -> Result<T, String> {
    let runtime = runtime()?;
    let done = runtime.block_on(future);
    // A hanging name look-up must not keep us.
    runtime.shutdown_background();
    Ok(done)
}

fn runtime() -> Result<Runtime, String> {
    let (reader, _writer) = std::io::pipe().map_err(|error| too_few(&error))?;
    let room = (0..DESCRIPTORS).map(|_| fcntl_dupfd_cloexec(&reader, 0));
    room.collect::<Result<Vec<_>, _>>().map_err(|error| too_few(&error))?;
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| format!("cannot start the runtime: {error}"))
}

fn too_few(error: &dyn std::fmt::Display) -> String {
    format!("{error}; allow at least {} open files (ulimit -n)", 2 * DESCRIPTORS)
}
