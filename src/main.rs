//! The binary: parse the arguments, run the command, exit code.

use std::process::ExitCode;

fn main() -> ExitCode {
    lockkeeper::cli::run()
}
