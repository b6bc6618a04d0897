//! The binary: parse the arguments, run the command, exit code.

use std::process::ExitCode;

/// Measured against the system's: a tenth less processor time for a request.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    lockkeeper::cli::run()
}
