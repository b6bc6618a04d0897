//! The warden: a process beside the wrapper that kills COMMAND when the wrapper was killed, which
//! the end of the warden's input shows, or is still stopped at the end of the lease. It gives back
//! the leases of a wrapper that was killed.
//!
//! COMMAND's death signal alone would spare its descendants, and does nothing while the wrapper is
//! only stopped. Each line of the input is an order; the newest counts.

use std::cell::{Cell, RefCell};
use std::ffi::OsString;
use std::fmt::Display;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Stdio;
use std::time::Duration;

use rustix::io::{ioctl_fionbio, write};
use rustix::process::{Pid, WaitOptions, WaitStatus, waitpid};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::unix::pipe::Receiver;
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::clock::Moment;
use crate::cli::exec::reach::Reach;
use crate::cli::exec::{WARDEN, change_environment, ourselves};
use crate::cli::outer::FENCING_TOKENS;
use crate::cli::{exit, release, runtime};
use crate::platform::clock::Alarm;

/// The order that ends the watch.
const DISMISSED: &str = "-";

/// The time limit for the warden to end after its dismissal.
const LAST_WORD: Duration = Duration::from_secs(1);

/// The time limit for killed processes to be gone.
pub(super) const BURIAL: Duration = Duration::from_secs(5);

/// The pause between two rounds of killing.
pub(super) const ROUND: Duration = Duration::from_millis(10);

/// The empty rounds in a row that count as done: a process in the middle of an exec shows no
/// environment.
const EMPTY_ROUNDS: usize = 3;

/// The warden as the wrapper sees it.
#[derive(Debug)]
pub(super) struct Warden {
    pid: Pid,
    orders: OwnedFd,
    /// The newest order; `reach` adds the warden to the spared.
    order: RefCell<WardenOrder>,
    ended: Cell<Option<WaitStatus>>,
}

impl Warden {
    /// Starts the warden, which has its order from the first moment, and these variables to give
    /// leases back with.
    pub(super) fn start(
        order: WardenOrder,
        variables: &[(&'static str, Option<OsString>)],
    ) -> io::Result<Self> {
        let (input, orders) = io::pipe()?;
        let orders = OwnedFd::from(orders);
        // Non-blocking: a stopped warden must not block us.
        ioctl_fionbio(&orders, true)?;
        let mut command = ourselves(WARDEN)?;
        command.stdin(input).stdout(Stdio::null()).stderr(Stdio::null());
        command.env_remove(FENCING_TOKENS); // Those of an outer lease are not ours.
        change_environment(&mut command, variables);
        // Signals to our group are not for it.
        let pid = Pid::from_child(&command.process_group(0).spawn()?);
        let warden = Self { pid, orders, order: RefCell::new(order), ended: Cell::default() };
        warden.change(|_| ());
        Ok(warden)
    }

    /// The processes that signals for COMMAND reach.
    pub(super) fn reach(&self) -> Reach {
        let mut reach = self.order.borrow().reach.clone();
        reach.spared.push(self.pid);
        reach
    }

    /// Changes the processes that it watches.
    pub(super) fn change(&self, change: impl FnOnce(&mut Reach)) {
        change(&mut self.order.borrow_mut().reach);
        self.tell(&self.order.borrow());
    }

    /// Orders COMMAND to be dead by `end`.
    pub(super) fn watch(&self, end: Moment) {
        self.order.borrow_mut().end = end;
        self.tell(&self.order.borrow());
    }

    /// Dismisses the warden: COMMAND has ended, and its pid may soon be another process's.
    pub(super) fn dismiss(&self) {
        self.tell(&DISMISSED);
    }

    fn tell(&self, order: &dyn Display) {
        let _ = write(&self.orders, format!("{order}\n").as_bytes()); // It may be dead.
    }

    /// Notes the end of a child, which may be the warden.
    pub(super) fn note(&self, pid: Pid, status: WaitStatus) {
        if pid == self.pid {
            self.ended.set(Some(status));
        }
    }

    /// Returns whether the warden killed COMMAND because the wrapper was suspended; call it after
    /// the dismissal.
    pub(super) async fn has_killed(&self) -> bool {
        let end = Moment::now().after(LAST_WORD);
        loop {
            if let Ok(Some((pid, status))) = waitpid(Some(self.pid), WaitOptions::NOHANG) {
                self.note(pid, status);
            }
            if let Some(ended) = self.ended.get() {
                return ended.exit_status() == Some(i32::from(exit::LOST));
            }
            if end.has_come() {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

#[derive(Debug)]
pub(super) struct WardenOrder {
    pub(super) reach: Reach,
    pub(super) end: Moment,
}

impl Display for WardenOrder {
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
    match runtime::run(watch()) {
        Ok(Ok(WardenEnd::Dismissed)) => 0,
        Ok(Ok(WardenEnd::Late)) => exit::LOST,
        Ok(Ok(WardenEnd::Alone)) => {
            give_back();
            0
        }
        Ok(Err(_)) | Err(_) => exit::INTERNAL,
    }
}

/// The end of a watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WardenEnd {
    Dismissed,
    /// The lease was over.
    Late,
    /// The wrapper is dead, and so is COMMAND.
    Alone,
}

async fn watch() -> io::Result<WardenEnd> {
    // A signal to all processes of this name must not end this one first.
    let kinds = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()];
    let _deaf = kinds.map(signal);
    let input = Receiver::from_owned_fd(io::stdin().as_fd().try_clone_to_owned()?)?;
    let mut orders = BufReader::new(input).lines();
    let alarm = Alarm::new()?;
    let mut order: Option<WardenOrder> = None;
    let end = loop {
        let end = order.as_ref().map_or(Moment::NEVER, |order| order.end);
        tokio::select! {
            biased;
            line = orders.next_line() => match line {
                Ok(Some(line)) if line == DISMISSED => return Ok(WardenEnd::Dismissed),
                Ok(Some(line)) => order = WardenOrder::parse(&line),
                Ok(None) | Err(_) => break WardenEnd::Alone,
            },
            rung = alarm.at(end.since_boot()) => {
                rung?;
                break WardenEnd::Late;
            }
        }
    };
    let is_dead = match order {
        Some(WardenOrder { reach, .. }) => kill(&reach).await,
        None => false,
    };
    Ok(if end == WardenEnd::Alone && !is_dead { WardenEnd::Dismissed } else { end })
}

/// Releases each lease of a wrapper that was killed. This process does it itself: an outer `exec` that
/// kills its COMMAND spares the wardens in it, and nothing else.
fn give_back() {
    let leases = std::env::var(FENCING_TOKENS).unwrap_or_default();
    for (number, key) in leases.lines().filter_map(|line| line.split_once(' ')) {
        release(number, key); // One that is not released expires.
    }
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
