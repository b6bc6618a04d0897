//! A program that somebody saved from a page, and a run of it that works for as long as it is told.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::Duration;

use tempfile::TempDir;

use crate::support::process::command;

/// What is said by who has the lock, and then waits for a line or for the end of its input.
pub(crate) const AT_WORK: &str = "at work";

/// Far more than it takes to say something.
const PATIENCE: Duration = Duration::from_secs(30);

/// A program, in a directory of its own.
pub(crate) struct Script {
    words: Vec<String>,
    directory: TempDir,
}

impl Script {
    /// One that `interpreter` reads.
    pub(crate) fn of(interpreter: &str, text: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("script"), text).unwrap();
        Self { words: vec![interpreter.to_owned(), "script".to_owned()], directory }
    }

    /// A Go program of these files, built with what Debian has, and run with these arguments.
    pub(crate) fn go(files: &[(&str, &str)], arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in files {
            std::fs::write(directory.path().join(name), text).unwrap();
        }
        let mut build = command("go");
        build.args(["build", "-o", "program", "."]).current_dir(directory.path());
        build.envs([("GO111MODULE", "off"), ("GOPATH", "/usr/share/gocode"), ("CGO_ENABLED", "0")]);
        build.env("GOCACHE", Path::new(env!("CARGO_TARGET_TMPDIR")).join("go"));
        let built = build.output().unwrap();
        assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
        let program = directory.path().join("program").display().to_string();
        let arguments = arguments.iter().map(|&argument| argument.to_owned());
        Self { words: std::iter::once(program).chain(arguments).collect(), directory }
    }

    pub(crate) fn command(&self) -> Command {
        let mut command = command(&self.words[0]);
        command.args(&self.words[1..]).current_dir(self.directory.path());
        command
    }

    /// What it shows, and how it ends.
    pub(crate) fn run(&self) -> (String, Option<i32>) {
        let done = self.command().output().unwrap();
        let shown = [done.stdout, done.stderr].concat();
        (String::from_utf8(shown).unwrap(), done.status.code())
    }

    pub(crate) fn start(&self) -> Child {
        self.command().stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    /// Starts it, and waits until it is at work.
    pub(crate) fn works(&self) -> Worker {
        Worker::starts(self.command())
    }
}

/// A run that is at work; killed when it is dropped.
pub(crate) struct Worker {
    child: Child,
    lines: mpsc::Receiver<String>,
}

impl Worker {
    /// Starts it, and waits until it is at work.
    pub(crate) fn starts(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let shown = BufReader::new(child.stdout.take().unwrap()).lines();
        let (says, lines) = mpsc::channel();
        std::thread::spawn(move || {
            shown.map_while(Result::ok).try_for_each(|line| says.send(line))
        });
        let worker = Self { child, lines };
        assert_eq!(worker.line().as_deref(), Some(AT_WORK));
        worker
    }

    /// The next line that it shows; none if it has ended.
    pub(crate) fn line(&self) -> Option<String> {
        match self.lines.recv_timeout(PATIENCE) {
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("not a word in {PATIENCE:?}"),
            line => line.ok(),
        }
    }

    /// Lets it end its work; the lines that it shows from then on.
    pub(crate) fn ends(mut self) -> Vec<String> {
        drop(self.child.stdin.take());
        let shown = std::iter::from_fn(|| self.line()).collect();
        assert!(self.child.wait().unwrap().success(), "{shown:?}");
        shown
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
