//! `get` and `list`, for people and for programs.

use std::io::Write;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::exec::proxy::{Mode, Proxy};
use crate::exec::{Going, Ran, Stage, on_terminal};
use crate::support::process::{BINARY, command};

/// A key that another client holds, and one more waits for.
async fn waited_for(stage: &Stage) -> Going {
    stage.hold("key").await;
    let mut acquire = run(stage);
    acquire.args(["acquire", "--owner", "the waiter", "key"]);
    let waiter = Going::start(acquire);
    stage.waited_for("key", 1).await;
    waiter
}

fn run(stage: &Stage) -> Command {
    let mut run = command(BINARY);
    run.env("LOCKKEEPER_URL", stage.url()).env_remove("LOCK_TOKEN");
    run
}

/// The next line with this text, of frames that go on and on.
fn line_with(going: &mut Going, text: &str) -> String {
    let mut lines = (0..1_000).map(|_| going.line());
    lines.find(|line| line.contains(text)).unwrap_or_else(|| panic!("no line with {text}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_gets_lines_and_those_who_wait_only_if_it_asks() {
    let stage = Stage::new();
    let waiter = waited_for(&stage).await;
    let get = |arguments: &[&str]| {
        let ran = Ran::of(run(&stage).arg("get").args(arguments).arg("key").output().unwrap());
        assert_eq!((ran.code, &*ran.err), (Some(0), ""), "{arguments:?}");
        ran.out
    };
    assert_eq!(get(&[]).lines().count(), 1);
    let shown = get(&["--waiters", "5"]);
    let lines: Vec<Vec<&str>> = shown.lines().map(|line| line.split('\t').collect()).collect();
    let [seen, first] = &lines[..] else { panic!("{shown}") };
    assert_eq!((seen[..2].to_vec(), seen[4]), (vec!["key", "held"], "1"));
    assert_eq!((first[0], first[2]), ("1", "the waiter"));
    assert!(first[1].parse::<f64>().is_ok(), "{shown}");
    let json: Value = serde_json::from_str(&get(&["--json", "--waiters", "1"])).unwrap();
    assert_eq!(json["queue"][0]["owner"], "the waiter");
    assert!(json["held_ms"].is_u64());
    let json: Value = serde_json::from_str(&get(&["--json"])).unwrap();
    assert!(json["queue"].is_null());
    waiter.signal("TERM");
    assert_eq!(waiter.end().code, Some(143));
}

#[tokio::test(flavor = "multi_thread")]
async fn people_get_a_card_and_a_table() {
    let stage = Stage::new();
    let waiter = waited_for(&stage).await;
    let card = Ran::of(on_terminal(&stage, "LOCKKEEPER get key").output().unwrap());
    assert_eq!(card.code, Some(0), "{card:?}");
    for line in ["key            key", "state          held", "waiters        1", "#  WAITED"] {
        assert!(card.out.contains(line), "{}", card.out);
    }
    for word in ["held for", "time left", "fencing token", "the waiter"] {
        assert!(card.out.contains(word), "{}", card.out);
    }
    let table = Ran::of(on_terminal(&stage, "LOCKKEEPER list").output().unwrap());
    let lines: Vec<_> = table.out.lines().map(str::trim_end).collect();
    let [heads, held] = lines[..] else { panic!("{table:?}") };
    assert_eq!(heads, "KEY  OWNER  HELD FOR  TIME LEFT  WAITERS  FENCING TOKEN");
    assert!(held.starts_with("key  -"), "{held}");
    let json = Ran::of(on_terminal(&stage, "LOCKKEEPER list --json").output().unwrap());
    let json: Value = serde_json::from_str(json.out.trim()).unwrap();
    assert_eq!(json["key"], "key");
    waiter.signal("TERM");
    assert_eq!(waiter.end().code, Some(143));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watched_table_follows_the_locks_until_ctrl_c() {
    let stage = Stage::new();
    for (verb, before, after) in
        [("list", "no key is held", "KEY"), ("get key", "state    free", "state          held")]
    {
        let mut typed = on_terminal(&stage, &format!("exec LOCKKEEPER {verb} --watch"));
        typed.stdin(Stdio::piped());
        let mut going = Going::start(typed);
        line_with(&mut going, before);
        stage.hold("key").await;
        let line = line_with(&mut going, after);
        assert!(line.ends_with("\x1b[K"), "the rest of the line stays: {line:?}");
        going.child.stdin.as_mut().unwrap().write_all(b"\x03").unwrap();
        assert_eq!(going.end().code, Some(0));
        stage.let_go("key").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watched_table_stays_while_the_service_does_not_answer() {
    let stage = Stage::new();
    stage.hold("key").await;
    let proxy = Proxy::before(stage.service.http().address).await;
    let line = format!("exec LOCKKEEPER list --watch -u {}", proxy.url());
    let mut typed = on_terminal(&stage, &line);
    typed.stdin(Stdio::piped());
    let mut going = Going::start(typed);
    line_with(&mut going, "key  -");
    proxy.set(Mode::LoseAnswer);
    line_with(&mut going, "no answer from");
    line_with(&mut going, "key  -");
    line_with(&mut going, "no answer from");
    proxy.set(Mode::Pass);
    line_with(&mut going, "key  -");
    going.child.stdin.as_mut().unwrap().write_all(b"\x03").unwrap();
    assert_eq!(going.end().code, Some(0));
}

#[test]
fn a_table_is_watched_on_a_terminal_only() {
    let stage = Stage::new();
    for verb in [&["list"][..], &["get", "key"]] {
        let ran = Ran::of(run(&stage).args(verb).arg("--watch").output().unwrap());
        assert_eq!((ran.code, &*ran.out), (Some(125), ""));
        assert!(ran.err.contains("--watch draws on a terminal"), "{}", ran.err);
        let ran = Ran::of(run(&stage).args(verb).args(["--watch", "--json"]).output().unwrap());
        assert_eq!(ran.code, Some(125), "{ran:?}");
    }
    let ran = Ran::of(run(&stage).args(["get", "--waiters", "101", "key"]).output().unwrap());
    assert_eq!(ran.code, Some(125), "{ran:?}");
}
