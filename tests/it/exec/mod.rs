//! `lockkeeper exec`, as the process that cron and scripts run: what it ends with, what it passes
//! on, and that COMMAND never runs without its lease. And the verbs for scripts.

mod also;
mod codes;
mod escapes;
mod flock;
mod hostile;
mod looks;
mod losses;
mod mounts;
mod nested;
mod options;
mod pool;
pub(crate) mod proxy;
mod safety;
mod signals;
mod starts;
mod stuck;
mod terminal;
mod ticker;
mod timeout;
mod tls;
mod verbose;
mod verbs;
mod waits;
mod wardens;

use std::future::ready;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::support::process::{BINARY, command, signal};
use crate::support::{PATIENCE, Process, eventually};

/// A service, and a directory for what commands leave behind.
struct Stage {
    directory: TempDir,
    service: Process,
}

impl Stage {
    fn new() -> Self {
        Self::with(&[])
    }

    /// A service with these variables.
    fn with(variables: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let service = Process::start(&store(&directory), variables);
        Self { directory, service }
    }

    fn url(&self) -> String {
        self.service.http().url()
    }

    /// A file in the directory.
    fn path(&self, name: &str) -> String {
        self.directory.path().join(name).display().to_string()
    }

    fn exec(&self, arguments: &[&str]) -> Command {
        exec(&self.url(), arguments)
    }

    /// Runs `exec` to its end.
    fn ran(&self, arguments: &[&str]) -> Ran {
        Ran::of(self.exec(arguments).output().unwrap())
    }

    /// A key as it stands.
    async fn look(&self, key: &str) -> Value {
        self.service.http().get(&format!("/locks/{key}")).await.json()
    }

    /// Holds a key, so that others wait for it.
    async fn hold(&self, key: &str) {
        let answer = self.service.http().token(HOLDER).post(&format!("/locks/{key}"), "").await;
        assert_eq!(answer.status, 201);
    }

    async fn let_go(&self, key: &str) {
        let answer = self.service.http().token(HOLDER).delete(&format!("/locks/{key}")).await;
        assert_eq!(answer.status, 204);
    }

    async fn waited_for(&self, key: &str, waiters: u64) {
        eventually(PATIENCE, async || (self.look(key).await["waiters"] == waiters).then_some(()))
            .await;
    }
}

/// The token of somebody else.
const HOLDER: &str = "somebody-elses-token";

/// `lockkeeper exec` without a controlling terminal, as cron starts it, whatever signals the tests
/// were started to ignore.
fn exec(url: &str, arguments: &[&str]) -> Command {
    let mut exec = command("env");
    exec.args(["--default-signal", "setsid", BINARY, "exec"])
        .args(arguments)
        .env("LOCKKEEPER_URL", url);
    exec
}

/// What a shell runs that has a terminal.
fn on_terminal(stage: &Stage, line: &str) -> Command {
    let mut script = command("env");
    script.args([
        "--default-signal",
        "script",
        "-qefc",
        &line.replace("LOCKKEEPER", BINARY),
        "/dev/null",
    ]);
    script.env("LOCKKEEPER_URL", stage.url()).env("SHELL", "/bin/sh");
    script
}

fn store(directory: &TempDir) -> String {
    format!("embedded:{}", directory.path().join("store").display())
}

/// How it ended, and what it said.
#[derive(Debug, PartialEq, Eq)]
struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Ran {
    fn of(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self { code: output.status.code(), out: text(output.stdout), err: text(output.stderr) }
    }
}

/// An `exec` that goes on.
struct Going {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Going {
    fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Self { child, lines }
    }

    /// The next line that COMMAND prints.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn signal(&self, name: &str) {
        signal(self.child.id(), name);
    }

    /// Waits until it has ended, whoever else has its streams, and gives its exit code.
    async fn ended(&mut self) -> Option<i32> {
        eventually(PATIENCE, || ready(self.child.try_wait().unwrap())).await.code()
    }

    /// Waits until it has ended.
    fn end(self) -> Ran {
        Ran::of(self.child.wait_with_output().unwrap())
    }

    /// Waits until it stands still.
    async fn stopped(&self) {
        let pid = self.child.id();
        eventually(PATIENCE, async || (state(pid) == Some('T')).then_some(())).await;
    }
}

/// What a process does; `None` if there is none.
fn state(pid: u32) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

/// Whether a process runs; a dead one that nobody has buried does not.
fn lives(pid: u32) -> bool {
    state(pid).is_some_and(|state| state != 'Z' && state != 'X')
}

/// Waits until a process has ended.
async fn dead(pid: u32) {
    eventually(PATIENCE, async || (!lives(pid)).then_some(())).await;
}
