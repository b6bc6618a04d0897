//! COMMAND as a process: starts it so that it dies with the wrapper, signals it and its
//! descendants, and waits for them.

use std::cell::{Cell, RefCell};
use std::ffi::OsString;
use std::future::poll_fn;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};

use rustix::process::{Pid, Signal, WaitOptions, getpid, getppid, wait};
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::clock::Moment;
use crate::cli::exec::reach::Reach;
use crate::cli::exec::warden::{ROUND, Warden, WardenOrder};
use crate::cli::exec::{change_environment, marks, ourselves};
use crate::cli::signals::block_only;
use crate::cli::voice::last_words;
use crate::cli::{exit, outer};
use crate::platform::{Sender, processes};

/// The argument of the process that becomes COMMAND.
pub(super) const BECOME: &str = "exec:command";

/// The most earlier children that are spared: an order has to fit into a pipe at once.
const MAX_SPARED: usize = 300;

#[derive(Debug)]
pub(super) struct Start<'a> {
    pub(super) words: &'a [OsString],
    /// Variables to set, or with `None` to remove.
    pub(super) changes: &'a [(&'a str, Option<String>)],
    /// The signals to block.
    pub(super) blocked: u64,
    /// The latest moment to begin.
    pub(super) latest: Moment,
    /// The moment at which the warden kills it.
    pub(super) end: Moment,
    /// Variables for the warden, which names the leases that it gives back if the wrapper dies.
    pub(super) give_back: &'a [(&'static str, Option<OsString>)],
}

/// The running COMMAND and its warden.
#[derive(Debug)]
pub(super) struct Running {
    first: Pid,
    pub(super) warden: Warden,
    deaths: RefCell<tokio::signal::unix::Signal>,
    status: Cell<Option<ExitStatus>>,
}

impl Running {
    /// Starts the warden, then COMMAND by way of [`become_command`]. COMMAND inherits our
    /// descriptors and environment. Its death signal is bound to this thread, which has to be the
    /// last.
    ///
    /// An error means that COMMAND was not started.
    pub(super) fn start(start: Start<'_>) -> io::Result<Self> {
        let deaths = signal(SignalKind::child())?;
        let on_terminal = processes::has_terminal();
        let mut spared = processes::our_children();
        spared.truncate(MAX_SPARED);
        let us = getpid();
        let mark = format!("{}-{}", us.as_raw_pid(), Moment::now().as_micros());
        let mut command = ourselves(BECOME)?;
        let numbers = [start.latest.as_micros(), start.blocked].map(|number| number.to_string());
        command.arg(us.as_raw_pid().to_string()).args(numbers).args(start.words);
        change_environment(&mut command, start.changes);
        command.env(marks::MARKS, marks::with_mark(std::env::var(marks::MARKS).ok(), &mark));
        if !on_terminal {
            command.process_group(0);
        }
        // Orphans become our children then, and can be found and reaped.
        processes::adopt_orphans()?;
        let reach = Reach { wrapper: us, first: None, group: None, spared, mark };
        let warden = Warden::start(WardenOrder { reach, end: start.end }, start.give_back)?;
        let first = match command.spawn() {
            Ok(child) => Pid::from_child(&child),
            Err(error) => {
                warden.dismiss();
                return Err(error);
            }
        };
        warden.change(|reach| {
            reach.first = Some(first);
            reach.group = Some(first).filter(|_| !on_terminal);
        });
        Ok(Self { first, warden, deaths: RefCell::new(deaths), status: Cell::new(None) })
    }

    /// Waits until its first process has ended; called again, until all descendants have. Returns
    /// the status of the first.
    pub(super) async fn next_end(&self) -> ExitStatus {
        let death = || poll_fn(|context| self.deaths.borrow_mut().poll_recv(context));
        let had_ended = self.status.get().is_some();
        loop {
            self.reap();
            match self.status.get() {
                Some(status) if !had_ended || self.warden.reach().alive().is_empty() => {
                    return status;
                }
                // Not all of them are our children yet.
                Some(_) => tokio::select! {
                    _ = death() => (),
                    () = tokio::time::sleep(ROUND) => (),
                },
                None => {
                    death().await;
                }
            }
        }
    }

    /// Tells all processes to end; stopped ones are continued to hear it.
    pub(super) fn tell(&self, signal: Signal) {
        let reach = self.warden.reach();
        reach.send(signal, Sender::Process);
        reach.send(Signal::CONT, Sender::Process);
    }

    /// Reaps children: orphans are ours too, and nothing else waits for them.
    pub(super) fn reap(&self) {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            self.warden.note(pid, status);
            if pid == self.first {
                self.status.set(Some(ExitStatus::from_raw(status.as_raw())));
                self.warden.change(|reach| reach.first = None);
            } else if self.warden.reach().spared.contains(&pid) {
                self.warden.change(|reach| reach.spared.retain(|spared| *spared != pid));
            }
        }
    }
}

/// The reason why COMMAND is not started: the service allows no longer lease, or the machine was
/// suspended since the grant.
pub(super) const NO_TIME: &str = "COMMAND is not started: the lease leaves it no time";

/// The exit code of a process, as in shells.
pub(super) fn code(status: ExitStatus) -> u8 {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.or_else(|| status.signal().map(exit::signalled)).unwrap_or(exit::INTERNAL)
}

/// Becomes COMMAND, which dies with its parent: the steps that need the new process. The arguments
/// are the parent, the latest moment to begin, the signals to block, and COMMAND's.
pub(super) fn become_command(mut words: impl Iterator<Item = OsString>) -> u8 {
    let mut number = || words.next()?.to_str()?.parse::<u64>().ok();
    let (Some(parent), Some(latest), Some(blocked)) = (number(), number(), number()) else {
        return exit::INTERNAL;
    };
    let Some(program) = words.next() else { return exit::INTERNAL };
    if let Err(error) = processes::die_with_parent() {
        return cannot(&format_args!("cannot bind COMMAND to its parent: {error}"), exit::INTERNAL);
    }
    let found = getppid().map(Pid::as_raw_pid).and_then(|pid| u64::try_from(pid).ok());
    if found != Some(parent) {
        return exit::INTERNAL; // The parent died before we were bound to it.
    }
    if Moment::from_micros(latest).has_come() {
        // The machine was suspended since the grant.
        let key = std::env::var(outer::KEY).unwrap_or_default();
        return cannot(&format_args!("'{key}': {NO_TIME}"), exit::LOST);
    }
    if let Err(error) = block_only(blocked) {
        return cannot(&format_args!("cannot restore the signals: {error}"), exit::INTERNAL);
    }
    let error = Command::new(&program).args(words).exec();
    let code = match error.kind() {
        io::ErrorKind::NotFound => exit::NOT_FOUND,
        _ => exit::NOT_EXECUTABLE,
    };
    cannot(&format_args!("cannot execute {}: {error}", program.to_string_lossy()), code)
}

fn cannot(sentence: &dyn std::fmt::Display, code: u8) -> u8 {
    last_words(sentence);
    code
}
