//! `get` and `list`, for people and for programs.

use std::process::Command;

use serde_json::Value;

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
    let names = heads.split("  ").map(str::trim).filter(|name| !name.is_empty());
    let expected = ["KEY", "OWNER", "HELD FOR", "TIME LEFT", "WAITERS", "FENCING TOKEN"];
    assert_eq!(names.collect::<Vec<_>>(), expected);
    assert!(held.starts_with("key  127.0.0.1  "), "{held}");
    let json = Ran::of(on_terminal(&stage, "LOCKKEEPER list --json").output().unwrap());
    let json: Value = serde_json::from_str(json.out.trim()).unwrap();
    assert_eq!(json["key"], "key");
    waiter.signal("TERM");
    assert_eq!(waiter.end().code, Some(143));
}

/// A list on a terminal of so many columns, its lines with a trimmed end.
fn listed(stage: &Stage, columns: usize, flags: &str) -> Vec<String> {
    let line = format!("stty cols {columns}; exec LOCKKEEPER list {flags}");
    let ran = Ran::of(on_terminal(stage, &line).output().unwrap());
    assert_eq!(ran.code, Some(0), "{ran:?}");
    ran.out.lines().map(|line| line.trim_end().to_owned()).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_list_fits_a_terminal_and_its_rows_differ() {
    let stage = Stage::new();
    let key = |month: usize| format!("tenants/4711/invoices/2026-{month:02}/eu-central-1/report");
    for month in 10..=12 {
        let path = format!("/locks/{}?ttl=1h&owner=deploy%40web-1.example%3A4711", key(month));
        assert_eq!(stage.service.http().post(&path, "").await.status, 201);
    }
    let rows = listed(&stage, 80, "");
    assert_eq!(rows.len(), 4, "{rows:?}");
    assert!(rows.iter().all(|row| row.chars().count() <= 80), "{rows:?}");
    assert!(rows[0].ends_with("HELD FOR  TIME LEFT"), "{rows:?}");
    for (month, row) in (10..).zip(&rows[1..]) {
        let shown = row.split_whitespace().next().unwrap();
        assert!(shown.ends_with("/report") && shown.contains(&format!("{month}/eu")), "{rows:?}");
    }
    let wide = listed(&stage, 80, "--wide");
    assert!(wide[0].ends_with("WAITERS  FENCING TOKEN"), "{wide:?}");
    for whole in [listed(&stage, 80, "--no-trunc"), listed(&stage, 200, "")] {
        assert!(whole[1].starts_with(&key(10)), "{whole:?}");
    }
    assert!(listed(&stage, 200, "")[0].ends_with("FENCING TOKEN"));
    let ran = Ran::of(run(&stage).args(["list", "tenants/"]).output().unwrap());
    assert_eq!(ran.code, Some(125), "{ran:?}");
    assert!(ran.err.contains("use `--prefix tenants/`"), "{ran:?}");
}

#[test]
fn a_look_shows_at_most_a_hundred_waiters() {
    let stage = Stage::new();
    let ran = Ran::of(run(&stage).args(["get", "--waiters", "101", "key"]).output().unwrap());
    assert_eq!(ran.code, Some(125), "{ran:?}");
}
