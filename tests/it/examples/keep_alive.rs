//! Leases that are renewed while the work goes on, in each language.

use std::cell::Cell;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::api::sdk::Project;
use crate::examples::Stage;
use crate::exec::proxy::{Mode, Proxy, SLOW};
use crate::support::process::signal;
use crate::support::script::Worker;
use crate::support::{PATIENCE, Script, eventually};

const EXAMPLE_GO: &str = include_str!("../../../examples/keep-alive/keepalive.go");
const MAIN_GO: &str = include_str!("../../keep_alive/main.go");

const KEY: &str = "a b/ü+%";
const PATH: &str = "/locks/a%20b/%C3%BC%2B%25";

/// A program in one language, with a service of its own.
struct Program {
    stage: Stage,
    project: Option<Project>,
    words: &'static [&'static str],
}

impl Program {
    fn python(kind: &'static [&'static str]) -> Self {
        Self { project: Some(project("python")), words: kind, stage: stage() }
    }

    fn typescript() -> Self {
        Self { project: Some(project("typescript")), words: &["main.ts"], stage: stage() }
    }

    fn go() -> Self {
        Self { project: None, words: &[], stage: stage() }
    }

    /// Its run with leases of so many seconds.
    fn run(&self, ttl: &str) -> Run {
        self.run_with(ttl, &[])
    }

    /// The same with further arguments.
    fn run_with(&self, ttl: &str, more: &[&str]) -> Run {
        let url = self.stage.url();
        let script = match &self.project {
            Some(_) => None,
            None => {
                let files = [("keepalive.go", EXAMPLE_GO), ("main.go", MAIN_GO)];
                Some(Script::go(&files, &[&url, KEY, ttl]))
            }
        };
        let command = match (&self.project, &script) {
            (Some(project), _) => {
                let mut command = project.run(self.words[0]);
                command.args(&self.words[1..]).args([&url, KEY, ttl]).args(more);
                command
            }
            (None, Some(script)) => script.command(),
            (None, None) => unreachable!(),
        };
        Run { command, _script: script }
    }
}

/// A service that lets nobody wait for long, so that a wait is several requests.
fn stage() -> Stage {
    Stage::limited(&[], &[("LOCKKEEPER_LIMITS_MAX_WAIT", "400ms")])
}

fn project(language: &'static str) -> Project {
    Project::of_programs(language, &["examples/keep-alive", "tests/keep_alive"])
}

struct Run {
    command: Command,
    _script: Option<Script>,
}

impl Run {
    fn works(self) -> (Worker, Option<Script>) {
        (Worker::starts(self.command), self._script)
    }

    fn shows(mut self) -> String {
        let done = self.command.output().unwrap();
        String::from_utf8([done.stdout, done.stderr].concat()).unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_in_python_is_kept_lost_and_given_back() {
    keeps_loses_and_gives_back(&Program::python(&["main.py", "sync"])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_of_a_task_in_python_is_kept_lost_and_given_back() {
    keeps_loses_and_gives_back(&Program::python(&["main.py", "async"])).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_in_typescript_is_kept_lost_and_given_back() {
    keeps_loses_and_gives_back(&Program::typescript()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_in_go_is_kept_lost_and_given_back() {
    keeps_loses_and_gives_back(&Program::go()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn work_in_python_that_never_looks_at_its_lease_hears_of_its_loss_at_its_end() {
    for kind in [&["main.py", "blind"], &["main.py", "blind-async"]] {
        hears_of_its_loss_at_its_end(&Program::python(kind), &[]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn work_in_typescript_that_never_yields_hears_of_its_loss_at_its_end() {
    hears_of_its_loss_at_its_end(&Program::typescript(), &["0", "blind"]).await;
}

async fn hears_of_its_loss_at_its_end(program: &Program, more: &[&str]) {
    let http = program.stage.http();
    let (worker, _script) = program.run_with("60", more).works();
    assert_eq!(http.delete(&PATH.replace("/locks", "/admin/locks")).await.status, 200);
    assert_eq!(worker.ends(), ["lost"]);
    let (worker, _script) = program.run_with("60", more).works();
    assert_eq!(worker.ends(), ["done"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_goes_on_past_the_cap_of_the_service() {
    let python = [&["main.py", "sync"], &["main.py", "async"]].map(|kind| Program::python(kind));
    for program in python.iter().chain([&Program::typescript()]) {
        let http = program.stage.http();
        assert_eq!(http.post(&format!("{PATH}?ttl=2s"), "").await.status, 201);
        let (worker, _script) = program.run_with("60", &["30"]).works();
        // A wait that is over is over.
        assert_eq!(program.run_with("60", &["1"]).shows(), "not now\n");
        assert_eq!(worker.ends(), ["done"]);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_task_that_is_cancelled_as_its_grant_arrives_leaves_no_lease() {
    let program = Program::python(&["main.py", "abandoned"]);
    assert_eq!(program.run("60").shows(), "done\n");
    assert_eq!(program.stage.http().get(PATH).await.field("held"), false);
}

async fn keeps_loses_and_gives_back(program: &Program) {
    let http = program.stage.http();

    // Two exclude each other, and the first gives the key back at once.
    let (first, _script) = program.run("60").works();
    assert_eq!(http.get(PATH).await.field("held"), true);
    assert_eq!(program.run("60").shows(), "not now\n");
    assert_eq!(first.ends(), ["done"]);
    assert_eq!(http.get(PATH).await.field("held"), false, "not given back");

    // The lease is renewed, and its end by an administrator is noticed.
    let (worker, _script) = program.run("6").works();
    renewed(program).await;
    assert_eq!(http.delete(&PATH.replace("/locks", "/admin/locks")).await.status, 200);
    assert_eq!(worker.line().as_deref(), Some("told to stop"));
    assert_eq!(worker.ends(), ["lost"]);

    // While the service does not answer, the work ends before the lease.
    let (worker, _script) = program.run("10").works();
    let end = renewed(program).await;
    program.stage.service.stop();
    assert_eq!(worker.line().as_deref(), Some("told to stop"));
    assert!(Instant::now() < end, "it works on when the lease is over");
    assert_eq!(worker.ends(), ["lost"]);
    program.stage.service.signal("CONT");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_in_go_that_arrives_after_it_was_given_up_leaves_no_lease() {
    let stage = stage();
    let proxy = Proxy::before(stage.http().address).await;
    proxy.plan(&[Mode::Slow]);
    let files = [("keepalive.go", EXAMPLE_GO), ("main.go", MAIN_GO)];
    let script = Script::go(&files, &[&proxy.url(), KEY, "60"]);
    let going = script.command().stdout(Stdio::piped()).spawn().unwrap();
    eventually(PATIENCE, async || (!proxy.requests().is_empty()).then_some(())).await;
    signal(going.id(), "TERM");
    let ended = going.wait_with_output().unwrap();
    assert_eq!(String::from_utf8(ended.stdout).unwrap(), "cancelled\n");
    let arrived = Instant::now() + SLOW;
    eventually(PATIENCE, async || (Instant::now() > arrived).then_some(())).await;
    assert_eq!(stage.http().get(PATH).await.field("held"), false);
}

/// Waits until the lease has been renewed; the earliest moment of its end.
async fn renewed(program: &Program) -> Instant {
    let http = program.stage.http();
    let least = Cell::new(u64::MAX);
    eventually(PATIENCE, async || {
        let asked = Instant::now();
        let left = http.get(PATH).await.number("ttl_ms");
        let before = least.replace(left.min(least.get()));
        (left > before.saturating_add(500)).then(|| asked + Duration::from_millis(left))
    })
    .await
}
