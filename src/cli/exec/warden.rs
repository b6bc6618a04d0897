//! The warden: a process beside the wrapper that kills COMMAND when the wrapper was killed, which
//! the end of the warden's input shows, or is still stopped at the end of the lease. It gives back
//! the leases of a wrapper that was killed.
//!
//! COMMAND's death signal alone would spare its descendants, and does nothing while the wrapper is
//! only stopped. Each line of the input is an order; the newest counts.

use std::cell::RefCell;
use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::time::Duration;

use rustix::io::{ioctl_fionbio, write};
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, waitpid};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::unix::pipe::Receiver;
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::clock::Moment;
use crate::cli::exec::reach::Reach;
use crate::cli::exec::{change_environment, ourselves};
use crate::cli::{exit, runtime};
use crate::platform::clock::Alarm;

/// The argument of the warden's process.
pub(super) const WARDEN: &str = "exec:warden";

/// The variables with the leases' token, and with a line for each: its fencing token and its key.
pub(super) const TOKEN: &str = "LOCK_TOKEN";
pub(super) const FENCING_TOKENS: &str = "LOCK_FENCING_TOKENS";

/// The order that ends the watch.
const DISMISSED: &str = "-";

/// The most replacements between two orders: a warden that cannot run must not keep us busy.
const REPLACEMENTS: usize = 5;

/// The time limit for the warden to end after its dismissal.
const LAST_WORD: Duration = Duration::from_secs(1);

/// The time limit for killed processes to be gone.
pub(super) const BURIAL: Duration = Duration::from_secs(5);

/// The pause between two rounds of killing.
pub(super) const ROUND: Duration = Duration::from_millis(10);

/// The empty rounds in a row that count as done: a process in the middle of an exec shows no
/// environment.
const EMPTY_ROUNDS: usize = 3;

/// The variables by which the warden gives leases back, to set, or with `None` to remove.
#[derive(Debug, Default)]
pub(super) struct Bequest(pub(super) Vec<(&'static str, Option<OsString>)>);

/// The warden as the wrapper sees it. If it dies it is replaced.
#[derive(Debug)]
pub(super) struct Warden(RefCell<WardenState>);

#[derive(Debug)]
struct WardenState {
    process: Process,
    /// The newest order; `reach` adds the warden to the spared.
    order: WardenOrder,
    bequest: Bequest,
    /// The status of the last process, if no other could be started.
    ended: Option<WaitStatus>,
    dismissed: bool,
    /// The replacements left before the next order.
    replacements: usize,
}

#[derive(Debug)]
struct Process {
    pid: Pid,
    orders: OwnedFd,
}

impl Warden {
    pub(super) fn start(order: WardenOrder, bequest: Bequest) -> io::Result<Self> {
        let state = WardenState {
            process: Process::start(&order, &bequest)?,
            order,
            bequest,
            ended: None,
            dismissed: false,
            replacements: REPLACEMENTS,
        };
        Ok(Self(RefCell::new(state)))
    }

    /// The processes that signals for COMMAND reach.
    pub(super) fn reach(&self) -> Reach {
        let state = self.0.borrow();
        let mut reach = state.order.reach.clone();
        reach.spared.push(state.process.pid);
        reach
    }

    /// Changes the processes that it watches.
    pub(super) fn change(&self, change: impl FnOnce(&mut Reach)) {
        let mut state = self.0.borrow_mut();
        change(&mut state.order.reach);
        state.tell();
    }

    /// Orders COMMAND to be dead by `end`.
    pub(super) fn watch(&self, end: Moment) {
        let mut state = self.0.borrow_mut();
        state.order.end = end;
        state.replacements = REPLACEMENTS;
        state.stand_in();
        state.tell();
    }

    /// Dismisses the warden: COMMAND has ended, and its pid may soon be another process's.
    pub(super) fn dismiss(&self) {
        let mut state = self.0.borrow_mut();
        state.dismissed = true;
        tell(&state.process.orders, DISMISSED);
    }

    /// Notes the status of a child: if it is the warden, a dead one is replaced and a stopped one
    /// continued.
    pub(super) fn note(&self, pid: Pid, status: WaitStatus) {
        let mut state = self.0.borrow_mut();
        if pid != state.process.pid {
            return;
        }
        if status.stopped() {
            let _ = kill_process(pid, Signal::CONT);
            return;
        }
        state.ended = Some(status);
        state.stand_in();
    }

    /// Returns whether the warden killed COMMAND because the wrapper was suspended; call it after
    /// the dismissal.
    pub(super) async fn has_killed(&self) -> bool {
        let end = Moment::now().after(LAST_WORD);
        loop {
            let pid = self.0.borrow().process.pid;
            if let Ok(Some((_, status))) = waitpid(Some(pid), WaitOptions::NOHANG) {
                self.note(pid, status);
            }
            if let Some(ended) = self.0.borrow().ended {
                return ended.exit_status() == Some(i32::from(exit::LOST));
            }
            if end.has_come() {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

impl WardenState {
    /// Starts another process if the last one died before its work was done.
    fn stand_in(&mut self) {
        let died =
            self.ended.is_some_and(|ended| ended.exit_status() != Some(i32::from(exit::LOST)));
        if died && !self.dismissed && self.replacements > 0 {
            self.replacements -= 1;
            // After a failure the next order tries again.
            if let Ok(process) = Process::start(&self.order, &self.bequest) {
                (self.process, self.ended) = (process, None);
            }
        }
    }

    fn tell(&self) {
        tell(&self.process.orders, &self.order.to_string());
    }
}

impl Process {
    /// Starts a process that has its order from the first moment.
    fn start(order: &WardenOrder, bequest: &Bequest) -> io::Result<Self> {
        let (input, orders) = io::pipe()?;
        let orders = OwnedFd::from(orders);
        // Non-blocking: a stopped warden must not block us.
        ioctl_fionbio(&orders, true)?;
        tell(&orders, &order.to_string());
        let mut command = ourselves(WARDEN)?;
        command.stdin(input).stdout(Stdio::null()).stderr(Stdio::null());
        command.env_remove(FENCING_TOKENS); // Those of an outer lease are not ours.
        change_environment(&mut command, &bequest.0);
        // Signals to our group are not for it.
        let child = command.process_group(0).spawn()?;
        Ok(Self { pid: Pid::from_child(&child), orders })
    }
}

fn tell(orders: &OwnedFd, order: &str) {
    // A dead warden is replaced when its death is noticed.
    let _ = write(orders, format!("{order}\n").as_bytes());
}

#[derive(Debug)]
pub(super) struct WardenOrder {
    pub(super) reach: Reach,
    pub(super) end: Moment,
}

impl std::fmt::Display for WardenOrder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.end.as_micros(), self.reach)
    }
}

impl WardenOrder {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let end = Moment::from_micros(words.next()?.parse().ok()?);
        Some(Self { reach: Reach::parse(words)?, end })
    }
}

/// Runs the warden and returns its exit code, which tells whether the lease was over.
pub(super) fn warden() -> u8 {
    runtime::run(watch()).ok().and_then(Result::ok).unwrap_or(exit::INTERNAL)
}

async fn watch() -> io::Result<u8> {
    // A signal to all processes of this name must not end this one first.
    let kinds = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()];
    let _deaf = kinds.map(signal);
    let input = Receiver::from_owned_fd(io::stdin().as_fd().try_clone_to_owned()?)?;
    let mut orders = BufReader::new(input).lines();
    let alarm = Alarm::new()?;
    let mut order: Option<WardenOrder> = None;
    let code = loop {
        let end = order.as_ref().map_or(Moment::NEVER, |order| order.end);
        tokio::select! {
            biased;
            line = orders.next_line() => match line {
                Ok(Some(line)) if line == DISMISSED => return Ok(0),
                Ok(Some(line)) => order = WardenOrder::parse(&line),
                Ok(None) | Err(_) => break 0,
            },
            rung = alarm.at(end.since_boot()) => {
                rung?;
                break exit::LOST;
            }
        }
    };
    if let Some(WardenOrder { reach, .. }) = order
        && kill(&reach).await
        && code == 0
    {
        give_back()?;
    }
    Ok(code)
}

/// Begins to release each lease of a wrapper that was killed, by a process of its own.
fn give_back() -> io::Result<()> {
    let leases = std::env::var(FENCING_TOKENS).unwrap_or_default();
    for (number, key) in leases.lines().filter_map(|line| line.split_once(' ')) {
        let mut release = ourselves("release")?;
        release.args(["--quiet", "--fencing-token", number, "--", key]);
        release.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    }
    Ok(())
}

/// Kills until no process is left, for at most [`BURIAL`]. Returns false if one is left then.
async fn kill(reach: &Reach) -> bool {
    let limit = Moment::now().after(BURIAL);
    let mut empty = 0;
    while empty < EMPTY_ROUNDS && !limit.has_come() {
        empty = if reach.kill().is_empty() { empty + 1 } else { 0 };
        tokio::time::sleep(ROUND).await;
    }
    empty >= EMPTY_ROUNDS
}
