//! `lockkeeper hook`, as the harness of a coding agent runs it: never two sessions at one file, a
//! denial that names the holder, nothing held after the end.

mod faults;
mod long;

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::spawn_blocking;

use crate::support::process::{BINARY, command};
use crate::support::{Http, NOWHERE, PATIENCE, Process, eventually};

struct Stage {
    directory: TempDir,
    service: Process,
}

impl Stage {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = format!("embedded:{}", directory.path().join("data").display());
        let service = Process::start(&store, &[]);
        std::fs::create_dir_all(directory.path().join("shop/src")).unwrap();
        let stage = Self { directory, service };
        stage.git("shop", &["init", "-q"]);
        stage.git("shop", &["remote", "add", "origin", "git@forge.example:team/shop.git"]);
        stage
    }

    fn git(&self, directory: &str, arguments: &[&str]) {
        let done = command("git")
            .args(["-c", "user.name=a", "-c", "user.email=a@b.example", "-C"])
            .arg(self.path(directory))
            .args(arguments)
            .output()
            .unwrap();
        assert!(done.status.success(), "{done:?}");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn http(&self) -> Http {
        self.service.http()
    }

    /// What the hook answers to a call of a session.
    fn said(&self, session: &str, event: &str, file: &Path) -> Option<Value> {
        self.said_with(&[], session, event, file)
    }

    fn said_with(
        &self,
        options: &[&str],
        session: &str,
        event: &str,
        file: &Path,
    ) -> Option<Value> {
        let input = input(session, event, &json!({ "file_path": file, "old_string": "a" }));
        let ran = self.ran(options, &self.http().url(), &input);
        assert_eq!((ran.status.code(), &*ran.stderr), (Some(0), &b""[..]), "{ran:?}");
        (!ran.stdout.is_empty()).then(|| serde_json::from_slice(&ran.stdout).unwrap())
    }

    fn ran(&self, options: &[&str], url: &str, input: &Value) -> Output {
        let mut hook = command(BINARY);
        hook.arg("hook").args(options).env("LOCKKEEPER_URL", url);
        self.fed(hook, input)
    }

    /// Runs a command, as a harness does, and says this to it.
    fn fed(&self, hook: Command, input: &Value) -> Output {
        self.begun(hook, input).wait_with_output().unwrap()
    }

    fn begun(&self, mut hook: Command, input: &Value) -> Child {
        hook.env("XDG_RUNTIME_DIR", self.directory.path());
        hook.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut hook = hook.spawn().unwrap();
        // A command that fails at once may not read it.
        let _ = hook.stdin.take().unwrap().write_all(input.to_string().as_bytes());
        hook
    }

    /// The number of renewals by now, if there were some.
    async fn renewals(&self) -> Option<String> {
        let metrics = self.http().get("/metrics").await.body;
        let metrics = String::from_utf8(metrics.to_vec()).unwrap();
        let name = "lockkeeper_refresh_total{outcome=\"ok\"} ";
        metrics.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned)
    }

    async fn held(&self) -> Vec<String> {
        let locks = self.http().get("/locks").await.json()["locks"].clone();
        let keys = locks.as_array().unwrap().iter().map(|lock| lock["key"].as_str().unwrap());
        keys.map(str::to_owned).collect()
    }
}

/// What Claude Code says, by its documentation.
fn input(session: &str, event: &str, tool_input: &Value) -> Value {
    json!({
        "session_id": session,
        "transcript_path": "/home/dev/.claude/projects/shop/transcript.jsonl",
        "cwd": "/",
        "permission_mode": "default",
        "hook_event_name": event,
        "tool_name": "Edit",
        "tool_input": tool_input,
        "tool_use_id": "toolu_01",
    })
}

fn denial(said: Option<Value>) -> String {
    let said = said.expect("a denial");
    let decision = &said["hookSpecificOutput"];
    assert_eq!(decision["hookEventName"], "PreToolUse", "{said}");
    assert_eq!(decision["permissionDecision"], "deny", "{said}");
    decision["permissionDecisionReason"].as_str().unwrap().to_owned()
}

const KEY: &str = "edit/forge.example/team/shop/src/cart.rs";

#[tokio::test(flavor = "multi_thread")]
async fn a_session_has_a_file_until_it_ends_and_another_is_told_who_has_it() {
    let stage = Stage::new();
    let cart = stage.path("shop/src/cart.rs");
    assert_eq!(stage.said("one-0123456789", "PreToolUse", &cart), None);
    assert_eq!(stage.said("one-0123456789", "PostToolUse", &cart), None);
    assert_eq!(stage.held().await, [KEY]);
    let state = stage.http().get(&format!("/locks/{KEY}")).await.json();
    assert!(state["owner"].as_str().unwrap().ends_with("claude-code one-0123"), "{state}");
    assert!((500_000..=600_000).contains(&state["ttl_ms"].as_u64().unwrap()), "{state}");

    let why = denial(stage.said("two", "PreToolUse", &cart));
    assert!(why.contains(&format!("'{KEY}' is held")) && why.contains("one-0123"), "{why}");
    let other = stage.path("shop/src/order.rs");
    assert_eq!(stage.said("two", "PreToolUse", &other), None);
    assert_eq!(stage.said("one-0123456789", "SessionEnd", &cart), None);
    assert_eq!(stage.held().await, [KEY.replace("cart", "order")]);

    // The file may be another one than the second session has read.
    let why = denial(stage.said("two", "PreToolUse", &cart));
    assert!(why.contains("read the file once more"), "{why}");
    assert_eq!(stage.said("two", "PreToolUse", &cart), None);
    assert_eq!(stage.said("two", "Stop", &cart), None);
    assert_eq!(stage.held().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_has_ended_is_told_once() {
    let stage = Stage::new();
    let cart = stage.path("shop/src/cart.rs");
    assert_eq!(stage.said("one", "PreToolUse", &cart), None);
    stage.http().delete(&format!("/admin/locks/{KEY}")).await;
    let said = stage.said("one", "PostToolUse", &cart).unwrap();
    assert_eq!(said["decision"], "block", "{said}");
    assert!(said["reason"].as_str().unwrap().contains("read the file once more"), "{said}");
    assert_eq!(stage.said("one", "PreToolUse", &cart), None);
    // Another session has it by now: both may have written.
    stage.http().delete(&format!("/admin/locks/{KEY}")).await;
    assert_eq!(stage.said("two", "PreToolUse", &cart), None);
    let said = stage.said("one", "PostToolUse", &cart).unwrap();
    assert!(said["reason"].as_str().unwrap().contains("both may have written it"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_has_waited_for_a_file_reads_it_once_more() {
    let stage = Arc::new(Stage::new());
    let cart = stage.path("shop/src/cart.rs");
    assert_eq!(stage.said("one", "PreToolUse", &cart), None);
    let waiting = {
        let (stage, cart) = (stage.clone(), cart.clone());
        spawn_blocking(move || stage.said_with(&["-w", "50s"], "two", "PreToolUse", &cart))
    };
    let waits = async || {
        let state = stage.http().get(&format!("/locks/{KEY}")).await.json();
        (state["waiters"] == 1).then_some(())
    };
    eventually(PATIENCE, waits).await;
    assert_eq!(stage.said("one", "Stop", &cart), None);
    let why = denial(waiting.await.unwrap());
    assert!(why.contains("read the file once more"), "{why}");
    assert_eq!(stage.said("two", "PreToolUse", &cart), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_could_not_be_released_is_released_by_the_next_end() {
    let stage = Stage::new();
    let cart = stage.path("shop/src/cart.rs");
    assert_eq!(stage.said("one", "PreToolUse", &cart), None);
    let url = stage.http().url();
    let end = input("one", "SessionEnd", &json!({}));
    stage.service.stop();
    let ran = stage.ran(&[], &url, &end);
    assert_eq!((ran.status.code(), ran.stdout.len()), (Some(0), 0), "{ran:?}");
    assert!(!ran.stderr.is_empty());
    stage.service.signal("CONT");
    let ran = stage.ran(&[], &url, &end);
    assert_eq!(ran.status.code(), Some(0), "{ran:?}");
    assert_eq!(stage.held().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn every_call_renews_what_its_session_holds() {
    let stage = Stage::new();
    let [cart, order] = ["cart", "order"].map(|name| stage.path(&format!("shop/src/{name}.rs")));
    assert_eq!(stage.said("one", "PreToolUse", &cart), None);
    assert_eq!(stage.said("one", "PreToolUse", &order), None);
    assert_eq!(stage.renewals().await, None, "nearly all of its time is left");
    // Soon half of the shortest TTL is over.
    eventually(PATIENCE, async || {
        assert_eq!(stage.said_with(&["--ttl", "100ms"], "one", "PreToolUse", &order), None);
        stage.renewals().await
    })
    .await;
    // One without a file too.
    let before = stage.renewals().await;
    let shell = input("one", "PreToolUse", &json!({ "command": "make" }));
    eventually(PATIENCE, async || {
        let ran = stage.ran(&["--ttl", "100ms"], &stage.http().url(), &shell);
        assert_eq!((ran.status.code(), ran.stdout.len()), (Some(0), 0), "{ran:?}");
        (stage.renewals().await != before).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn worktrees_clones_and_links_of_a_file_are_one_file() {
    let stage = Stage::new();
    let git = |directory: &str, arguments: &[&str]| stage.git(directory, arguments);
    std::fs::create_dir(stage.path("alone")).unwrap();
    git("alone", &["init", "-q"]);
    git("alone", &["commit", "-q", "--allow-empty", "-m", "first"]);
    git("alone", &["worktree", "add", "-q", "../beside"]);
    assert_eq!(stage.said("one", "PreToolUse", &stage.path("alone/new/a file.rs")), None);
    denial(stage.said("two", "PreToolUse", &stage.path("beside/new/a file.rs")));
    std::os::unix::fs::symlink(stage.path("alone"), stage.path("link")).unwrap();
    denial(stage.said("two", "PreToolUse", &stage.path("link/new/a file.rs")));
    // Of a clone, by its remote.
    git("alone", &["remote", "add", "origin", "https://forge.example/team/shop"]);
    assert_eq!(stage.said("three", "PreToolUse", &stage.path("shop/src/cart.rs")), None);
    denial(stage.said("four", "PreToolUse", &stage.path("alone/src/cart.rs")));
    // A name that no key can have, and a file of no repository.
    assert_eq!(stage.said("three", "PreToolUse", &stage.path("shop/refresh")), None);
    assert_eq!(stage.said("three", "PreToolUse", &stage.path("elsewhere/a.txt")), None);
    assert_eq!(stage.held().await.len(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_names_no_file_passes_and_a_key_of_ones_own_is_taken_for_each_call() {
    let stage = Stage::new();
    let shell = input("one", "PreToolUse", &json!({ "command": "make deploy" }));
    let url = stage.http().url();
    let ran = stage.ran(&[], &url, &shell);
    assert_eq!((ran.status.code(), ran.stdout.len()), (Some(0), 0), "{ran:?}");
    assert_eq!(stage.held().await, [""; 0]);
    let ran = stage.ran(&["--key", "deploy/shop"], &url, &shell);
    assert_eq!((ran.status.code(), ran.stdout.len()), (Some(0), 0), "{ran:?}");
    assert_eq!(stage.held().await, ["deploy/shop"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_goes_wrong_lets_no_call_pass_unless_it_is_allowed() {
    let stage = Stage::new();
    let cart = input("one", "PreToolUse", &json!({ "file_path": stage.path("shop/a.rs") }));
    let url = stage.http().url();
    let down = format!("http://{NOWHERE}");
    let ran = stage.ran(&[], &down, &cart);
    let why = denial(Some(serde_json::from_slice(&ran.stdout).unwrap()));
    assert!(why.starts_with("The lock service is unreachable"), "{why}");
    let ran = stage.ran(&["--if-down", "allow"], &down, &cart);
    assert_eq!((ran.status.code(), ran.stdout.len()), (Some(0), 0), "{ran:?}");
    for (options, input, told) in [
        (&[][..], json!("no hook"), "standard input is not the JSON of a hook"),
        (&[], input("one", "PreToolUse", &json!({ "file_path": 5 })), "the file of the call is no"),
        (&["--ttl", "30d"], cart.clone(), "a TTL has to be 100ms to 24h"),
        (&["--key", "{path}/refresh"], cart.clone(), "makes no key of a file"),
        (&["--harness", "other"], cart, "invalid value 'other'"),
    ] {
        let ran = stage.ran(options, &url, &input);
        let said = String::from_utf8(ran.stderr).unwrap();
        assert_eq!((ran.status.code(), ran.stdout.len()), (Some(2), 0), "{options:?}: {said}");
        assert!(said.contains(told), "{options:?}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_token_of_a_session_is_readable_for_its_user_alone() {
    let stage = Stage::new();
    assert_eq!(stage.said("one", "PreToolUse", &stage.path("shop/a.rs")), None);
    let directory = stage.path("lockkeeper");
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    let files: Vec<_> = std::fs::read_dir(&directory).unwrap().map(|file| file.unwrap()).collect();
    assert_eq!((mode(&directory), files.len()), (0o700, 2), "the session's, and a lock");
    assert!(files.iter().all(|file| mode(&file.path()) == 0o600), "{files:?}");
    std::fs::set_permissions(&directory, PermissionsExt::from_mode(0o755)).unwrap();
    let cart = input("one", "PreToolUse", &json!({ "file_path": stage.path("shop/a.rs") }));
    let ran = stage.ran(&[], &stage.http().url(), &cart);
    let said = String::from_utf8(ran.stderr).unwrap();
    assert!(ran.status.code() == Some(2) && said.contains("belongs to others too"), "{said}");
}

/// The events of the example have the command, and it knows them.
#[tokio::test(flavor = "multi_thread")]
async fn the_settings_of_the_example_lock_what_is_edited_and_release_it() {
    let settings = include_str!("../../examples/agents/settings.json");
    let settings: Value = serde_json::from_str(settings).unwrap();
    let stage = Stage::new();
    let mut held = Vec::new();
    for event in ["PreToolUse", "PostToolUse", "SessionEnd"] {
        let hook = &settings["hooks"][event][0]["hooks"][0];
        assert_eq!(*hook, json!({ "type": "command", "command": "lockkeeper hook" }), "{event}");
        assert_eq!(stage.said("one", event, &stage.path("shop/a.rs")), None);
        held.push(stage.held().await.len());
    }
    assert_eq!(held, [1, 1, 0]);
    assert_eq!(settings["hooks"].as_object().unwrap().len(), held.len());
}

/// Sessions that edit the same files, side by side, some of them killed: never two at one file.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_sessions_never_edit_one_file_at_a_time() {
    const FILES: usize = 5;
    const ROUNDS: usize = 12;
    let stage = Arc::new(Stage::new());
    // Who edits a file now.
    let editing: Arc<Mutex<BTreeMap<usize, usize>>> = Arc::default();
    let sessions = (0..2).map(|session| {
        let (stage, editing) = (stage.clone(), editing.clone());
        spawn_blocking(move || {
            let (mut edited, mut denied) = (0, 0);
            for round in 0..ROUNDS {
                let name = format!("session-{session}-{round}");
                let mut mine = Vec::new();
                for step in 0..FILES {
                    let file = (step * (session + 1) + round) % FILES;
                    let path = stage.path(&format!("shop/src/{file}.rs"));
                    match stage.said(&name, "PreToolUse", &path) {
                        Some(said) => denied += usize::from(!denial(Some(said)).is_empty()),
                        None => {
                            let other = editing.lock().unwrap().insert(file, session);
                            assert!(other.is_none_or(|other| other == session), "two at {file}");
                            mine.push(file);
                            edited += 1;
                        }
                    }
                }
                editing.lock().unwrap().retain(|file, _| !mine.contains(file));
                stage.said(&name, "SessionEnd", &stage.path("shop"));
            }
            (edited, denied)
        })
    });
    let mut all = (0, 0);
    for session in sessions.collect::<Vec<_>>() {
        let (edited, denied) = session.await.unwrap();
        all = (all.0 + edited, all.1 + denied);
    }
    assert!(all.0 > ROUNDS && all.1 > 0, "edited {} times, denied {}", all.0, all.1);
    assert_eq!(stage.held().await, [""; 0]);
}
