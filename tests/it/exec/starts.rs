//! What COMMAND is started with, and the lease of one that is not started.

use std::process::Command;

use crate::exec::proxy::{Mode, Proxy};
use crate::exec::{Going, HOLDER, Ran, Stage, exec};
use crate::support::process::{BINARY, command};

/// Blocks SIGCHLD, and becomes its arguments.
const BLOCKS: &str = "use POSIX qw(:signal_h); \
                      sigprocmask(SIG_BLOCK, POSIX::SigSet->new(SIGCHLD)); exec @ARGV";

#[tokio::test(flavor = "multi_thread")]
async fn a_parent_that_blocks_the_signal_of_ended_children_hides_no_end() {
    let stage = Stage::new();
    let run = |words: &[&str]| {
        let mut blocked = command("perl");
        blocked.args(["-e", BLOCKS, "setsid", BINARY, "exec", "key"]).args(words);
        let ran = Ran::of(blocked.env("LOCKKEEPER_URL", stage.url()).output().unwrap());
        (ran.code, ran.out)
    };
    assert_eq!(run(&["sh", "-c", "exit 7"]), (Some(7), String::new()));
    // COMMAND has the mask that it would have had without us.
    let mask = ["grep", "SigBlk:", "/proc/self/status"];
    assert_eq!(run(&mask), (Some(0), "SigBlk:\t0000000000010000\n".to_owned()));
    let ran = stage.ran(&[&["key"][..], &mask].concat());
    assert_eq!((ran.code, &*ran.out), (Some(0), "SigBlk:\t0000000000000000\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lease_of_a_command_that_cannot_be_started_is_given_back() {
    let stage = Stage::new();
    // With what is added to it, it is longer than any variable may be.
    let mut exec = stage.exec(&["key", "true"]);
    let ran = Ran::of(exec.env("LOCK_EXEC", "x".repeat(131_050)).output().unwrap());
    assert_eq!(ran.code, Some(125));
    assert!(ran.err.contains("cannot start COMMAND: Argument list too long"), "{}", ran.err);
    assert_eq!(stage.look("key").await["held"], false);
}

#[tokio::test(flavor = "multi_thread")]
async fn too_few_open_files_are_refused_before_there_is_a_lease() {
    let stage = Stage::new();
    for limit in [7, 12, 16] {
        let script = format!("ulimit -n {limit}; exec \"$@\"");
        let words = ["-c", &script, "sh", BINARY, "exec", "-t", "20s", "key", "true"];
        let mut limited = command("sh");
        let ran = limited.args(words).env("LOCKKEEPER_URL", stage.url()).output().unwrap();
        let ran = Ran::of(ran);
        assert_eq!(ran.code, Some(125), "{limit}: {}", ran.err);
        assert!(ran.err.contains("allow at least 48 open files (ulimit -n)"), "{}", ran.err);
        assert_eq!(stage.look("key").await["held"], false);
    }
}

#[test]
fn the_api_key_is_not_for_the_command_unless_that_is_asked_for() {
    let stage = Stage::new();
    let seen = |flags: &[&str]| {
        let words = ["key", "sh", "-c", "echo ${LOCKKEEPER_API_KEY-none}"];
        let mut exec = stage.exec(&[flags, &words].concat());
        Ran::of(exec.env("LOCKKEEPER_API_KEY", "secret").output().unwrap()).out
    };
    assert_eq!(seen(&[]), "none\n");
    assert_eq!(seen(&["--pass-api-key"]), "secret\n");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_cannot_be_printed_is_given_back() {
    let stage = Stage::new();
    let acquire = |output: &str, flags: &str| {
        let script = format!("exec \"$0\" acquire -t 60s {flags} key {output}");
        let mut acquire = command("sh");
        acquire.args(["-c", &script, BINARY]).env("LOCKKEEPER_URL", stage.url());
        Ran::of(acquire.output().unwrap())
    };
    for (output, told) in [
        ("> /dev/full", "cannot write to standard output: No space left on device"),
        (">&-", "standard output is closed, so nobody would learn the token"),
        ("<&- >&-", "standard output is closed"),
    ] {
        let ran = acquire(output, "");
        assert_eq!(ran.code, Some(125), "{output}");
        assert!(ran.err.contains(told), "{}", ran.err);
        assert_eq!(stage.look("key").await["held"], false, "{output}");
    }
    // Who knows the token, or throws it away on purpose, gets the lease.
    std::fs::write(stage.path("token"), HOLDER).unwrap();
    let known = format!("--token-file {}", stage.path("token"));
    assert_eq!(acquire(">&-", &known).code, Some(0));
    stage.let_go("key").await;
    assert_eq!(acquire("> /dev/null", "").code, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_is_given_up_holds_nothing() {
    let stage = Stage::new();
    let proxy = Proxy::before(stage.service.http().address).await;
    proxy.set(Mode::LoseAnswer);
    let acquire = |words: &[&str]| -> Command {
        let mut acquire = command(BINARY);
        acquire.args(words).env("LOCKKEEPER_URL", proxy.url());
        acquire
    };
    let verbs = [&["exec", "-n", "lost", "true"][..], &["acquire", "-n", "missed"]];
    let going = verbs.map(|words| Going::start(acquire(words)));
    for ran in going.map(Going::end) {
        assert_eq!(ran.code, Some(69), "{ran:?}");
    }
    for key in ["lost", "missed"] {
        assert_eq!(stage.look(key).await["held"], false, "{key}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_are_always_late_hold_no_key_that_is_given_up() {
    let stage = Stage::new();
    let proxy = Proxy::before(stage.service.http().address).await;
    proxy.set(Mode::Late);
    let flags = ["-t", "1s", "-k", "300ms"];
    let started = |patience: &[&str], key: &str| {
        Going::start(exec(&proxy.url(), &[patience, &flags, &[key, "true"]].concat()))
    };
    let going = [started(&["-n"], "late"), started(&["-w", "1s"], "waited")];
    for ran in going.map(Going::end) {
        assert_eq!(ran.code, Some(69), "{ran:?}");
        assert!(ran.err.contains("answers take longer than half of the TTL"), "{}", ran.err);
    }
    for key in ["late", "waited"] {
        assert_eq!(stage.look(key).await["held"], false, "{key}");
    }
}
