//! How the process starts, what it refuses to start with, and how it treats connections.

mod commands;
mod connections;
mod ending;
mod hostile;
mod refusals;

use std::process::Output;

use crate::support::process::{BINARY, command};

/// Runs the binary to its end, which does not wait for a service that starts against all
/// expectation, in a directory where it may leave what it likes.
fn run(arguments: &[&str], variables: &[(&str, &str)]) -> Output {
    let directory = tempfile::tempdir().unwrap();
    command("timeout")
        .args(["20", BINARY])
        .args(arguments)
        .envs(variables.iter().copied())
        .current_dir(directory.path())
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}
