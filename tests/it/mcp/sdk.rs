//! The official SDKs of the protocol, from PyPI and npm, drive `lockkeeper mcp`: tools, calls,
//! progress, cancellation, closing, and their own death.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::mcp::Stage;
use crate::support::packages::{TESTS, node_modules, python, venv};
use crate::support::process::{BINARY, command, succeeds};

fn in_python(stage: &Stage, what: &str, mode: &str) -> Command {
    let mut client = command(python(&venv("mcp/requirements.txt")));
    client.arg(Path::new(TESTS).join("mcp/client.py"));
    client.args([BINARY, &stage.http().url(), what, mode]);
    client
}

fn in_typescript(directory: &TempDir, stage: &Stage, what: &str) -> Command {
    let program = directory.path().join("client.mjs");
    if !program.exists() {
        std::fs::copy(Path::new(TESTS).join("mcp/client.mjs"), &program).unwrap();
        symlink(node_modules("mcp"), directory.path().join("node_modules")).unwrap();
    }
    let mut client = command("node");
    client.arg(program).args([BINARY, &stage.http().url(), what]);
    client
}

/// Kills a client that has the key `k`, as nobody can expect.
async fn assert_nothing_is_left_after_the_kill_of(stage: &Stage, mut client: Command) {
    let mut client = client.stdout(Stdio::piped()).spawn().unwrap();
    let mut told = String::new();
    BufReader::new(client.stdout.take().unwrap()).read_line(&mut told).unwrap();
    assert!(told.starts_with("Acquired 'k'"), "{told}");
    assert_eq!(stage.state("k").await["held"], true);
    client.kill().unwrap();
    client.wait().unwrap();
    stage.is_free("k").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_python_sdk_lists_calls_waits_cancels_and_closes() {
    let stage = Stage::new();
    succeeds(&mut in_python(&stage, "all", "legacy"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_python_sdk_does_so_in_the_protocol_without_a_handshake() {
    let stage = Stage::new();
    succeeds(&mut in_python(&stage, "all", "2026-07-28"));
    succeeds(&mut in_python(&stage, "all", "auto"));
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_of_a_python_client_that_is_killed() {
    let stage = Stage::new();
    assert_nothing_is_left_after_the_kill_of(&stage, in_python(&stage, "hold", "auto")).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_typescript_sdk_lists_calls_waits_cancels_and_closes() {
    let (stage, directory) = (Stage::new(), tempfile::tempdir().unwrap());
    succeeds(&mut in_typescript(&directory, &stage, "all"));
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_of_a_typescript_client_that_is_killed() {
    let (stage, directory) = (Stage::new(), tempfile::tempdir().unwrap());
    let client = in_typescript(&directory, &stage, "hold");
    assert_nothing_is_left_after_the_kill_of(&stage, client).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_inspector_of_the_protocol_lists_and_calls_the_tools() {
    let stage = Stage::new();
    let program = node_modules("mcp").join("@modelcontextprotocol/inspector-cli/build/cli.js");
    let inspect = |rest: &[&str]| {
        let mut inspector = command("node");
        inspector.arg(&program).args(["--cli", BINARY, "mcp", "--url", &stage.http().url()]);
        let answer: Value = serde_json::from_str(&succeeds(inspector.args(rest))).unwrap();
        answer
    };
    let tools = inspect(&["--method", "tools/list"]);
    assert_eq!(tools["tools"].as_array().unwrap().len(), 4, "{tools}");
    let call = ["--method", "tools/call", "--tool-name", "acquire", "--tool-arg", "key=k"];
    let called = inspect(&[&call[..], &["--tool-arg", "purpose=try", "slots=2"]].concat());
    let told = called["content"][0]["text"].as_str().unwrap();
    assert!(told.contains("slot 1 of 2"), "{called}");
    stage.is_free("k").await;
}
