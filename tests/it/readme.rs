//! Follows README.md, and the pages on the reference, the shell, recipes and agents, from top to
//! bottom, as a newcomer does: every block is run, and has to print the answer that is shown below.

mod answers;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Stdio};

use tempfile::TempDir;

use crate::install::Release;
use crate::readme::answers::fits;
use crate::support::process::{BINARY, command};
use crate::support::{Process, Redis, in_memory};

const README: &str = include_str!("../../README.md");
const REFERENCE: &str = include_str!("../../docs/reference.md");
pub(crate) const SHELL: &str = include_str!("../../docs/shell.md");
pub(crate) const RECIPES: &str = include_str!("../../docs/recipes.md");
const AGENTS: &str = include_str!("../../docs/agents.md");
const OPERATIONS: &str = include_str!("../../docs/operations.md");
const CODES: &str = include_str!("../../src/wire.rs");
const EXIT_CODES: &str = include_str!("../../src/cli/exit.rs");

/// Where the pages say that the service and Redis are.
pub(crate) const SERVICE: &str = "localhost:8080";
const REDIS: &str = "127.0.0.1:6379";

/// What stands before the answer to the command in the line above it; elsewhere it is a comment.
const ANSWER: &str = "# ";

/// Ends what one step printed.
const END: u8 = 0x1e;

#[test]
fn every_block_of_the_readme_does_what_it_says() {
    let answers = follows(README, &["sh", "bash", "crontab", "php", "sql"]).answers;
    assert!(answers >= 7, "only {answers} answers are shown");
}

#[test]
fn every_block_of_the_reference_does_what_it_says() {
    assert_eq!(follows(REFERENCE, &["sh", "toml"]).answers, 4);
}

#[test]
fn every_block_of_the_shell_page_does_what_it_says() {
    assert_eq!(follows(SHELL, &["sh"]).answers, 1);
}

#[test]
fn every_block_of_the_recipes_does_what_it_says() {
    assert_eq!(follows(RECIPES, &["sh", "ini"]).answers, 23);
}

#[test]
fn every_block_of_the_page_on_agents_does_what_it_says() {
    assert_eq!(follows(AGENTS, &["sh"]).answers, 7);
}

/// Runs every block of a page, which has blocks of all these kinds.
fn follows(page: &str, kinds: &[&str]) -> Newcomer {
    let mut newcomer = Newcomer::new();
    let blocks = blocks(page);
    for (kind, text) in &blocks {
        match *kind {
            "sh" => newcomer.types(text),
            "bash" => newcomer.runs_bash(text),
            "crontab" => newcomer.runs_cron(text),
            "php" => newcomer.runs_php(text),
            "toml" => newcomer.configures(text),
            "ini" => newcomer.runs_unit(text),
            "sql" => fences(text),
            kind => panic!("a block of a kind that nobody tests: {kind:?}\n{text}"),
        }
    }
    for kind in kinds {
        assert!(blocks.iter().any(|(other, _)| other == kind), "no {kind} block is left");
    }
    newcomer
}

#[test]
fn every_status_and_code_of_the_table_is_one_that_the_service_has() {
    let mut known = 0;
    for row in rows(REFERENCE, "## Answers") {
        let (status, codes) = (row[0], row[1]);
        for code in codes.split('`').skip(1).step_by(2) {
            assert!(CODES.contains(&format!("(\"{code}\", {status}, ")), "{status} {code}");
            known += 1;
        }
    }
    assert_eq!(known, CODES.matches("=> (\"").count(), "the table does not name every code");
}

#[test]
fn every_exit_code_of_the_command_line_is_in_its_table() {
    let constants = EXIT_CODES.lines().filter_map(|line| line.split_once(": u8 = "));
    let codes: Vec<_> = constants.map(|(_, code)| code.trim_end_matches(';')).collect();
    let pages = [(REFERENCE, "## Exit codes"), (OPERATIONS, "## Start, stop, upgrade")];
    let rows = pages.into_iter().flat_map(|(page, heading)| rows(page, heading));
    let shown: Vec<_> = rows.map(|row| row[0]).collect();
    let has = |code: &str| shown.iter().any(|cell| cell.split([' ', ',']).any(|word| word == code));
    assert!(codes.len() >= 7 && codes.iter().all(|code| has(code)), "{codes:?} of {shown:?}");
}

/// Somebody with a terminal, and a service and a Redis as a page told them.
pub(crate) struct Newcomer {
    directory: TempDir,
    /// The embedded store; in memory, because the pages show whole TTLs.
    store: TempDir,
    shell: Child,
    typed: ChildStdin,
    shown: BufReader<ChildStdout>,
    redis: Redis,
    service: Option<Process>,
    /// What is typed for what the page says.
    instead: Vec<(&'static str, String)>,
    /// How many answers came as they are shown.
    pub(crate) answers: usize,
}

impl Newcomer {
    pub(crate) fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let mut shell = command("sh");
        shell.current_dir(directory.path()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut shell = shell.spawn().unwrap();
        let typed = shell.stdin.take().unwrap();
        let shown = BufReader::new(shell.stdout.take().unwrap());
        let redis = Redis::start();
        let instead = vec![("redis-cli ", format!("redis-cli -p {} ", redis.port()))];
        let mut newcomer = Self {
            directory,
            store: in_memory(),
            shell,
            typed,
            shown,
            redis,
            service: None,
            instead,
            answers: 0,
        };
        newcomer.run("exec 2>&1");
        let binary = Path::new(BINARY).parent().unwrap();
        newcomer.run(&format!("PATH={}:$PATH", binary.display()));
        newcomer
    }

    /// Stands where a file or directory of this package is, as in its root.
    pub(crate) fn has(&self, name: &str) {
        let there = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
        std::os::unix::fs::symlink(there, self.directory.path().join(name)).unwrap();
    }

    /// Types this program for these words of the page.
    pub(crate) fn takes(&mut self, words: &'static str, program: &str) {
        self.instead.push((words, program.to_owned()));
    }

    /// Runs the commands of a block, each with the answer that is shown below it.
    pub(crate) fn types(&mut self, block: &str) {
        let mut command = String::new();
        for line in block.lines() {
            let answer = line.strip_prefix(ANSWER);
            if let Some(answer) = answer.filter(|_| !command.is_empty()) {
                let real = self.run(&std::mem::take(&mut command));
                assert!(fits(answer, &real), "{line}\n{real}");
                self.answers += 1;
            } else if answer.is_some() {
                continue;
            } else if line.starts_with("curl ") && line.ends_with("/install.sh | sh") {
                self.installs(line);
            } else if let Some(variables) = line.strip_suffix("lockkeeper serve") {
                self.serves(variables);
            } else if let Some((before, target)) = line.split_once("make ") {
                self.makes(before, target);
            } else if let Some(arguments) = line.strip_prefix("docker run ") {
                runs_in_a_container(arguments);
            } else {
                command.push_str(line);
                command.push('\n');
                if line.is_empty() {
                    self.runs_silently(&std::mem::take(&mut command));
                }
            }
        }
        self.runs_silently(&command);
    }

    fn runs_silently(&mut self, command: &str) {
        assert_eq!(self.run(command), "", "{command} shows what the page does not");
    }

    /// What a command shows, in the one shell that runs them all.
    fn run(&mut self, command: &str) -> String {
        let mut command = command.replace(SERVICE, &self.address());
        for (words, typed) in &self.instead {
            command = command.replace(words, typed);
        }
        writeln!(self.typed, "{command}\nprintf '\\036'").unwrap();
        let mut shown = Vec::new();
        self.shown.read_until(END, &mut shown).unwrap();
        assert_eq!(shown.pop(), Some(END), "the shell ended at {command}");
        String::from_utf8(shown).unwrap()
    }

    /// Installs the program under test as the page says, from a release of it on loopback.
    fn installs(&mut self, line: &str) {
        let (address, _) = line.split_once("/install.sh").unwrap();
        let (_, address) = address.rsplit_once(' ').unwrap();
        let release = Release::real();
        let bin = self.directory.path().join("bin");
        let place = format!("LOCKKEEPER_DIRECTORY={}", bin.display());
        self.run(&format!("export LOCKKEEPER_RELEASES={} {place}", release.url));
        let said = self.run(&line.replace(address, &release.url));
        assert!(said.starts_with(concat!("lockkeeper ", env!("CARGO_PKG_VERSION"))), "{said}");
        let found = self.run("PATH=$LOCKKEEPER_DIRECTORY:$PATH; command -v lockkeeper");
        assert_eq!(Path::new(found.trim()), bin.join("lockkeeper"));
    }

    /// What `make` does is in the Makefile; `make run` starts the service, here in this place.
    fn makes(&mut self, variables: &str, target: &str) {
        match target {
            "run" => self.serves(variables),
            "image" | "test" => (),
            _ => panic!("no such target: make {target}"),
        }
    }

    fn serves(&mut self, variables: &str) {
        self.service = None;
        let here = self.directory.path().join("");
        let redis = self.redis.url();
        let variables: Vec<(&str, String)> = variables
            .split_whitespace()
            .map(|variable| variable.split_once('=').unwrap())
            .map(|(name, value)| match name {
                "LOCKKEEPER_CONFIG" => (name, format!("{}{value}", here.display())),
                _ => (name, value.replace(&format!("redis://{REDIS}"), &redis)),
            })
            .collect();
        let variables: Vec<_> = variables.iter().map(|(name, value)| (*name, &**value)).collect();
        let store = format!("embedded:{}", self.store.path().join("lockkeeper-data").display());
        let elsewhere = variables.iter().any(|(name, _)| *name == "LOCKKEEPER_STORE");
        let flags = if elsewhere { &[][..] } else { &["--store", &store] };
        self.service = Some(Process::start_with(flags, &variables));
        self.run(&format!("export LOCKKEEPER_URL=http://{SERVICE}"));
    }

    fn address(&self) -> String {
        let address = |service: &Process| service.http().address.to_string();
        self.service.as_ref().map_or_else(|| SERVICE.to_owned(), address)
    }

    /// As with PHP, below, and as if it were typed: it must not close the terminal.
    fn runs_bash(&mut self, block: &str) {
        let script = self.directory.path().join("readme.bash");
        std::fs::write(&script, block.replace(SERVICE, &self.address())).unwrap();
        let bash = "bash -c '. ./readme.bash; echo still open: $?'";
        assert_eq!(self.run(bash), "at work\nstill open: 0\n");
        self.run(&format!("curl -sS -X POST 'http://{SERVICE}/locks/cleanup?wait=20s'"));
        assert_eq!(self.run(bash), "still open: 75\n");
    }

    /// Each line is run as cron would, twice; a held key is no error, and nothing is said.
    fn runs_cron(&mut self, block: &str) {
        for line in block.lines() {
            let command = line.splitn(6, ' ').nth(5).unwrap();
            let (exec, work) = command.split_once(" -- ").unwrap();
            let key = exec.rsplit(' ').next().unwrap();
            assert!(work.starts_with("php "));
            assert!(exec.contains("--min-hold"), "{exec}");
            let exec = exec.replace("/usr/bin/lockkeeper", "lockkeeper");
            let command = format!("{exec} -- echo at work; echo $?");
            assert_eq!(self.run(&command), "at work\n0\n");
            // Two hosts, one a moment later.
            assert_eq!(self.run(&command), "0\n");
            let shown = self.run(&format!("lockkeeper get {key}"));
            assert!(shown.contains("\theld\t"), "{shown}");
        }
    }

    /// The line of a unit leads, with another program. A unit without one waits for its program.
    fn runs_unit(&mut self, block: &str) {
        let line = block.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/bin/"));
        let Some(line) = line else { return self.notifies(block) };
        let (exec, program) = line.split_once(" -- ").unwrap();
        assert!(program.starts_with("/srv/") && block.contains("\nRestart=always\n"), "{block}");
        assert_eq!(self.run(&format!("{exec} -- echo at work; echo $?")), "at work\n0\n");
    }

    /// A program under `exec` tells systemd that it is ready, from a process of its own.
    fn notifies(&mut self, block: &str) {
        assert!(block.contains("\nType=notify\nNotifyAccess=all\n"), "{block}");
        let path = self.directory.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        let tell = "import os, socket; \
            s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM); \
            s.sendto(b\"READY=1\", os.environ[\"NOTIFY_SOCKET\"])";
        let exec = "lockkeeper exec leader/notify -- python3";
        let shown = self.run(&format!("NOTIFY_SOCKET={} {exec} -c '{tell}'", path.display()));
        assert_eq!(shown, "");
        socket.set_nonblocking(true).unwrap();
        let mut told = [0; 64];
        let length = socket.recv(&mut told).unwrap();
        assert_eq!(&told[..length], b"READY=1");
    }

    /// A free key is worked under and given back; a held one is not.
    fn runs_php(&mut self, block: &str) {
        let script = self.directory.path().join("readme.php");
        std::fs::write(&script, block.replace(SERVICE, &self.address())).unwrap();
        let php = "php -d display_errors=stderr -d error_reporting=-1 readme.php";
        for _ in 0..2 {
            let shown = self.run(php);
            assert_eq!(shown, "at work\n");
        }
        self.run(&format!("curl -sS -X POST 'http://{SERVICE}/locks/invoice/42?owner=me'"));
        let shown = self.run(php);
        assert_eq!(shown, "not now\n");
    }

    /// Settings are in force as they are written.
    pub(crate) fn configures(&mut self, block: &str) {
        let file = self.directory.path().join("readme.toml");
        std::fs::write(&file, block).unwrap();
        let done = command(BINARY).args(["config", "--config"]).arg(&file).output().unwrap();
        let shown = String::from_utf8(done.stdout).unwrap();
        assert!(done.status.success(), "{:?}", done.stderr);
        let written = block.lines().filter(|line| line.contains(" = ")).count();
        assert_eq!(shown.matches(&*file.to_string_lossy()).count(), written, "{shown}");
    }
}

impl Drop for Newcomer {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

/// The variables of a `docker run` are settings with which the service starts where others reach
/// it, and the port is the one that they say.
fn runs_in_a_container(arguments: &str) {
    let words: Vec<_> = arguments.split_whitespace().collect();
    let after = |flag| words.windows(2).filter(move |pair| pair[0] == flag).map(|pair| pair[1]);
    let variables: Vec<_> = after("-e").map(|pair| pair.split_once('=').unwrap()).collect();
    let directory = in_memory();
    let store = format!("embedded:{}", directory.path().display());
    drop(Process::start_on("0.0.0.0:0", &["--store", &store], &variables));
    let port = after("-p").next().unwrap().rsplit_once(':').unwrap().1;
    assert!(variables.contains(&("LOCKKEEPER_LISTEN", &format!("0.0.0.0:{port}"))));
    assert!(SERVICE.ends_with(port));
}

/// A statement lets a lease write twice and a later one after it, and refuses the earlier one.
fn fences(statement: &str) {
    let program = "
import sqlite3, sys
db = sqlite3.connect(':memory:')
db.execute('CREATE TABLE invoices (id INTEGER, total INTEGER, fence INTEGER)')
db.execute('INSERT INTO invoices VALUES (42, 0, 0)')
for fence, changed in [(7, 1), (7, 1), (9, 1), (7, 0), (8, 0), (9, 1)]:
    done = db.execute(sys.argv[1], {'id': 42, 'total': fence, 'fence': fence})
    assert done.rowcount == changed, (fence, done.rowcount)
";
    let done = command("python3").args(["-c", program, statement]).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}

/// What stands under a heading of a page, up to the next one.
pub(crate) fn section<'a>(page: &'a str, heading: &str) -> &'a str {
    let (_, rest) = page.split_once(&format!("\n{heading}\n")).unwrap();
    rest.split("\n##").next().unwrap()
}

/// The cells of a section's tables, row by row.
pub(crate) fn rows<'a>(page: &'a str, heading: &str) -> Vec<Vec<&'a str>> {
    let rows = section(page, heading).lines().filter_map(|line| line.strip_prefix("| "));
    rows.map(|row| row.split('|').map(str::trim).collect()).collect()
}

/// The fenced blocks of a page: kind and text.
pub(crate) fn blocks(page: &str) -> Vec<(&str, &str)> {
    let parts: Vec<_> = page.split("\n```").collect();
    assert!(parts.len() % 2 == 1, "a block does not end");
    parts.iter().skip(1).step_by(2).map(|block| block.split_once('\n').unwrap()).collect()
}
