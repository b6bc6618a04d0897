//! A redis-server of the test's own, on a free port, with faults at will.

use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use redis::{FromRedisValue, RedisResult};
use tempfile::TempDir;

use crate::support::process::{command, signal, stop};

/// What a server's settings file is called, if it has one.
const SETTINGS: &str = "redis.conf";

const PROGRAM: &str = "redis-server";

/// The highest port of a Cluster's node.
const BUS: u16 = 55_000;

/// A redis-server; killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Redis {
    child: Child,
    port: u16,
    /// Its program, and what follows.
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    directory: TempDir,
}

impl Redis {
    /// One that keeps nothing on disk.
    pub(crate) fn start() -> Self {
        Self::start_with(&["--save", "", "--appendonly", "no"])
    }

    /// One with these arguments, once it answers.
    pub(crate) fn start_with(arguments: &[&str]) -> Self {
        Self::start_in(&[], arguments)
    }

    /// One of another kind or version that keeps nothing on disk.
    pub(crate) fn start_program(program: &Path) -> Self {
        let arguments = [&program.display().to_string(), "--save", "", "--appendonly", "no"];
        Self::start_there(directory(), &arguments.map(str::to_owned), &[])
    }

    /// One with these variables and arguments, once it answers.
    pub(crate) fn start_in(environment: &[(&str, &str)], arguments: &[&str]) -> Self {
        let words = [PROGRAM].iter().chain(arguments);
        let arguments: Vec<String> = words.map(|&text| text.to_owned()).collect();
        let environment: Vec<(String, String)> =
            environment.iter().map(|&(name, text)| (name.to_owned(), text.to_owned())).collect();
        Self::start_there(directory(), &arguments, &environment)
    }

    fn start_there(
        directory: TempDir,
        arguments: &[String],
        environment: &[(String, String)],
    ) -> Self {
        let clustered = arguments.iter().any(|argument| argument == "--cluster-enabled");
        let mut directory = directory;
        for _ in 0..20 {
            let (arguments, environment) = (arguments.to_vec(), environment.to_vec());
            let port = if clustered { port_below(BUS) } else { free_port() };
            let child = spawn(port, &arguments, &environment, &directory);
            let mut redis = Self { child, port, arguments, environment, directory };
            if redis.answers() {
                return redis;
            }
            directory = redis.give_up();
        }
        panic!("no redis-server starts with {arguments:?}");
    }

    /// A sentinel with these settings.
    pub(crate) fn sentinel(settings: &str) -> Self {
        let directory = directory();
        std::fs::write(directory.path().join(SETTINGS), settings).unwrap();
        Self::start_there(directory, &[PROGRAM, "--sentinel"].map(str::to_owned), &[])
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://{}", self.address())
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Where it keeps its data.
    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Runs a command, written as in redis-cli, without quotes.
    pub(crate) fn run<T: FromRedisValue>(&self, line: &str) -> T {
        let words: Vec<_> = line.split(' ').collect();
        self.run_words(&words)
    }

    /// Runs a command of these words.
    pub(crate) fn run_words<T: FromRedisValue>(&self, words: &[&str]) -> T {
        self.try_words(words).unwrap_or_else(|error| panic!("{words:?}: {error}"))
    }

    /// Runs a command that may fail, as a server drops its clients when it is made a replica.
    pub(crate) fn try_words<T: FromRedisValue>(&self, words: &[&str]) -> RedisResult<T> {
        let client = redis::Client::open(self.url()).unwrap();
        let mut connection = client.get_connection()?;
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query(&mut connection)
    }

    /// Its process number.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Ends it at once, as `kill -9` does.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        self.child.wait().unwrap();
    }

    /// Starts it again after [`Redis::kill`], on the same port and data.
    pub(crate) fn restart(&mut self) {
        self.child = spawn(self.port, &self.arguments, &self.environment, &self.directory);
        assert!(self.answers(), "redis-server does not come back");
    }

    /// Stops it in its tracks.
    pub(crate) fn pause(&self) {
        stop(self.child.id());
    }

    /// Lets it go on.
    pub(crate) fn resume(&self) {
        signal(self.child.id(), "CONT");
    }

    fn answers(&mut self) -> bool {
        let client = redis::Client::open(self.url()).unwrap();
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(10) {
            if self.child.try_wait().unwrap().is_some() {
                return false;
            }
            let connection = client.get_connection_with_timeout(Duration::from_millis(500));
            let known = connection.and_then(|mut connection| {
                redis::cmd("INFO").arg("server").query::<String>(&mut connection)
            });
            match known {
                // Another server may have taken the port in the meantime.
                Ok(info) => return info.contains(&format!("process_id:{}\r", self.child.id())),
                Err(_) => std::thread::yield_now(),
            }
        }
        false
    }

    fn give_up(mut self) -> TempDir {
        self.kill();
        let other = directory();
        std::mem::replace(&mut self.directory, other)
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        // It may have been killed by the test.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(
    port: u16,
    arguments: &[String],
    environment: &[(String, String)],
    directory: &TempDir,
) -> Child {
    let (program, arguments) = arguments.split_first().unwrap();
    let mut server = command(program);
    let settings = directory.path().join(SETTINGS);
    if settings.exists() {
        server.arg(settings);
    }
    server
        .envs(environment.iter().cloned())
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--dir"])
        .arg(directory.path())
        .args(arguments)
        .stdout(Stdio::null())
        .spawn()
        .expect("redis-server is there: `make test` installs it")
}

/// A directory for a server's files; those of servers that tests share stay until `cargo clean`.
fn directory() -> TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// A port that leaves room for the one of the Cluster's bus, 10000 above it.
fn port_below(limit: u16) -> u16 {
    std::iter::repeat_with(free_port).find(|port| *port < limit).unwrap()
}

/// A port that is free at this moment.
pub(crate) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
