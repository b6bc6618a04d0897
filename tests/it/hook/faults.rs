//! Faults around `lockkeeper hook`: a git that fails, a call that meets the end of its turn, calls
//! that are killed or denied, an end without the service.

use std::process::{Command, Output};

use serde_json::json;

use crate::hook::{Stage, input};
use crate::support::process::{BINARY, command};

impl Stage {
    /// Runs another program, or with other variables, before the edit of a file.
    fn ran_by(&self, mut program: Command, session: &str, file: &str) -> Output {
        program.env("LOCKKEEPER_URL", self.http().url());
        let call = input(session, "PreToolUse", &json!({ "file_path": self.path(file) }));
        self.fed(program, &call)
    }
}

fn assert_denied_by_a_failure(ran: &Output, told: &str) {
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_eq!((ran.status.code(), ran.stdout.len()), (Some(2), 0), "{said}");
    assert!(said.contains(told), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_before_the_call_is_read_denies_it_too() {
    let stage = Stage::new();
    for name in ["hook", "mcp"] {
        let mut shell = command("sh");
        shell.args(["-c", r#"ulimit -n 20; exec "$0" "$1""#, BINARY, name]);
        let ran = stage.ran_by(shell, "one", "shop/src/cart.rs");
        assert_denied_by_a_failure(&ran, "open files (ulimit -n)");
    }
}
