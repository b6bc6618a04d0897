//! The service as the process that users run.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use crate::support::{Http, PATIENCE, eventually};

/// The binary under test.
pub(crate) const BINARY: &str = env!("CARGO_BIN_EXE_lockkeeper");

/// A `lockkeeper serve` on a free port; killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Process {
    child: Child,
    place: String,
    log: Log,
}

/// What a process writes on standard error.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    text: Arc<Mutex<String>>,
    ended: Arc<AtomicBool>,
}

impl Log {
    /// All of it, once its process has ended.
    pub(crate) fn whole(&self) -> String {
        while !self.ended.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
        self.text.lock().unwrap().clone()
    }
}

impl Process {
    /// Starts it with `--store`, and these variables.
    pub(crate) fn start(store: &str, variables: &[(&str, &str)]) -> Self {
        Self::start_with(&["--store", store], variables)
    }

    /// Starts it with these arguments and variables, and waits until it serves.
    pub(crate) fn start_with(arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        Self::start_on("127.0.0.1:0", arguments, variables)
    }

    /// Starts it by way of another program.
    pub(crate) fn start_under(program: &[&str], arguments: &[&str]) -> Self {
        let mut starting = command(program[0]);
        starting.args(&program[1..]).arg(BINARY).args(["serve", "--listen", "127.0.0.1:0"]);
        starting.args(arguments);
        Self::serving(starting)
    }

    /// Starts it where it is told to listen.
    pub(crate) fn start_on(listen: &str, arguments: &[&str], variables: &[(&str, &str)]) -> Self {
        // Whatever signals the tests were started to ignore.
        let mut starting = command("env");
        starting.args(["--default-signal", BINARY, "serve", "--listen", listen]).args(arguments);
        starting.envs(variables.iter().copied());
        Self::serving(starting)
    }

    fn serving(mut starting: Command) -> Self {
        let mut child = starting.stderr(Stdio::piped()).spawn().unwrap();
        let log = Log::default();
        let (serves, place) = mpsc::channel();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let kept = log.clone();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                if let Some((_, rest)) = line.split_once("serving locks on ") {
                    let end = rest.find(|letter: char| letter == '"' || letter.is_whitespace());
                    let _ = serves.send(rest[..end.unwrap_or(rest.len())].to_owned());
                }
                let mut kept = kept.text.lock().unwrap();
                kept.push_str(&line);
                kept.push('\n');
            }
            kept.ended.store(true, Ordering::Release);
        });
        let Ok(place) = place.recv_timeout(Duration::from_secs(20)) else {
            panic!("it does not serve: {}", log.text.lock().unwrap());
        };
        Self { child, place, log }
    }

    /// A client of it, without TLS.
    pub(crate) fn http(&self) -> Http {
        Http::new(self.address())
    }

    /// The address and port.
    pub(crate) fn address(&self) -> SocketAddr {
        self.place.split_once("://").unwrap().1.parse().unwrap()
    }

    /// The URL, as it logged it.
    pub(crate) fn url(&self) -> &str {
        &self.place
    }

    /// Its process number.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// All that it has logged.
    pub(crate) fn log(&self) -> String {
        self.log.text.lock().unwrap().clone()
    }

    /// Waits until it has logged this: the log is written by a thread of its own.
    pub(crate) async fn logs(&self, text: &str) {
        eventually(PATIENCE, async || self.log().contains(text).then_some(())).await;
    }

    /// What it logs, also when it has ended.
    pub(crate) fn log_to_the_end(&self) -> Log {
        self.log.clone()
    }

    /// Ends it at once, as `kill -9` does.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends it a signal by name.
    pub(crate) fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    /// Stops it. It goes on with `CONT`.
    pub(crate) fn stop(&self) {
        stop(self.pid());
    }

    /// Waits until it has ended, and gives its exit code.
    pub(crate) fn wait(mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a signal by name to a process that a test started.
pub(crate) fn signal(pid: u32, name: &str) {
    let sent = Command::new("kill").args(["-s", name, &pid.to_string()]).status().unwrap();
    assert!(sent.success());
}

/// Stops a process that a test started, and that nobody lets go on: on a busy machine its threads
/// go on for a while.
pub(crate) fn stop(pid: u32) {
    signal(pid, "STOP");
    let end = Instant::now() + PATIENCE;
    while !has_stopped(pid) {
        assert!(Instant::now() < end, "{pid} does not stop");
        std::thread::yield_now();
    }
}

/// Whether none of a process's threads runs any more.
fn has_stopped(pid: u32) -> bool {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    threads.map(|thread| thread.unwrap().path().join("stat")).all(|stat| {
        let stat = std::fs::read_to_string(stat).unwrap_or_default();
        stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'))
    })
}

/// The bytes that are not read yet of each connection to a port of this machine, with the port of the
/// other end.
pub(crate) fn unread(port: u16) -> Vec<(u16, u64)> {
    let sockets = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let sockets = sockets.lines().skip(1).map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        let number = |word: usize| words[word].split_once(':').unwrap().1;
        [1, 2, 4].map(|word| u64::from_str_radix(number(word), 16).unwrap())
    });
    let of_port = sockets.filter(|[local, ..]| *local == u64::from(port));
    of_port.map(|[_, other, bytes]| (u16::try_from(other).unwrap(), bytes)).collect()
}

/// Waits until the other end has read all that was written to a connection.
pub(crate) fn until_read(stream: &TcpStream) {
    let [service, client] =
        [stream.peer_addr(), stream.local_addr()].map(|end| end.unwrap().port());
    let began = Instant::now();
    while !unread(service).contains(&(client, 0)) {
        assert!(began.elapsed() < PATIENCE, "it does not read");
        std::thread::yield_now();
    }
}

/// What a command prints, if all goes well.
pub(crate) fn succeeds(command: &mut Command) -> String {
    let done = command.output().unwrap();
    let [out, error] = [&done.stdout, &done.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(done.status.success(), "{command:?}: {out}{error}");
    out.trim().to_owned()
}

/// A command that dies with the test that started it, without our variables.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).arg(program).stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("LOCKKEEPER_") {
            command.env_remove(name);
        }
    }
    command
}
