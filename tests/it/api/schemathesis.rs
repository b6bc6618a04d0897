//! Schemathesis: whatever openapi.yaml allows and forbids, made up at random, against the binary.

use crate::support::packages::{TESTS, python, venv};
use crate::support::process::{BINARY, command, succeeds};

#[test]
fn schemathesis_finds_no_answer_that_breaks_the_contract() {
    let python = python(&venv("schemathesis/requirements.txt"));
    let script = format!("{TESTS}/schemathesis/run.py");
    succeeds(command(python).args([&script, BINARY]));
}
