//! COMMAND as a process: started so that it dies with us, signalled with all that it started, and
//! waited for.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::os::unix::process::ExitStatusExt;
use std::process::Child;
use std::process::Command;
use std::process::ExitStatus;
use std::time::Duration;

use rustix::process::Pid;
use rustix::process::Signal;
use rustix::process::WaitOptions;
use rustix::process::getpid;
use rustix::process::getppid;
use rustix::process::kill_process;
use rustix::process::kill_process_group;
use rustix::process::set_child_subreaper;
use rustix::process::set_parent_process_death_signal;
use rustix::process::test_kill_process_group;
use rustix::process::waitpid;
use tokio::signal::unix::SignalKind;
use tokio::signal::unix::signal;

use crate::cli::clock::Moment;
use crate::cli::exit;
use crate::cli::voice::say;

/// This very program, even if its file was replaced since.
const OURSELVES: &str = "/proc/self/exe";

/// The word of the process that is about to be COMMAND.
pub(super) const BECOME: &str = "exec:command";

/// How often it is asked whether those are gone whose end nobody tells us.
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// The most processes that are found below one: a fork bomb must not keep us from killing.
const MAX_TREE: usize = 10_000;

/// Whom a signal for COMMAND reaches.
#[derive(Clone, Copy, Debug)]
pub(super) enum Reach {
    /// Its process group, which is its own.
    Group(Pid),
    /// All that descends from us but the warden. On a terminal COMMAND shares our group, and with
    /// it Ctrl-C, Ctrl-Z and the right to read; but so do others, as the script that runs us.
    Tree { us: Pid, warden: Pid },
}

impl Reach {
    /// What is gone already needs no signal.
    pub(super) fn send(self, signal: Signal) {
        match self {
            Self::Group(pid) => {
                let _ = kill_process_group(pid, signal);
            }
            Self::Tree { us, warden } => {
                for pid in below(us, warden) {
                    let _ = kill_process(pid, signal);
                }
            }
        }
    }

    /// Whether anybody is left, the dead whom nobody has buried included.
    fn reaches_anybody(self) -> bool {
        match self {
            Self::Group(pid) => test_kill_process_group(pid).is_ok(),
            Self::Tree { us, warden } => !below(us, warden).is_empty(),
        }
    }
}

/// The descendants of a process, without one of its children.
fn below(root: Pid, except: Pid) -> Vec<Pid> {
    let mut found = Vec::new();
    let mut next = Some(root);
    let mut seen = 0;
    while let Some(pid) = next {
        found.extend(children(pid).filter(|pid| *pid != except));
        next = found.get(seen).copied().filter(|_| found.len() < MAX_TREE);
        seen += 1;
    }
    found
}

fn children(parent: Pid) -> impl Iterator<Item = Pid> {
    let tasks = std::fs::read_dir(format!("/proc/{}/task", parent.as_raw_pid()));
    let tasks = tasks.into_iter().flatten().flatten().map(|task| task.path().join("children"));
    let lists: Vec<_> = tasks.flat_map(std::fs::read_to_string).collect();
    let pids = lists.iter().flat_map(|list| list.split_whitespace());
    let pids: Vec<_> = pids.filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect();
    pids.into_iter()
}

/// COMMAND while it runs.
#[derive(Debug)]
pub(super) struct Running {
    child: Child,
    warden: Pid,
    deaths: tokio::signal::unix::Signal,
    pub(super) reach: Reach,
    status: Option<ExitStatus>,
}

impl Running {
    /// Starts COMMAND by way of [`become_command`]. It has our descriptors and our environment,
    /// with `changes` to it; after `latest` it does not begin. Its death signal is bound to this thread, which has to be the last.
    pub(super) fn start(
        words: &[OsString],
        changes: &[(&str, Option<String>)],
        warden: Pid,
        latest: Option<Moment>,
    ) -> io::Result<Self> {
        let deaths = signal(SignalKind::child())?;
        let mut command = ourselves(BECOME);
        let latest = latest.map_or(0, Moment::as_micros).to_string();
        command.arg(getpid().as_raw_pid().to_string()).arg(latest).args(words);
        for (name, value) in changes {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        // Whose parent has ended is ours then, and can be found and buried.
        set_child_subreaper(Some(getpid()))?;
        let on_terminal = std::fs::File::open("/dev/tty").is_ok();
        if !on_terminal {
            command.process_group(0);
        }
        let child = command.spawn()?;
        let reach = match on_terminal {
            true => Reach::Tree { us: getpid(), warden },
            false => Reach::Group(Pid::from_child(&child)),
        };
        Ok(Self { child, warden, deaths, reach, status: None })
    }

    /// Waits until its first process has ended, and after that until all have that it has
    /// started; gives how the first one ended.
    pub(super) async fn next_end(&mut self) -> io::Result<ExitStatus> {
        match self.status {
            None => self.ended().await,
            Some(status) => {
                self.gone().await;
                Ok(status)
            }
        }
    }

    async fn ended(&mut self) -> io::Result<ExitStatus> {
        loop {
            if let Some(status) = self.child.try_wait()? {
                self.status = Some(status);
                return Ok(status);
            }
            self.bury_orphans();
            self.deaths.recv().await;
        }
    }

    async fn gone(&mut self) {
        loop {
            self.bury_orphans();
            if !self.reach.reaches_anybody() {
                return;
            }
            // Not all of them are our children yet.
            tokio::select! {
                _ = self.deaths.recv() => (),
                () = tokio::time::sleep(LOOK_AGAIN) => (),
            }
        }
    }

    /// Those whose parents have ended are our children, and nobody else waits for them.
    fn bury_orphans(&self) {
        let first = Pid::from_child(&self.child);
        let known = |pid: Pid| pid == self.warden || self.status.is_none() && pid == first;
        for pid in children(getpid()).filter(|pid| !known(*pid)) {
            let _ = waitpid(Some(pid), WaitOptions::NOHANG);
        }
    }

    /// Passes a signal on that was sent to us. What a terminal sends, it sends to COMMAND as well.
    pub(super) fn forward(&self, signal: Signal) {
        let twice = [Signal::INT, Signal::QUIT, Signal::HUP].contains(&signal);
        match self.reach {
            Reach::Tree { .. } if twice || self.status.is_some() => (),
            Reach::Tree { .. } => {
                let _ = kill_process(Pid::from_child(&self.child), signal);
            }
            Reach::Group(_) => self.reach.send(signal),
        }
    }
}

/// The exit code that tells how a process ended, as shells have it.
pub(super) fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|signal| exit::SIGNALLED + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(exit::INTERNAL)
}

/// A process of our own program, with this word.
pub(super) fn ourselves(word: &str) -> Command {
    let mut command = Command::new(OURSELVES);
    command.arg0("lockkeeper").arg(word);
    command
}

/// Becomes COMMAND, which is killed when its parent dies: what has to be done from within the new
/// process. The words are the parent, the moment after which it is too late, and COMMAND's.
pub(super) fn become_command(mut words: impl Iterator<Item = OsString>) -> u8 {
    let mut number = || words.next()?.to_str()?.parse::<u64>().ok();
    let (Some(parent), Some(latest), Some(program)) = (number(), number(), words.next()) else {
        return exit::INTERNAL;
    };
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        say(&format_args!("COMMAND cannot be bound to us: {error}"));
        return exit::INTERNAL;
    }
    let found = getppid().map(Pid::as_raw_pid).and_then(|pid| u64::try_from(pid).ok());
    if found != Some(parent) {
        return exit::INTERNAL; // It died before we were bound to it.
    }
    if latest > 0 && Moment::from_micros(latest).has_come() {
        return exit::LOST; // Everything stood still since the lease was granted.
    }
    let error = Command::new(&program).args(words).exec();
    say(&format_args!("cannot execute {}: {error}", program.to_string_lossy()));
    match error.kind() {
        io::ErrorKind::NotFound => exit::NOT_FOUND,
        _ => exit::NOT_EXECUTABLE,
    }
}
