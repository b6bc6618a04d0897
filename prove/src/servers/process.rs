//! Processes under test: they end with this one, and by their number alone.

use std::ffi::OsStr;
use std::io;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use tokio::time::{Instant, sleep};

/// How often a process is asked whether it has ended.
const STEP: Duration = Duration::from_millis(5);

/// How long a process may take to start, or to end.
const PATIENCE: Duration = Duration::from_secs(20);

/// A process that runs, has ended by itself, or is not there. It is killed when it is dropped.
#[derive(Debug, Default)]
pub(crate) struct Process(Option<Child>);

impl Process {
    pub(crate) fn start(command: &mut Command) -> io::Result<Self> {
        command.spawn().map(|child| Self(Some(child)))
    }

    /// Starts a process, and returns it once it answers; `answers` is given its number.
    pub(crate) async fn start_until(
        name: &str,
        command: &mut Command,
        answers: impl AsyncFn(u32) -> bool,
    ) -> io::Result<Self> {
        let mut process = Self::start(command)?;
        let end = Instant::now() + PATIENCE;
        while Instant::now() < end && process.runs() {
            if answers(process.pid()).await {
                return Ok(process);
            }
            sleep(STEP).await;
        }
        let status = process.ended();
        Err(io::Error::other(format!("{name} does not start ({status:?}), see its log")))
    }

    /// Returns its number; 0 if there is none.
    pub(crate) fn pid(&self) -> u32 {
        self.0.as_ref().map_or(0, Child::id)
    }

    pub(crate) fn signal(&mut self, signal: Signal) {
        if self.runs()
            && let Some(child) = &self.0
        {
            // It may end in this moment; its number stays its own until it is waited for.
            let _ = kill_process(Pid::from_child(child), signal);
        }
    }

    pub(crate) fn ended(&mut self) -> Option<ExitStatus> {
        self.0.as_mut()?.try_wait().ok().flatten()
    }

    pub(crate) fn runs(&mut self) -> bool {
        self.0.is_some() && self.ended().is_none()
    }

    pub(crate) async fn wait(&mut self, patience: Duration) -> Option<ExitStatus> {
        let end = Instant::now() + patience;
        while self.runs() && Instant::now() < end {
            sleep(STEP).await;
        }
        self.ended()
    }

    /// Tells it to end, and kills it if it does not.
    pub(crate) async fn end(&mut self) {
        self.signal(Signal::TERM);
        self.wait(PATIENCE).await;
        self.kill();
    }

    /// Kills it, and returns once it has ended.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.0.take() {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    pub(crate) fn descriptors(&self) -> u64 {
        let entries = std::fs::read_dir(format!("/proc/{}/fd", self.pid()));
        entries.map_or(0, |entries| entries.count() as u64)
    }

    pub(crate) fn memory_kib(&self) -> u64 {
        self.status("VmRSS:")
    }

    /// Lets it have so many KiB more than it has asked for by now, or as many as it likes.
    pub(crate) fn limit_memory(&self, more_kib: Option<u64>) -> io::Result<()> {
        let Some(child) = &self.0 else { return Ok(()) };
        let most = more_kib.map(|more| (self.status("VmData:") + more) * 1_024);
        let limit = Rlimit { current: most, maximum: None };
        match prlimit(Some(Pid::from_child(child)), Resource::Data, limit) {
            // It has ended by itself.
            Ok(_) | Err(Errno::SRCH) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// A number of its status; 0 if it has ended.
    fn status(&self, name: &str) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid()));
        let status = status.unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.split_whitespace().next()?.parse().ok()).unwrap_or(0)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns a command that dies with the thread that starts it, without variables of the service.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).arg(program).stdin(Stdio::null()).stdout(Stdio::null());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("LOCKKEEPER_") {
            command.env_remove(name);
        }
    }
    command
}

/// Returns a port of loopback that no outgoing connection can take, and that is free with that of a
/// Cluster bus above it. It is this process's until its end, also while its server is down.
pub(crate) fn free_port() -> u16 {
    static OURS: Mutex<Vec<UnixListener>> = Mutex::new(Vec::new());
    let free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    loop {
        let port = fastrand::u16(10_000..20_000);
        let name = SocketAddr::from_abstract_name(format!("prove-port-{port}"));
        if let Ok(ours) = name.and_then(|name| UnixListener::bind_addr(&name))
            && free(port)
            && free(port + 10_000)
        {
            OURS.lock().unwrap_or_else(PoisonError::into_inner).push(ours);
            return port;
        }
    }
}
