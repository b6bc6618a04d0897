//! The fenced file of the examples: a resource that refuses late writers, for tests that write
//! themselves, and as programs in PHP and Rust that write to it.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::OnceLock;

use tempfile::TempDir;

use crate::support::process::{command, signal, stop};
use crate::support::{PATIENCE, eventually};

#[path = "../../../examples/fenced-file/fenced_file.rs"]
mod fenced_file;

pub(crate) use crate::support::fenced::fenced_file::Verdict;

/// The programs that write to a fenced file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Language {
    Php,
    Rust,
}

/// A file that refuses late writers, each of which adds a line to it; gone with the test.
#[derive(Debug)]
pub(crate) struct FencedFile {
    directory: TempDir,
}

impl FencedFile {
    pub(crate) fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    /// Writes a line under the lease with these tokens, or does not.
    pub(crate) fn submit(&self, fencing_token: u64, lease_token: &str, line: &str) -> Verdict {
        let add = |old: Vec<u8>| [&*old, line.as_bytes(), b"\n"].concat();
        self.opened().update(fencing_token, lease_token, add).unwrap()
    }

    /// The lines that were accepted, in their order.
    pub(crate) fn accepted(&self) -> Vec<String> {
        let content = String::from_utf8(self.opened().content().unwrap()).unwrap();
        content.lines().map(str::to_owned).collect()
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.directory.path().join("report.csv")
    }

    fn opened(&self) -> fenced_file::FencedFile {
        fenced_file::FencedFile::new(self.path())
    }
}

/// A program that is about to write its standard input to a fenced file.
#[derive(Debug)]
pub(crate) struct Writer {
    child: Child,
    input: ChildStdin,
}

impl Writer {
    /// One that takes a lease by itself, at this URL, and replaces what is in the file.
    pub(crate) fn with_lease_of(url: &str, language: Language, file: &FencedFile) -> Self {
        Self::start(language.program().arg(url).arg(file.path()))
    }

    /// One that adds to the file under the lease with these tokens.
    pub(crate) fn adding(tokens: (u64, &str), language: Language, file: &FencedFile) -> Self {
        Self::under(tokens, language.program().arg("-a"), file)
    }

    /// One that replaces what is in the file under the lease with these tokens.
    pub(crate) fn replacing(tokens: (u64, &str), language: Language, file: &FencedFile) -> Self {
        Self::under(tokens, &mut language.program(), file)
    }

    fn under(tokens: (u64, &str), program: &mut Command, file: &FencedFile) -> Self {
        let (fencing_token, lease_token) = tokens;
        program.arg(fencing_token.to_string()).arg(file.path()).env("LOCK_TOKEN", lease_token);
        Self::start(program)
    }

    fn start(program: &mut Command) -> Self {
        program.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = program.spawn().unwrap();
        let input = child.stdin.take().unwrap();
        Self { child, input }
    }

    /// Gives it a part of what it is to write, and waits until it has read that; so it has its lease.
    pub(crate) async fn reads(&mut self, text: &str) {
        self.input.write_all(text.as_bytes()).unwrap();
        let unread = || rustix::io::ioctl_fionread(&self.input).unwrap();
        eventually(PATIENCE, async || (unread() == 0).then_some(())).await;
    }

    /// Gives it all that it is to write.
    pub(crate) fn given(mut self, text: &str) -> Self {
        self.input.write_all(text.as_bytes()).unwrap();
        self
    }

    /// Stops it; it goes on when it is told to.
    pub(crate) fn pause(&self) {
        stop(self.child.id());
    }

    pub(crate) fn resume(&self) {
        signal(self.child.id(), "CONT");
    }

    /// Ends its input, so that it writes; what is left of it is its process.
    pub(crate) fn begins(self) -> Child {
        self.child
    }

    /// Ends its input, and gives what it says then and how it ends.
    pub(crate) fn ends(self) -> (String, Option<i32>) {
        said(self.begins().wait_with_output().unwrap())
    }
}

impl Language {
    pub(crate) const BOTH: [Self; 2] = [Self::Php, Self::Rust];

    /// The content of a fenced file, as this program shows it.
    pub(crate) fn shows(self, file: &FencedFile) -> (String, Option<i32>) {
        said(self.program().arg(file.path()).output().unwrap())
    }

    /// The program that writes to fenced files.
    pub(crate) fn program(self) -> Command {
        match self {
            Self::Php => {
                let mut php = command("php");
                let script = examples().join("fenced-file/write.php");
                php.args(["-d", "display_errors=stderr", "-d", "error_reporting=-1"]).arg(script);
                php
            }
            Self::Rust => command(built()),
        }
    }
}

/// Where the examples are.
pub(crate) fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples")
}

/// The program in Rust. Cargo builds no example for tests that are run by name.
pub(crate) fn built() -> &'static str {
    static BUILT: OnceLock<String> = OnceLock::new();
    BUILT.get_or_init(|| {
        // The profile of the tests, so that their libraries are those of the example.
        let build = ["build", "--profile", "test", "--locked", "--example", "fenced-file"];
        let manifest = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let mut cargo = Command::new(env!("CARGO"));
        // What Cargo tells a test about its package is news to some build scripts, which run again.
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy();
            if name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_") {
                cargo.env_remove(&*name);
            }
        }
        let done = cargo
            .args(build)
            .args(["--message-format", "json", "--manifest-path"])
            .arg(manifest)
            .output()
            .unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        let said = String::from_utf8(done.stdout).unwrap();
        let said =
            said.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        said.filter_map(|it| it["executable"].as_str().map(str::to_owned)).next_back().unwrap()
    })
}

fn said(done: Output) -> (String, Option<i32>) {
    let said = [done.stdout, done.stderr].concat();
    (String::from_utf8(said).unwrap(), done.status.code())
}
