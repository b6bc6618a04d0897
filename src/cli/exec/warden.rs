//! The warden: a process beside us that kills COMMAND when we cannot: when we were killed, which
//! the end of its input tells, or when we stand still past the end of the lease.
//!
//! COMMAND's death signal alone would spare what COMMAND has started, and does nothing while we
//! are only stopped. Each line of its input is the newest order.

use std::io;
use std::os::fd::AsFd;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Child;
use std::process::Stdio;
use std::time::Duration;

use rustix::io::ioctl_fionbio;
use rustix::io::write;
use rustix::process::Pid;
use rustix::process::Signal;
use tokio::net::unix::pipe::Receiver;
use tokio::signal::unix::SignalKind;
use tokio::signal::unix::signal;

use crate::cli::clock::Alarm;
use crate::cli::clock::Moment;
use crate::cli::exec::command::Reach;
use crate::cli::exec::command::ourselves;
use crate::cli::exit;

/// The word of the process.
pub(super) const WARDEN: &str = "exec:warden";

/// Nothing to watch any more.
const DISMISSED: &str = "-";

/// How long it may take to end.
const LAST_WORD: Duration = Duration::from_secs(1);

/// The process, as we see it.
#[derive(Debug)]
pub(super) struct Warden {
    orders: OwnedFd,
    process: Child,
}

impl Warden {
    /// Starts it; it has nothing to watch yet.
    pub(super) fn start() -> io::Result<Self> {
        let mut command = ourselves(WARDEN);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        // What is sent to our group is not for it.
        let mut child = command.process_group(0).spawn()?;
        let input = child.stdin.take().ok_or(io::ErrorKind::BrokenPipe)?;
        let orders = OwnedFd::from(input);
        // One that stands still and reads nothing must not make us wait.
        ioctl_fionbio(&orders, true)?;
        Ok(Self { orders, process: child })
    }

    /// Its number.
    pub(super) fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    /// Watches COMMAND, which has to be dead by `end`, if there is one.
    pub(super) fn watch(&self, reach: Reach, end: Option<Moment>) {
        self.order(&Order { reach, end }.to_string());
    }

    /// COMMAND has ended: its number may soon be another's.
    pub(super) fn dismiss(&self) {
        self.order(DISMISSED);
    }

    /// Whether it was the warden that killed COMMAND, for we stood still; after its dismissal.
    pub(super) async fn has_killed(&mut self) -> bool {
        let end = Moment::now().after(LAST_WORD);
        while !end.has_come() {
            if let Ok(Some(status)) = self.process.try_wait() {
                return status.code() == Some(i32::from(exit::LOST));
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        false
    }

    fn order(&self, order: &str) {
        // One that is gone watches nothing: COMMAND is still bound to us, and we to the lease.
        let _ = write(&self.orders, format!("{order}\n").as_bytes());
    }
}

/// What it is told; the newest counts.
#[derive(Clone, Copy, Debug)]
struct Order {
    reach: Reach,
    end: Option<Moment>,
}

impl std::fmt::Display for Order {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let end = self.end.map_or(0, Moment::as_micros);
        match self.reach {
            Reach::Group(pid) => write!(f, "{end} {}", pid.as_raw_pid()),
            Reach::Tree { us, warden } => {
                write!(f, "{end} {} {}", us.as_raw_pid(), warden.as_raw_pid())
            }
        }
    }
}

impl Order {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split(' ');
        let end = words.next()?.parse().ok()?;
        let mut pids = words.map_while(|pid| Pid::from_raw(pid.parse().ok()?));
        let reach = match (pids.next()?, pids.next()) {
            (pid, None) => Reach::Group(pid),
            (us, Some(warden)) => Reach::Tree { us, warden },
        };
        Some(Self { reach, end: (end > 0).then(|| Moment::from_micros(end)) })
    }
}

/// What the process does, and its exit code: whether the lease was over.
pub(super) async fn watch() -> io::Result<u8> {
    // Whatever ends every process of this name must not end this one before the others.
    let kinds = [SignalKind::terminate(), SignalKind::interrupt(), SignalKind::hangup()];
    let _deaf = kinds.map(signal);
    let input = Receiver::from_owned_fd(io::stdin().as_fd().try_clone_to_owned()?)?;
    let alarm = Alarm::new()?;
    let mut order = None;
    let mut unread = Vec::new();
    let code = loop {
        let mut buffer = [0; 4096];
        match input.try_read(&mut buffer) {
            Ok(0) => break 0,
            Ok(read) => {
                unread.extend_from_slice(&buffer[..read]);
                while let Some(end) = unread.iter().position(|byte| *byte == b'\n') {
                    let line: Vec<u8> = unread.drain(..=end).collect();
                    let line = String::from_utf8_lossy(&line);
                    if line.trim_end() == DISMISSED {
                        return Ok(0);
                    }
                    order = Order::parse(line.trim_end());
                }
                continue;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => (),
            Err(_) => break 0,
        }
        let end = order.and_then(|order| order.end);
        if end.is_some_and(Moment::has_come) {
            break exit::LOST;
        }
        tokio::select! {
            readable = input.readable() => readable?,
            rung = alarm.at(end) => rung?,
        }
    };
    if let Some(Order { reach, .. }) = order {
        reach.send(Signal::KILL);
    }
    Ok(code)
}

#[cfg(test)]
mod tests {
    use rustix::process::Pid;

    use super::DISMISSED;
    use super::Order;
    use crate::cli::clock::Moment;
    use crate::cli::exec::command::Reach;

    #[test]
    fn an_order_is_read_as_it_was_given() {
        let pid = Pid::from_raw(42).unwrap();
        for (reach, end) in [
            (Reach::Group(pid), Some(Moment::from_micros(7))),
            (Reach::Group(pid), None),
            (Reach::Tree { us: pid, warden: pid }, Some(Moment::now())),
        ] {
            let text = Order { reach, end }.to_string();
            assert_eq!(Order::parse(&text).unwrap().to_string(), text);
        }
        assert!(Order::parse(DISMISSED).is_none());
    }
}
