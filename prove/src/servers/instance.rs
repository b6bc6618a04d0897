//! An instance of the service: the binary, as its users run it.

use std::fs::File;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{ChildStderr, ExitStatus, Stdio};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use crate::http::Connection;
use crate::servers::process::{Process, command, free_port};
use crate::servers::shim::Shim;

/// How long an instance may take to listen.
const PATIENCE: Duration = Duration::from_secs(20);

/// Where the log of an instance goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Errors {
    /// Into a file that is kept.
    File,
    /// Into a pipe whose reader is gone.
    Closed,
    /// Into a pipe that nobody reads.
    Unread,
    /// Onto a disk that is full.
    Full,
}

/// An instance, on the same port whenever it restarts.
#[derive(Debug)]
pub(crate) struct Instance {
    pub(crate) process: Process,
    /// The end of a pipe that nobody reads.
    unread: Option<ChildStderr>,
    binary: PathBuf,
    port: u16,
    store: String,
    variables: Vec<(String, String)>,
    log: PathBuf,
    /// Its disk, clock and connections.
    pub(crate) shim: Shim,
}

impl Instance {
    /// Starts an instance on this store with these settings, once it listens.
    pub(crate) async fn start(
        binary: &Path,
        shim: Shim,
        log: PathBuf,
        store: String,
        variables: &[(&str, &str)],
    ) -> io::Result<Self> {
        let owned = |&(name, value): &(&str, &str)| (name.to_owned(), value.to_owned());
        let mut instance = Self {
            process: Process::default(),
            unread: None,
            binary: binary.to_owned(),
            port: free_port(),
            store,
            variables: variables.iter().map(owned).collect(),
            log,
            shim,
        };
        instance.restart(Errors::File).await?;
        Ok(instance)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn address(&self) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, 1], self.port))
    }

    /// Has it use another store from its next start on.
    pub(crate) fn set_store(&mut self, store: String) {
        self.store = store;
    }

    /// Tells it to end, and starts it again.
    pub(crate) async fn roll(&mut self, errors: Errors) -> io::Result<()> {
        self.process.end().await;
        self.restart(errors).await
    }

    /// Starts it again, once it listens.
    pub(crate) async fn restart(&mut self, errors: Errors) -> io::Result<()> {
        self.process.kill();
        let mut starting = command(&self.binary);
        let listen = format!("127.0.0.1:{}", self.port);
        starting.args(["serve", "--listen", &listen]).env("LOCKKEEPER_STORE", &self.store);
        starting.env("LOCKKEEPER_LOG_LEVEL", "warn");
        starting.envs(self.variables.iter().map(|(name, value)| (name, value)));
        starting.stderr(match errors {
            Errors::File => Stdio::from(File::options().create(true).append(true).open(&self.log)?),
            Errors::Closed | Errors::Unread => Stdio::piped(),
            Errors::Full => Stdio::from(File::options().append(true).open("/dev/full")?),
        });
        if errors != Errors::File {
            // A log of which nothing is written cannot be in anybody's way.
            starting.env("LOCKKEEPER_LOG_LEVEL", "info");
        }
        self.shim.preload(&mut starting);
        let mut process = Process::start(&mut starting)?;
        let pipe = process.take_errors();
        self.unread = pipe.filter(|_| errors == Errors::Unread);
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end && process.runs() {
            if self.answers("/healthz").await {
                self.process = process;
                return Ok(());
            }
            sleep(Duration::from_millis(5)).await;
        }
        let status = process.ended();
        Err(io::Error::other(format!("the instance does not start ({status:?}), see its log")))
    }

    /// Starts it for as long as it lives by itself, and returns how it ended.
    pub(crate) async fn try_start(&self, patience: Duration) -> io::Result<Option<ExitStatus>> {
        let mut starting = command(&self.binary);
        starting.args(["serve", "--listen", "127.0.0.1:0"]).env("LOCKKEEPER_STORE", &self.store);
        starting.envs(self.variables.iter().map(|(name, value)| (name, value)));
        starting.stderr(Stdio::null());
        Ok(Process::start(&mut starting)?.wait(patience).await)
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
}
