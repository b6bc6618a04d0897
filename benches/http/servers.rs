//! The servers that are compared, each a process on a free port that ends with its value.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::cpu;

/// How long a server may take until it serves.
const PATIENCE: Duration = Duration::from_secs(20);

/// How often another port is tried: somebody may take a free one first.
const TRIES: usize = 10;

/// The script that grants a key which is free.
const TRY_ACQUIRE: &str = concat!(
    include_str!("../../src/store/redis/scripts/prelude.lua"),
    include_str!("../../src/store/redis/scripts/lease.lua"),
    include_str!("../../src/store/redis/scripts/try_acquire.lua"),
);

/// The service.
pub(crate) fn lockkeeper() -> PathBuf {
    crate::on_disk().join("lockkeeper")
}

/// A server; killed when it is dropped.
#[derive(Debug)]
pub(crate) struct Server {
    child: Child,
    pub(crate) port: u16,
}

impl Server {
    /// The service on this store, with its log thrown away.
    pub(crate) fn lockkeeper(store: &[&str], variables: &[(&str, &str)]) -> Self {
        Self::service(&lockkeeper(), store, variables)
    }

    /// The same of another build.
    pub(crate) fn service(program: &Path, store: &[&str], variables: &[(&str, &str)]) -> Self {
        Self::start("/readyz", |port| {
            let mut command = command(program.to_str().unwrap());
            command.args(["serve", "--listen"]).arg(format!("127.0.0.1:{port}"));
            command.args(store.iter().flat_map(|url| ["--store", url]));
            command.envs(variables.iter().copied());
            command
        })
    }

    /// Lets new Redlock nodes vote at once.
    pub(crate) fn admit(nodes: &[&str]) {
        let mut command = command(lockkeeper().to_str().unwrap());
        command.args(["redlock", "admit"]);
        command.args(nodes.iter().map(|url| url.trim_start_matches("redis://")));
        command.env("LOCKKEEPER_STORE", nodes.join(" "));
        assert!(command.status().unwrap().success());
    }

    /// webdis before a Redis, with its settings in `directory`.
    pub(crate) fn webdis(redis: &Redis, directory: &Path) -> Self {
        Self::start("/PING", |port| {
            let settings = serde_json::json!({
                "redis_host": "127.0.0.1",
                "redis_port": redis.server.port,
                "http_host": "127.0.0.1",
                "http_port": port,
                "threads": 2,
                "daemonize": false,
                "database": 0,
                "verbosity": 0,
                "logfile": directory.join("webdis.log"),
            });
            let path = directory.join("webdis.json");
            fs::write(&path, settings.to_string()).unwrap();
            let mut command = command("webdis");
            // It opens a log where it stands before it reads where its log should be.
            command.arg(path).current_dir(directory);
            command
        })
    }

    /// etcd with its data in `directory`, and a lease for all locks.
    pub(crate) fn etcd(directory: &Path) -> Self {
        let server = Self::start("/health", |port| {
            let url = format!("http://127.0.0.1:{port}");
            let mut command = command("etcd");
            command.args(["--listen-client-urls", &url, "--advertise-client-urls", &url]);
            command.args(["--listen-peer-urls", "http://127.0.0.1:0", "--log-level", "error"]);
            // It may have begun on a port that somebody else had.
            command.arg("--data-dir").arg(directory.join(port.to_string()));
            command
        });
        let lease = server.ask("POST", "/v3/lease/grant", r#"{"TTL":86400,"ID":1}"#);
        lease.expect("etcd grants a lease");
        server
    }

    /// How often etcd has changed.
    pub(crate) fn revision(&self) -> u64 {
        let answer = self.ask("POST", "/v3/kv/range", r#"{"key":"AA=="}"#);
        let answer = answer.expect("etcd reads a key");
        let (_, body) = answer.split_once("\r\n\r\n").unwrap();
        let body: serde_json::Value = serde_json::from_str(body).unwrap();
        body["header"]["revision"].as_str().unwrap().parse().unwrap()
    }

    /// The bare route: this program once more.
    pub(crate) fn bare() -> Self {
        Self::start("/readyz", |port| {
            let mut command = command(std::env::current_exe().unwrap().to_str().unwrap());
            command.args([crate::BARE, &port.to_string()]);
            command
        })
    }

    /// The processor time that it has used, in microseconds.
    pub(crate) fn cpu_micros(&self) -> f64 {
        cpu::of(self.child.id())
    }

    /// The memory that it has in use, in KB of 1000 bytes.
    pub(crate) fn resident_kb(&self) -> f64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() * 1.024
    }

    /// The service's counts of acquires and releases, by their outcomes.
    pub(crate) fn outcomes(&self) -> BTreeMap<String, u64> {
        let text = self.get("/metrics").expect("the service shows its figures");
        let verbs = ["lockkeeper_acquire_total", "lockkeeper_release_total"];
        let lines = text.lines().filter(|line| verbs.iter().any(|verb| line.starts_with(verb)));
        let counts = lines.filter_map(|line| line.rsplit_once(' '));
        counts.map(|(name, count)| (name.to_owned(), count.parse().unwrap())).collect()
    }

    /// Makes so many readers hold a key.
    pub(crate) fn share(&self, key: &str, readers: u16) {
        for _ in 0..readers {
            let path = format!("/locks/{key}?shared=true&ttl=10m");
            self.ask("POST", &path, "").expect("there is room for another reader");
        }
    }

    fn start(ready: &str, command: impl Fn(u16) -> Command) -> Self {
        for _ in 0..TRIES {
            let port = free_port();
            let mut server = Self { child: spawn(command(port)), port };
            if server.comes_up(|server| server.get(ready).is_some()) {
                return server;
            }
        }
        panic!("does not start: {:?}", command(0));
    }

    /// Waits until it serves; false if it ends instead.
    fn comes_up(&mut self, serves: impl Fn(&Self) -> bool) -> bool {
        let began = Instant::now();
        while began.elapsed() < PATIENCE {
            let served = serves(self);
            if self.child.try_wait().unwrap().is_some() {
                return false;
            }
            if served {
                return true;
            }
            std::thread::yield_now();
        }
        false
    }

    /// The answer to a GET, if it is 200.
    fn get(&self, path: &str) -> Option<String> {
        self.ask("GET", path, "").filter(|answer| answer.starts_with("HTTP/1.1 200 "))
    }

    /// The answer to a request, if it is 200 or 201.
    fn ask(&self, method: &str, path: &str, body: &str) -> Option<String> {
        let mut connection = TcpStream::connect(("127.0.0.1", self.port)).ok()?;
        connection.set_read_timeout(Some(PATIENCE)).ok()?;
        let head =
            format!("Host: localhost\r\nContent-Length: {}\r\nConnection: close", body.len());
        write!(connection, "{method} {path} HTTP/1.1\r\n{head}\r\n\r\n{body}").ok()?;
        let mut answer = String::new();
        connection.read_to_string(&mut answer).ok()?;
        answer.starts_with("HTTP/1.1 20").then_some(answer)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A redis-server that keeps nothing on disk.
#[derive(Debug)]
pub(crate) struct Redis {
    pub(crate) server: Server,
    _directory: TempDir,
}

impl Redis {
    pub(crate) fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        for _ in 0..TRIES {
            let port = free_port();
            let mut command = command("redis-server");
            command.args(["--save", "", "--appendonly", "no", "--bind", "127.0.0.1"]);
            command.args(["--port", &port.to_string(), "--dir"]).arg(directory.path());
            let mut server = Server { child: spawn(command), port };
            let id = format!("process_id:{}\r", server.child.id());
            let answers = |server: &Server| {
                run::<String>(server.port, &["INFO", "server"]).is_ok_and(|info| info.contains(&id))
            };
            if server.comes_up(answers) {
                return Self { server, _directory: directory };
            }
        }
        panic!("redis-server does not start");
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.server.port)
    }

    /// Forgets all keys.
    pub(crate) fn flush(&self) {
        run::<()>(self.server.port, &["FLUSHALL"]).unwrap();
    }

    /// The hash of the script that grants a free key, which it knows from now on.
    pub(crate) fn script(&self) -> String {
        run(self.server.port, &["SCRIPT", "LOAD", TRY_ACQUIRE]).unwrap()
    }

    /// How many keys there are.
    pub(crate) fn keys(&self) -> u64 {
        run(self.server.port, &["DBSIZE"]).unwrap()
    }
}

/// A command that dies with this process, without the variables that are meant for it.
pub(crate) fn command(program: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL", program]).stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("LOCKKEEPER_") {
            command.env_remove(name);
        }
    }
    command
}

fn spawn(mut command: Command) -> Child {
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("setpriv is there")
}

fn run<T: redis::FromRedisValue>(port: u16, words: &[&str]) -> redis::RedisResult<T> {
    let client = redis::Client::open(("127.0.0.1", port))?;
    let mut connection = client.get_connection_with_timeout(PATIENCE)?;
    redis::cmd(words[0]).arg(&words[1..]).query(&mut connection)
}

/// A port that is free at this moment.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
