//! Schemathesis: whatever openapi.yaml allows and forbids, made up at random, against the binary.

use crate::support::process::BINARY;
use crate::support::process::command;

#[test]
fn schemathesis_finds_no_answer_that_breaks_the_contract() {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/schemathesis");
    let run = command("python3").args([script, BINARY]).output().unwrap();
    let text = [run.stdout, run.stderr].concat();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&text));
}
