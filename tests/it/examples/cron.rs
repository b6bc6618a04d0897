//! The crontab: its very line, by the shell and in the environment that cron gives it.

use std::process::{Output, Stdio};

use crate::examples::{HOLDER, Stage, beside_the_binary, said};
use crate::support::process::command;

const CRONTAB: &str = include_str!("../../../examples/cron/crontab");

/// The one line with a command, without its five fields of time.
fn line() -> &'static str {
    let lines: Vec<_> = CRONTAB.lines().filter(|line| line.starts_with('*')).collect();
    let [line] = *lines else { panic!("{lines:?}") };
    assert!(!line.contains('%'), "cron would make line breaks of it");
    line.splitn(6, ' ').nth(5).unwrap()
}

/// The variables of the crontab, with what differs here.
fn variables(stage: &Stage, url: &str) -> Vec<(&'static str, String)> {
    let pairs = CRONTAB.lines().filter(|line| !line.starts_with(['#', '*']));
    let pairs = pairs.filter_map(|line| line.split_once('='));
    let known = pairs.map(|(name, value)| match name {
        "PATH" => (name, value.replace("/usr/local/bin", &beside_the_binary())),
        "LOCKKEEPER_URL" => (name, url.to_owned()),
        name => panic!("cron is told {name}"),
    });
    let home = stage.directory.path().display().to_string();
    let here = [("HOME", home), ("LOGNAME", "shop".into()), ("SHELL", "/bin/sh".into())];
    known.chain(here).collect()
}

fn cron_runs(stage: &Stage, url: &str) -> Output {
    let mut cron = command("setsid");
    cron.args(["/bin/sh", "-c", line()]).env_clear().envs(variables(stage, url));
    cron.current_dir(stage.directory.path()).stdin(Stdio::null()).output().unwrap()
}

#[tokio::test]
async fn the_line_of_the_crontab_works_once_in_its_time_and_is_silent() {
    let stage = Stage::with(&["examples/cron/report.sh"]);
    for _ in 0..3 {
        assert_eq!(said(cron_runs(&stage, &stage.url())), (String::new(), Some(0)));
    }
    assert_eq!(stage.text("reports.log").lines().count(), 1, "{}", stage.text("reports.log"));
    let look = stage.look("report").await;
    let left = look["ttl_ms"].as_u64().unwrap();
    assert!((50_000..=60_000).contains(&left), "{look}");
}

#[tokio::test]
async fn the_line_of_the_crontab_does_nothing_while_somebody_else_is_at_it() {
    let stage = Stage::with(&["examples/cron/report.sh"]);
    assert_eq!(stage.http().token(HOLDER).post("/locks/report", "").await.status, 201);
    assert_eq!(said(cron_runs(&stage, &stage.url())), (String::new(), Some(0)));
    assert_eq!(stage.text("reports.log"), "");
}

#[test]
fn a_failure_in_the_line_of_the_crontab_is_said_for_cron_to_mail() {
    let stage = Stage::with(&[]);
    stage.writes("report.sh", "echo no disk >&2; exit 7\n");
    assert_eq!(said(cron_runs(&stage, &stage.url())), ("no disk\n".to_owned(), Some(7)));
    let (text, code) = said(cron_runs(&stage, "http://127.0.0.1:1"));
    assert!(code == Some(69) && text.contains("127.0.0.1:1"), "{code:?} {text}");
}
