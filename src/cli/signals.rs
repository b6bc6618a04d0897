//! The signals sent to the command line: they end a wait, and are passed on to COMMAND.
//!
//! They are blocked and read from a signalfd, which tells Ctrl-C from `kill`. SIGCHLD belongs to
//! the runtime; it is unblocked, because a parent may have blocked it.

use std::future::poll_fn;
use std::io;
use std::os::fd::AsFd;
use std::task::Poll;

use nix::sys::signal::SigSet;
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::process::Signal;
use tokio::net::unix::pipe::Receiver;
use tokio::signal::unix;
use tokio::signal::unix::{SignalKind, signal};

/// The size of a `signalfd_siginfo` and the offsets of its fields: signalfd(2).
const SIGINFO_BYTES: usize = 128;
const SSI_SIGNO: usize = 0;
const SSI_CODE: usize = 8;

/// The code of signals from the kernel, such as those of a terminal's keys.
const SI_KERNEL: i32 = 0x80;

const FORWARDED: [Signal; 6] =
    [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];

/// Signals that end the wait.
const ENDING: [Signal; 4] = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT];

/// The signals that `--signal` accepts.
const NAMED: [(&str, Signal); 9] = [
    ("HUP", Signal::HUP),
    ("INT", Signal::INT),
    ("QUIT", Signal::QUIT),
    ("ABRT", Signal::ABORT),
    ("KILL", Signal::KILL),
    ("USR1", Signal::USR1),
    ("USR2", Signal::USR2),
    ("ALRM", Signal::ALARM),
    ("TERM", Signal::TERM),
];

/// The stream of arriving signals.
#[derive(Debug)]
pub(super) struct Signals {
    arriving: Receiver,
    inherited: Inherited,
}

/// The signals that end a service; read by the runtime, because a service has many threads.
#[derive(Debug)]
pub(super) struct Ends(Vec<unix::Signal>);

/// A signal that has arrived.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrived {
    pub(super) signal: Signal,
    pub(super) sender: Sender,
}

/// The sender of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sender {
    /// The terminal, to its whole foreground process group.
    Terminal,
    /// A process, to this process.
    Process,
}

/// The signals that were blocked at our start, of those that we block or unblock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inherited(u64);

impl Signals {
    /// Catches the signals. Ignored ones (`nohup`, `&`) stay ignored, here and in COMMAND.
    pub(super) fn catch() -> io::Result<Self> {
        let inherited = Inherited::now()?;
        let ignored = ignored();
        let caught = FORWARDED.into_iter().filter(|kind| ignored & bit(*kind) == 0);
        let caught = set(caught)?;
        caught.thread_block()?;
        set([Signal::CHILD])?.thread_unblock()?;
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        let arriving = SignalFd::with_flags(&caught, flags)?.as_fd().try_clone_to_owned()?;
        // The runtime accepts any descriptor as a pipe, and signals are read like one.
        let arriving = Receiver::from_owned_fd_unchecked(arriving)?;
        Ok(Self { arriving, inherited })
    }

    /// The signal mask for COMMAND.
    pub(super) fn inherited(&self) -> Inherited {
        self.inherited
    }

    /// The next signal.
    pub(super) async fn next(&self) -> Arrived {
        let mut siginfo = [0; SIGINFO_BYTES];
        loop {
            if self.arriving.try_read(&mut siginfo).is_ok() {
                if let Some(arrived) = Arrived::read(&siginfo) {
                    return arrived;
                }
            } else if self.arriving.readable().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// The next signal that ends a wait.
    pub(super) async fn ending(&self) -> Signal {
        loop {
            let Arrived { signal, .. } = self.next().await;
            if ENDING.contains(&signal) {
                return signal;
            }
        }
    }

    /// A signal that ends a wait and has already arrived; the runtime may not have seen it yet.
    pub(super) fn ended(&self) -> Option<Signal> {
        let mut siginfo = [0; SIGINFO_BYTES];
        while rustix::io::read(&self.arriving, &mut siginfo).is_ok() {
            let signal = Arrived::read(&siginfo).map(|arrived| arrived.signal);
            if let Some(signal) = signal.filter(|signal| ENDING.contains(signal)) {
                return Some(signal);
            }
        }
        None
    }
}

impl Ends {
    /// Catches the signals that end a service. HUP and QUIT stay ignored if they were from the
    /// start (`nohup`).
    pub(super) fn catch() -> io::Result<Self> {
        let ignored = ignored();
        let always = |kind| matches!(kind, Signal::TERM | Signal::INT);
        let caught = ENDING.into_iter().filter(|kind| always(*kind) || ignored & bit(*kind) == 0);
        let caught = caught.map(|kind| signal(SignalKind::from_raw(kind.as_raw())));
        caught.collect::<io::Result<_>>().map(Self)
    }

    /// Waits for the next signal.
    pub(super) async fn next(&mut self) {
        poll_fn(|context| {
            let mut arrived = self.0.iter_mut().map(|arriving| arriving.poll_recv(context));
            if arrived.any(|arrived| arrived.is_ready()) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

impl Arrived {
    fn read(siginfo: &[u8; SIGINFO_BYTES]) -> Option<Self> {
        let number =
            |at: usize| Some(i32::from_ne_bytes(siginfo.get(at..at + 4)?.try_into().ok()?));
        let signal = Signal::from_named_raw(number(SSI_SIGNO)?)?;
        let sender = match number(SSI_CODE)? {
            SI_KERNEL => Sender::Terminal,
            _ => Sender::Process,
        };
        Some(Self { signal, sender })
    }
}

impl Inherited {
    fn now() -> io::Result<Self> {
        let mask = SigSet::thread_get_mask()?;
        let mut blocked = 0;
        for kind in FORWARDED.into_iter().chain([Signal::CHILD]) {
            if mask.contains(kind.as_raw().try_into()?) {
                blocked |= bit(kind);
            }
        }
        Ok(Self(blocked))
    }

    /// Parses the output of `Display`.
    pub(super) fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Restores the signal mask of our start in this thread.
    pub(super) fn restore(self) -> io::Result<()> {
        let ours = || FORWARDED.into_iter().chain([Signal::CHILD]);
        set(ours().filter(|kind| self.0 & bit(*kind) != 0))?.thread_block()?;
        Ok(set(ours().filter(|kind| self.0 & bit(*kind) == 0))?.thread_unblock()?)
    }
}

impl std::fmt::Display for Inherited {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Parses the name or number of a signal.
pub(super) fn parse_signal(text: &str) -> Result<Signal, String> {
    let name = text.to_uppercase();
    let name = name.strip_prefix("SIG").unwrap_or(&name);
    let number = text.parse().ok().and_then(Signal::from_named_raw);
    let named = NAMED.iter().find(|(known, _)| *known == name).map(|(_, signal)| *signal);
    let known = || NAMED.map(|(name, _)| name).join(", ");
    number.or(named).ok_or_else(|| format!("expected a number or one of {}", known()))
}

fn set(kinds: impl IntoIterator<Item = Signal>) -> io::Result<SigSet> {
    let mut set = SigSet::empty();
    for kind in kinds {
        set.add(kind.as_raw().try_into()?);
    }
    Ok(set)
}

fn bit(kind: Signal) -> u64 {
    1 << (kind.as_raw() - 1)
}

/// The signals that this process ignores from its start, one bit each.
fn ignored() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use rustix::process::Signal;

    use super::parse_signal;

    #[test]
    fn a_signal_has_a_name_and_a_number() {
        for text in ["TERM", "SIGTERM", "term", "15"] {
            assert_eq!(parse_signal(text), Ok(Signal::TERM), "{text}");
        }
        for text in ["", "SIG", "0", "-1", "99", "WINCH "] {
            assert!(parse_signal(text).is_err(), "{text}");
        }
    }
}
