//! An instance of the service: the binary, as its users run it.

use std::fs::File;
use std::io;
use std::io::PipeReader;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use tokio::time::timeout;

use crate::http::Connection;
use crate::servers::process::{Process, command, free_port};
use crate::servers::shim::Shim;

/// Where the log of an instance goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Log {
    File,   // Into a file that is kept.
    Closed, // Into a pipe whose reader is gone.
    Unread, // Into a pipe that nobody reads.
    Full,   // Onto a disk that is full.
}

/// An instance, on the same port whenever it restarts.
#[derive(Debug)]
pub(crate) struct Instance {
    pub(crate) process: Process,
    pub(crate) log: Log,
    /// The end of a pipe that nobody reads.
    unread: Option<PipeReader>,
    binary: PathBuf,
    pub(crate) port: u16,
    /// The URL of its store, from its next start on.
    pub(crate) store: String,
    settings: PathBuf,
    log_file: PathBuf,
    /// Its disk, clock and connections.
    pub(crate) shim: Shim,
}

impl Instance {
    /// Starts an instance on this store, once it listens.
    pub(crate) async fn start(
        binary: &Path,
        settings: PathBuf,
        log_file: PathBuf,
        store: String,
        shim: Shim,
    ) -> io::Result<Self> {
        let mut instance = Self {
            process: Process::default(),
            log: Log::File,
            unread: None,
            binary: binary.to_owned(),
            port: free_port(),
            store,
            settings,
            log_file,
            shim,
        };
        instance.restart().await?;
        Ok(instance)
    }

    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// Tells it to end, and starts it again with its log there.
    pub(crate) async fn roll(&mut self, log: Log) -> io::Result<()> {
        self.log = log;
        self.process.end().await;
        self.restart().await
    }

    /// Starts it again, once it listens.
    pub(crate) async fn restart(&mut self) -> io::Result<()> {
        self.process.kill();
        let mut starting = self.command(self.port);
        let (reader, writer) = io::pipe()?;
        self.unread = (self.log == Log::Unread).then_some(reader);
        starting.stderr(match self.log {
            Log::File => File::options().create(true).append(true).open(&self.log_file)?.into(),
            Log::Full => File::options().append(true).open("/dev/full")?.into(),
            Log::Closed | Log::Unread => Stdio::from(writer),
        });
        // A log of which nothing is written cannot be in anybody's way.
        let level = if self.log == Log::File { "warn" } else { "info" };
        self.shim.preload(starting.env("LOCKKEEPER_LOG_LEVEL", level));
        let answers = async |_| self.answers("/healthz").await;
        self.process = Process::start_until("an instance", &mut starting, answers).await?;
        Ok(())
    }

    /// Starts it for as long as it lives by itself, and returns how it ended.
    pub(crate) async fn try_start(&self, patience: Duration) -> io::Result<Option<ExitStatus>> {
        let mut starting = self.command(0);
        Ok(Process::start(starting.stderr(Stdio::null()))?.wait(patience).await)
    }

    /// Whether it answers this path with 200, within a second.
    pub(crate) async fn answers(&self, path: &str) -> bool {
        let asked = async {
            let mut connection = Connection::open(self.address()).await?;
            connection.call(&format!("GET {path}"), None).await
        };
        let answered = timeout(Duration::from_secs(1), asked).await;
        matches!(answered, Ok(Ok((200, _))))
    }

    fn command(&self, port: u16) -> Command {
        let mut command = command(&self.binary);
        command.args(["serve", "--listen", &format!("127.0.0.1:{port}")]);
        command.env("LOCKKEEPER_STORE", &self.store).env("LOCKKEEPER_CONFIG", &self.settings);
        // Its allocator asks for memory when it needs it, so that a limit is felt.
        command.env("MIMALLOC_ARENA_EAGER_COMMIT", "0");
        command
    }
}
