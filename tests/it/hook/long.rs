//! Two sessions that edit the same files for many rounds, while calls and whole sessions are killed.

use std::collections::BTreeMap;
use std::io::Write;
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::json;

use crate::hook::{Stage, denial, input};
use crate::support::eventually;
use crate::support::process::{BINARY, command};

const FILES: usize = 20;
const ROUNDS: usize = 200;

/// Longer than a round takes on a busy machine: a session that is silent for so long has lost its
/// files, and does not know it yet.
const TTL: Duration = Duration::from_secs(15);

/// Longer than all rounds take: more would be a session that waits for ever.
const MOST_TIME: Duration = Duration::from_secs(900);

/// One call in so many is killed, and its session with it.
const ONE_IN: u32 = 150;

/// Who edits a file now.
type Editing = Arc<Mutex<BTreeMap<usize, usize>>>;

#[derive(Debug, Default)]
struct Counts {
    edited: usize,
    denied: usize,
    killed: usize,
}

impl Stage {
    /// Runs the hook and kills it at any moment.
    fn killed(&self, session: &str, file: &str) {
        let mut hook = command(BINARY);
        hook.args(["hook", "--ttl", &format!("{}s", TTL.as_secs())]);
        hook.env("LOCKKEEPER_URL", self.http().url());
        hook.env("XDG_RUNTIME_DIR", self.directory.path());
        let mut hook = hook.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let path = self.path(file);
        let said = input(session, "PreToolUse", &json!({ "file_path": path })).to_string();
        hook.stdin.take().unwrap().write_all(said.as_bytes()).unwrap();
        let moment = Instant::now() + Duration::from_micros(fastrand::u64(0..12_000));
        while Instant::now() < moment {
            std::thread::yield_now();
        }
        hook.kill().unwrap();
        hook.wait().unwrap();
    }

    /// All files once, in an order of its own; it ends early if it is killed.
    fn round(&self, who: usize, round: usize, editing: &Editing, counts: &mut Counts) {
        let name = format!("session-{who}-{round}");
        let ttl = format!("{}s", TTL.as_secs());
        let mut files: Vec<_> = (0..FILES).collect();
        fastrand::shuffle(&mut files);
        let leaves = || editing.lock().unwrap().retain(|_, other| *other != who);
        for file in files {
            let path = format!("shop/src/{file}.rs");
            if fastrand::u32(0..ONE_IN) == 0 {
                self.killed(&name, &path);
                counts.killed += 1;
                return leaves();
            }
            match self.said_with(&["--ttl", &ttl], &name, "PreToolUse", &self.path(&path)) {
                Some(said) => {
                    denial(Some(said));
                    counts.denied += 1;
                }
                None => {
                    let other = editing.lock().unwrap().insert(file, who);
                    assert!(other.is_none_or(|other| other == who), "two at {file}");
                    counts.edited += 1;
                }
            }
        }
        leaves();
        self.said_with(&[], &name, "SessionEnd", &self.path("shop"));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_sessions_with_kills_never_edit_one_file_at_a_time_and_leave_nothing() {
    let (stage, editing, began) = (Arc::new(Stage::new()), Editing::default(), Instant::now());
    let sessions = (0..2).map(|who| {
        let (stage, editing) = (stage.clone(), editing.clone());
        tokio::task::spawn_blocking(move || {
            let mut counts = Counts::default();
            for round in 0..ROUNDS {
                stage.round(who, round, &editing, &mut counts);
            }
            counts
        })
    });
    let mut all = Vec::new();
    for session in sessions.collect::<Vec<_>>() {
        all.push(session.await.unwrap());
    }
    assert!(began.elapsed() < MOST_TIME, "{:?}", began.elapsed());
    for counts in &all {
        let Counts { edited, denied, killed } = counts;
        assert!(*edited > ROUNDS && *denied > 0 && *killed > 0, "{all:?}");
    }
    eprintln!("{all:?} in {:?}", began.elapsed());
    // What killed sessions had ends by its TTL.
    let nothing = async || stage.held().await.is_empty().then_some(());
    eventually(2 * TTL, nothing).await;
}
