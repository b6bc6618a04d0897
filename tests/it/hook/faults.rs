//! Faults around `lockkeeper hook`: a git that fails, a call that meets the end of its turn, calls
//! that are killed or denied, an end without the service.

use std::os::unix::fs::chown;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::Arc;

use serde_json::json;
use tokio::task::spawn_blocking;

use crate::hook::{KEY, Stage, denial, input};
use crate::support::gate::Gate;
use crate::support::process::{BINARY, command};
use crate::support::{NOWHERE, PATIENCE, eventually};

impl Stage {
    /// Runs another program, or with other variables, before the edit of a file.
    fn ran_by(&self, mut program: Command, session: &str, file: &str) -> Output {
        program.env("LOCKKEEPER_URL", self.http().url());
        let call = input(session, "PreToolUse", &json!({ "file_path": self.path(file) }));
        self.fed(program, &call)
    }

    async fn has_line(&self) {
        let waits = async || {
            let state = self.http().get(&format!("/locks/{KEY}")).await.json();
            (state["waiters"] == 1).then_some(())
        };
        eventually(PATIENCE, waits).await;
    }
}

fn hook(variables: &[(&str, &str)]) -> Command {
    let mut hook = command(BINARY);
    hook.arg("hook").envs(variables.iter().copied());
    hook
}

fn assert_denied_by_a_failure(ran: &Output, told: &str) {
    let said = String::from_utf8_lossy(&ran.stderr);
    assert_eq!((ran.status.code(), ran.stdout.len()), (Some(2), 0), "{said}");
    assert!(said.contains(told), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_repository_has_one_name_whatever_the_variables_are_and_whoever_owns_it() {
    let stage = Stage::new();
    assert_eq!(stage.said("one", "PreToolUse", &stage.path("shop/src/cart.rs")), None);
    let beside = stage.path("beside");
    std::fs::create_dir(&beside).unwrap();
    stage.git("beside", &["init", "-q"]);
    let beside = beside.join(".git");
    let beside = beside.to_str().unwrap();
    let denied = |variables: &[(&str, &str)]| {
        let ran = stage.ran_by(hook(variables), "two", "shop/src/cart.rs");
        assert!(ran.stderr.is_empty(), "{variables:?}: {ran:?}");
        denial(Some(serde_json::from_slice(&ran.stdout).expect("a denial")));
    };
    for name in ["GIT_DIR", "GIT_COMMON_DIR", "GIT_CONFIG_GLOBAL", "GIT_NAMESPACE"] {
        denied(&[(name, beside)]);
    }
    denied(&[
        ("GIT_CONFIG_COUNT", "1"),
        ("GIT_CONFIG_KEY_0", "remote.origin.url"),
        ("GIT_CONFIG_VALUE_0", "x:y"),
    ]);
    // Only root can give it away.
    let shop = stage.path("shop");
    if [&shop, &shop.join(".git")].iter().all(|path| chown(path, Some(1234), None).is_ok()) {
        denied(&[]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_git_that_does_not_tell_the_remote_is_no_repository_without_one() {
    let stage = Stage::new();
    let without_git = |options: &[&str], file| {
        let mut hook = command("env");
        hook.args(["PATH=/nowhere", BINARY, "hook"]).args(options);
        stage.ran_by(hook, "one", file)
    };
    let ran = without_git(&[], "shop/src/cart.rs");
    assert_denied_by_a_failure(&ran, "git does not tell the remote of the repository in ");
    stage.git("shop", &["config", "core.repositoryformatversion", "1"]);
    stage.git("shop", &["config", "extensions.unheardOf", "true"]);
    let ran = stage.ran_by(hook(&[]), "one", "shop/src/cart.rs");
    assert_denied_by_a_failure(&ran, "unheardof");
    // A key without a file, and a file of no repository, need no git.
    for (options, file) in [(&["--key", "deploy/shop"][..], "shop/src/cart.rs"), (&[], "elsewhere")]
    {
        let ran = without_git(options, file);
        assert_eq!((ran.status.code(), ran.stdout.len()), (Some(0), 0), "{ran:?}");
    }
    assert_eq!(stage.held().await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn worktrees_of_two_bare_repositories_in_one_directory_are_two() {
    let stage = Stage::new();
    stage.git("shop", &["commit", "-q", "--allow-empty", "-m", "first"]);
    for name in ["a", "b"] {
        let bare = format!("{name}.git");
        stage.git("", &["clone", "-q", "--bare", "shop", &bare]);
        stage.git(&bare, &["remote", "remove", "origin"]);
        stage.git(&bare, &["worktree", "add", "-q", &format!("../{name}")]);
    }
    assert_eq!(stage.said("one", "PreToolUse", &stage.path("a/cart.rs")), None);
    assert_eq!(stage.said("two", "PreToolUse", &stage.path("b/cart.rs")), None);
    denial(stage.said("two", "PreToolUse", &stage.path("a/cart.rs")));
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

/// The call is on its way to the service when its session ends the turn.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_meets_the_end_of_its_turn_does_not_lock_its_session_out() {
    let stage = Arc::new(Stage::new());
    let cart = stage.path("shop/src/cart.rs");
    let gate = Gate::before(stage.service.address().port(), "POST").await;
    let ran = |event: &'static str| {
        let (stage, url, cart) = (stage.clone(), gate.url(), cart.clone());
        spawn_blocking(move || {
            let ran = stage.ran(&[], &url, &input("one", event, &json!({ "file_path": cart })));
            assert_eq!((ran.status.code(), &*ran.stderr), (Some(0), &b""[..]), "{ran:?}");
            String::from_utf8(ran.stdout).unwrap()
        })
    };
    let call = ran("PreToolUse");
    gate.holds(1).await;
    assert_eq!(ran("Stop").await.unwrap(), "");
    gate.open();
    assert_eq!(call.await.unwrap(), "");
    assert_eq!(stage.held().await, [KEY]);
    assert_eq!(ran("PreToolUse").await.unwrap(), "", "it is its own");
    assert_eq!(ran("SessionEnd").await.unwrap(), "");
    assert_eq!(stage.held().await, [""; 0]);
}

/// A harness may run the hooks of several calls at once.
#[tokio::test(flavor = "multi_thread")]
async fn calls_side_by_side_are_not_taken_for_another_session() {
    let stage = Arc::new(Stage::new());
    let ran = |url: String, file: PathBuf| {
        let stage = stage.clone();
        spawn_blocking(move || {
            let call = input("one", "PreToolUse", &json!({ "file_path": file }));
            let ran = stage.ran(&[], &url, &call);
            assert_eq!((ran.status.code(), &*ran.stderr), (Some(0), &b""[..]), "{ran:?}");
            String::from_utf8(ran.stdout).unwrap()
        })
    };
    for file in 0..4 {
        let path = stage.path(&format!("shop/src/{file}.rs"));
        let gate = Gate::before(stage.service.address().port(), "POST").await;
        let calls = [ran(gate.url(), path.clone()), ran(gate.url(), path)];
        gate.holds(2).await;
        gate.open();
        for call in calls {
            assert_eq!(call.await.unwrap(), "", "{file}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_whose_call_was_killed_while_it_waited_reads_the_file_once_more() {
    let stage = Stage::new();
    let cart = stage.path("shop/src/cart.rs");
    assert_eq!(stage.said("one", "PreToolUse", &cart), None);
    let mut waiting = hook(&[("LOCKKEEPER_URL", &stage.http().url())]);
    waiting.args(["-w", "50s"]);
    let call = input("two", "PreToolUse", &json!({ "file_path": cart }));
    let mut waiting = stage.begun(waiting, &call);
    stage.has_line().await;
    waiting.kill().unwrap();
    waiting.wait().unwrap();
    assert_eq!(stage.said("one", "SessionEnd", &cart), None);
    let why = denial(stage.said("two", "PreToolUse", &cart));
    assert!(why.contains("read the file once more"), "{why}");
    assert_eq!(stage.said("two", "PreToolUse", &cart), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_did_not_reach_the_service_reads_the_file_once_more() {
    let stage = Stage::new();
    let cart = stage.path("shop/src/cart.rs");
    let gate = Gate::before(stage.service.address().port(), "POST").await;
    let call = input("one", "PreToolUse", &json!({ "file_path": cart }));
    let ran = |options: &[&str]| {
        let ran = stage.ran(options, &gate.url(), &call);
        assert_eq!(ran.status.code(), Some(0), "{ran:?}");
        (!ran.stdout.is_empty()).then(|| serde_json::from_slice(&ran.stdout).unwrap())
    };
    let why = denial(ran(&[]));
    assert!(why.starts_with("The lock service is unreachable"), "{why}");
    gate.open();
    let why = denial(ran(&[]));
    assert!(why.contains("read the file once more"), "{why}");
    assert_eq!(ran(&[]), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_denied_call_renews_what_its_session_holds() {
    let stage = Stage::new();
    let [cart, order] = ["cart", "order"].map(|name| stage.path(&format!("shop/src/{name}.rs")));
    assert_eq!(stage.said("one", "PreToolUse", &cart), None);
    assert_eq!(stage.said("two", "PreToolUse", &order), None);
    let refreshed = async || {
        // Soon half of the shortest TTL is over.
        denial(stage.said_with(&["--ttl", "100ms"], "two", "PreToolUse", &cart));
        stage.renewals().await
    };
    eventually(PATIENCE, refreshed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_releases_many_leases_by_a_few_connections() {
    const FILES: usize = 60;
    let stage = Stage::new();
    for file in 0..FILES {
        let file = stage.path(&format!("elsewhere/{file}"));
        assert_eq!(stage.said("one", "PreToolUse", &file), None);
    }
    let mut shell = command("sh");
    shell.args(["-c", r#"ulimit -n 56; exec "$0" hook"#, BINARY]);
    shell.env("LOCKKEEPER_URL", stage.http().url());
    let ran = stage.fed(shell, &input("one", "SessionEnd", &json!({})));
    assert_eq!((ran.status.code(), &*ran.stderr), (Some(0), &b""[..]), "{ran:?}");
    assert_eq!(stage.held().await, [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_without_the_service_says_so_and_lets_the_agent_end() {
    let stage = Stage::new();
    let url = format!("http://{NOWHERE}");
    let cart = input("one", "PreToolUse", &json!({ "file_path": stage.path("shop/a.rs") }));
    let allowed = ["--if-down", "allow"];
    assert_eq!(stage.ran(&allowed, &url, &cart).status.code(), Some(0));
    for event in ["Stop", "SessionEnd"] {
        let ran = stage.ran(&allowed, &url, &input("one", event, &json!({})));
        assert_eq!((ran.status.code(), ran.stdout.len()), (Some(0), 0), "{ran:?}");
        let said = String::from_utf8(ran.stderr).unwrap();
        assert!(said.contains("not all locks of the session were released: "), "{said}");
    }
}
