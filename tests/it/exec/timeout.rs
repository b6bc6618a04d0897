//! The habits of `timeout`: the cases of coreutils' own tests. docs/shell.md names what differs.

use std::process::Command;

use crate::exec::{Ran, Stage, exec};
use crate::support::NOWHERE;
use crate::support::process::{BINARY, command};

/// Prints a line at its start and at an INT, which ends it.
const HEARS_INT: &str =
    "trap 'echo interrupted; exit 1' INT; echo ready; while :; do sleep 0.02; done";

#[test]
fn a_command_within_its_time_ends_with_its_own_code() {
    let stage = Stage::new();
    for limit in ["60", "1d", "0", "60.34", "59.999999999", ".5h", "99999999999999999999d"] {
        let ran = stage.ran(&["-T", limit, "key", "sh", "-c", "exit 2"]);
        let own = Ran { code: Some(2), out: String::new(), err: String::new() };
        assert_eq!(ran, own, "{limit}");
    }
}

#[test]
fn a_command_beyond_its_time_is_124_or_has_its_own_code() {
    let stage = Stage::new();
    for (flags, code) in [
        (&["-T", ".1"][..], 124),
        (&["-T", "0.00000001"], 124),
        (&["-T", ".1", "-s", "INT"], 124),
        (&["-T", ".1", "-s", "KILL"], 124),
        (&["-T", ".1", "--preserve-status"], 143),
        (&["-T", ".1", "--preserve-status", "-s", "INT"], 130),
        (&["-T", ".1", "--preserve-status", "-s", "KILL"], 137),
    ] {
        let ran = stage.ran(&[flags, &["-q", "key", "sleep", "60"]].concat());
        assert_eq!(ran.code, Some(code), "{flags:?}");
    }
}

#[test]
fn a_command_that_is_deaf_is_killed_after_its_delay_and_verbose_says_so() {
    let stage = Stage::new();
    for (flags, code) in [(&["-v"][..], 124), (&["-v", "--preserve-status"], 137)] {
        let words = [flags, &["-T", ".1", "-k", ".1", "key", "sleep", "60"]].concat();
        let ran = Ran::of(blocking("TERM", &stage, &words).output().unwrap());
        assert_eq!(ran.code, Some(code), "{ran:?}");
        let (told, killed) = (ran.err.find("sent TERM to COMMAND"), ran.err.find("sent KILL"));
        assert!(told.is_some() && told < killed, "{}", ran.err);
    }
}

#[test]
fn parameters_that_cannot_be_meant_are_125() {
    let url = format!("http://{NOWHERE}");
    for flags in [
        &["-T", "invalid"][..],
        &["-T", "42D"],
        &["-T", "1e3"],
        &["-T", "-1"],
        &["-T", "1", "--kill-after=invalid"],
        &["-T", "1", "--signal=invalid"],
        &["-T", "1", "-s", "0"],
        &["-T", "1", "--foreground"],
    ] {
        let ran = Ran::of(exec(&url, &[flags, &["key", "sleep", "0"]].concat()).output().unwrap());
        assert_eq!(ran.code, Some(125), "{flags:?}: {ran:?}");
        assert!(!ran.err.is_empty(), "{flags:?}");
    }
}

#[test]
fn a_command_that_cannot_be_invoked_has_the_codes_of_timeout() {
    let stage = Stage::new();
    assert_eq!(stage.ran(&["-T", "60", "key", "."]).code, Some(126));
    assert_eq!(stage.ran(&["-T", "60", "key", "no_such"]).code, Some(127));
}

#[test]
fn signals_that_the_caller_ignores_or_blocks_change_nothing() {
    let stage = Stage::new();
    let ignoring = "trap '' CHLD; exec \"$0\" exec -T 60 key sh -c 'exit 3'";
    assert_eq!(shell(&stage, ignoring).code, Some(3));
    let words = ["-q", "-T", ".1", "key", "sleep", "60"];
    assert_eq!(Ran::of(blocking("ALRM", &stage, &words).output().unwrap()).code, Some(124));
}

#[test]
fn a_child_from_before_is_not_taken_for_the_command() {
    let stage = Stage::new();
    let script = "sleep .1 & exec \"$0\" exec -q -T .5 key sh -c 'sleep 60; echo late'";
    let ran = shell(&stage, script);
    assert_eq!((ran.code, &*ran.out), (Some(124), ""));
}

#[test]
fn the_inner_of_two_passes_on_the_signal_of_the_outer() {
    let stage = Stage::new();
    // A busy machine may be too late to start it at all.
    let heard = ["1", "4", "30"].into_iter().any(|limit| {
        let outer = ["-q", "-T", limit, "-s", "INT", "outer", BINARY, "exec"];
        let inner = ["-T", "60", "inner", "sh", "-c", HEARS_INT];
        let ran = stage.ran(&[&outer[..], &inner].concat());
        assert_eq!(ran.code, Some(124));
        ran.out.starts_with("ready\ninterrupted\n")
    });
    assert!(heard);
}

/// `lockkeeper exec` by a parent that blocks this signal.
fn blocking(signal: &str, stage: &Stage, arguments: &[&str]) -> Command {
    let mut exec = command("env");
    exec.arg(format!("--block-signal={signal}")).args(["setsid", BINARY, "exec"]);
    exec.args(arguments).env("LOCKKEEPER_URL", stage.url());
    exec
}

/// A script in a session of its own, with the program as `$0`.
fn shell(stage: &Stage, script: &str) -> Ran {
    let mut shell = command("setsid");
    shell.args(["sh", "-c", script, BINARY]).env("LOCKKEEPER_URL", stage.url());
    Ran::of(shell.output().unwrap())
}
