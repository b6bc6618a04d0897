//! A redis-server or a sentinel on a port of its own, with a directory that survives its restarts.

use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use redis::{FromRedisValue, RedisResult};

use crate::servers::process::{Process, command};
use crate::servers::shim::Shim;

/// How long a command may take. Faults are struck one after another, so none may hang.
const COMMAND: Duration = Duration::from_millis(1_500);

#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) process: Process,
    pub(crate) port: u16,
    arguments: Vec<String>,
    directory: PathBuf,
    /// Its disk and clock.
    pub(crate) shim: Shim,
}

impl Server {
    /// Starts a server with these arguments, once it answers.
    pub(crate) async fn start(
        directory: PathBuf,
        library: &Path,
        port: u16,
        arguments: &[&str],
    ) -> io::Result<Self> {
        std::fs::create_dir_all(&directory)?;
        let shim = Shim::new(library, directory.join("shim"))?;
        let arguments = arguments.iter().map(|&text| text.to_owned()).collect();
        let mut server = Self { process: Process::default(), port, arguments, directory, shim };
        server.restart().await?;
        Ok(server)
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// Takes the last bytes of the log of its writes, while it is down.
    pub(crate) fn truncate_log(&self, lost: u64) -> io::Result<()> {
        for entry in std::fs::read_dir(self.directory.join("appendonlydir"))? {
            let path = entry?.path();
            if path.to_string_lossy().ends_with(".incr.aof") {
                let log = std::fs::File::options().write(true).open(path)?;
                log.set_len(log.metadata()?.len().saturating_sub(lost))?;
            }
        }
        Ok(())
    }

    /// Starts it again, once it answers.
    pub(crate) async fn restart(&mut self) -> io::Result<()> {
        self.process.kill();
        let mut starting = command("redis-server");
        let log = self.directory.join("log");
        let log = std::fs::File::options().create(true).append(true).open(log)?;
        starting.args(&self.arguments).args(["--port", &self.port.to_string()]);
        starting.args(["--bind", "127.0.0.1"]).current_dir(&self.directory).stdout(log);
        self.shim.preload(starting.stderr(Stdio::null()));
        let own = async |pid| self.info("server").contains(&format!("process_id:{pid}\r"));
        let name = format!("redis-server on port {}", self.port);
        self.process = Process::start_until(&name, &mut starting, own).await?;
        Ok(())
    }

    pub(crate) fn run<T: FromRedisValue>(&self, words: &[&str]) -> io::Result<T> {
        self.run_within(COMMAND, words).map_err(io::Error::other)
    }

    /// Returns what it tells of itself; nothing if it does not answer.
    pub(crate) fn info(&self, section: &str) -> String {
        self.run(&["INFO", section]).unwrap_or_default()
    }

    /// Whether the slot of a key is its own in the Cluster.
    pub(crate) fn has_slot_of(&self, key: &str) -> bool {
        let asked: RedisResult<redis::Value> = self.run_within(COMMAND, &["EXISTS", key]);
        asked.map_or_else(|error| error.code() != Some("MOVED"), |_| true)
    }

    /// Sends a command whose answer nobody waits for.
    pub(crate) fn send(&self, words: &[&str]) {
        let _: RedisResult<redis::Value> = self.run_within(Duration::from_millis(20), words);
    }

    fn run_within<T: FromRedisValue>(&self, limit: Duration, words: &[&str]) -> RedisResult<T> {
        let client = redis::Client::open(format!("redis://{}", self.address()))?;
        let mut connection = client.get_connection_with_timeout(COMMAND)?;
        connection.set_read_timeout(Some(limit))?;
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        command.query(&mut connection)
    }
}
