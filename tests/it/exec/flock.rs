//! The habits of `flock`: the cases of util-linux's own tests, and other words that its users type.
//! docs/shell.md names what differs.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::exec::{Going, Ran, Stage, exec};
use crate::support::NOWHERE;

#[tokio::test(flavor = "multi_thread")]
async fn a_held_key_is_refused_in_every_spelling_that_flock_has() {
    let stage = Stage::new();
    stage.hold("key").await;
    let marker = stage.path("started");
    for flags in [
        &["-n"][..],
        &["--nonblock"],
        &["--nonblocking"],
        &["--nb"],
        &["-xn"],
        &["-e", "--nb"],
        &["--nonblock", "--exclusive"],
        &["-on"],
        &["--close", "-n"],
        &["-w", "0"],
        &["-w", ".05"],
        &["--wait", "0.05"],
        &["--timeout", "0.05"],
        &["-xw", "0.05"],
    ] {
        let words = ["--conflict-exit-code", "123", "key", "touch", &marker];
        let ran = stage.ran(&[flags, &words].concat());
        assert_eq!((ran.code, &*ran.out), (Some(123), ""), "{flags:?}");
        assert!(ran.err.starts_with("lockkeeper: 'key' is held for "), "{flags:?}: {ran:?}");
    }
    assert!(!Path::new(&marker).exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_of_a_part_of_a_second_is_no_shorter() {
    let stage = Stage::new();
    stage.hold("key").await;
    let began = Instant::now();
    assert_eq!(stage.ran(&["-w", "0.4", "key", "true"]).code, Some(75));
    assert!(began.elapsed() >= Duration::from_millis(400), "{:?}", began.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_with_a_time_out_runs_after_the_one_before_it() {
    let stage = Stage::new();
    let log = stage.path("log");
    let script = format!("echo begin >> {log}; echo ready; read LINE; echo end >> {log}");
    let mut first = stage.exec(&["key", "-c", &script]);
    first.stdin(Stdio::piped());
    let mut first = Going::start(first);
    assert_eq!(first.line(), "ready");
    let script = format!("echo after >> {log}");
    let flags = ["--timeout", "60", "--conflict-exit-code", "5", "key", "-c", &script];
    let second = Going::start(stage.exec(&flags));
    stage.waited_for("key", 1).await;
    drop(first.child.stdin.take());
    assert_eq!(first.end().code, Some(0));
    assert_eq!(second.end().code, Some(0));
    assert_eq!(std::fs::read_to_string(&log).unwrap(), "begin\nend\nafter\n");
}

#[test]
fn a_string_for_the_shell_may_stand_behind_the_key() {
    let stage = Stage::new();
    let string = "echo \"$LOCK_KEY\" | tr a-z A-Z; exit 3";
    for words in [
        &["key", "-c", string][..],
        &["-n", "key", "-c", string],
        &["-xw", "5", "key", "--command", string],
        &["--", "key", "-c", string],
        &["-c", string, "key"],
    ] {
        let ran = stage.ran(words);
        assert_eq!(ran, Ran { code: Some(3), out: "KEY\n".to_owned(), err: String::new() });
    }
}

#[test]
fn an_option_of_flock_that_exec_lacks_is_refused_before_anything_is_asked() {
    let url = format!("http://{NOWHERE}");
    let directory = tempfile::tempdir().unwrap();
    let marker = directory.path().join("started").display().to_string();
    for (words, told) in [
        (&["-s", "key", "touch", &marker][..], "write --shared for a shared lock"),
        (&["-F", "key", "touch", &marker], "leave -F out"),
        (&["--no-fork", "-n", "key", "touch", &marker], "leave -F out"),
        (&["--fcntl", "key", "touch", &marker], "leave --fcntl out"),
        (&["--start", "0", "key", "touch", &marker], "'--start'"),
        (&["--fd", "9", "touch", &marker], "'--fd'"),
        (&["-u", "9"], "a lease ends with its COMMAND, or by `release`"),
        (&["--unlock", "9"], "a lease ends with its COMMAND, or by `lockkeeper release`"),
        (&["9"], "no descriptor holds a lease; use `acquire` and `release` in a script"),
        (&["-x", "-n", "200"], "no descriptor holds a lease"),
        (&["key", "-c", "touch", &marker], "-c takes one STRING"),
        (&["key", "-n", "touch", &marker], "put -n before the key, or -- before a COMMAND"),
        (&["key", "--wait=5", "touch", &marker], "put --wait=5 before the key"),
        (&["-c", "true", "key", "touch", &marker], "give a COMMAND or --command, not both"),
        (&["/tmp/lockfile", "touch", &marker], "a key is a name, not a file: use `tmp/lockfile`"),
        (&["./lockfile", "touch", &marker], "a key is a name, not a file: use `lockfile`"),
        (&["/var/lock/", "-c", &marker], "a key is a name, not a file: use `var/lock`"),
    ] {
        let ran = Ran::of(exec(&url, words).output().unwrap());
        assert_eq!((ran.code, &*ran.out), (Some(125), ""), "{words:?}: {ran:?}");
        assert!(ran.err.contains(told), "{words:?}: {}", ran.err);
    }
    assert!(!Path::new(&marker).exists());
}
