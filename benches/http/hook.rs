//! The time that `lockkeeper hook` adds to a tool call: a process, the file of the session, and a
//! request.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::json;

use crate::report::{percentile, spread};
use crate::servers::{Server, command, lockkeeper};

/// The calls of a round, each before an edit of another file.
const CALLS: usize = 100;

/// Prints the time of a call in so many rounds.
pub(crate) fn measure(rounds: u64, server: &Server) {
    let place = tempfile::tempdir().unwrap();
    let git = Command::new("git").args(["init", "-q"]).arg(place.path()).status();
    assert!(git.unwrap().success());
    let call = |file: usize| {
        let said = json!({
            "session_id": "bench", "cwd": place.path(), "hook_event_name": "PreToolUse",
            "tool_name": "Edit", "tool_input": { "file_path": place.path().join(file.to_string()) },
        });
        let mut hook = command(lockkeeper().to_str().unwrap());
        hook.arg("hook").env("XDG_RUNTIME_DIR", place.path());
        hook.env("LOCKKEEPER_URL", format!("http://127.0.0.1:{}", server.port));
        let began = Instant::now();
        let mut hook = hook.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        write!(hook.stdin.take().unwrap(), "{said}").unwrap();
        let ended = hook.wait_with_output().unwrap();
        assert!(ended.status.success() && ended.stdout.is_empty(), "{ended:?}");
        began.elapsed().as_secs_f64() * 1e3
    };
    let times: Vec<Vec<f64>> = (0..rounds as usize)
        .map(|round| (0..CALLS).map(|one| call(round * CALLS + one)).collect())
        .collect();
    for percent in [50, 99] {
        let figures = times.iter().map(|round| percentile(round, percent));
        println!("A call of the hook, p{percent} of {CALLS}: {} ms", spread(figures, 1));
    }
}
