//! The runtime of the commands that talk to a service.

use rustix::io::fcntl_dupfd_cloexec;
use tokio::runtime::{Builder, Runtime};

/// More descriptors than a command and its children open at once. With fewer, something fails after
/// the lease is granted, or the runtime panics.
const DESCRIPTORS: usize = 24;

/// Runs a command to its end. The error, that it cannot be run, says what to do.
pub(super) fn run<T>(command: impl Future<Output = T>) -> Result<T, String> {
    let runtime = runtime()?;
    let done = runtime.block_on(command);
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
