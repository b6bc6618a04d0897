//! The signals sent to the command line: they end a wait, and are passed on to COMMAND.
//!
//! SIGCHLD belongs to the runtime; it is unblocked, because a parent may have blocked it.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use nix::sys::signal::{SigSet, Signal as NamedSignal};
use rustix::process::Signal;
use tokio::signal::unix;
use tokio::signal::unix::{SignalKind, signal};

use crate::platform::Sender;
use crate::platform::processes::{has_terminal, ignored_signals};
use crate::platform::signals::Arrivals;

const FORWARDED: [Signal; 6] =
    [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];

/// Signals that end the wait.
const ENDING: [Signal; 4] = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT];

/// The stream of arriving signals.
#[derive(Debug)]
pub(super) struct Signals {
    arriving: Arrivals,
    inherited: Inherited,
}

/// The signals to a service; read by the runtime, because a service has many threads.
#[derive(Debug)]
pub(super) struct Orders {
    arriving: Vec<(Signal, unix::Signal)>,
    on_terminal: bool,
}

/// The signals that were blocked at our start, of those that we block or unblock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Inherited(u64);

impl Signals {
    /// Catches the signals. Ignored ones (`nohup`, `&`) stay ignored, here and in COMMAND.
    pub(super) fn catch() -> io::Result<Self> {
        let inherited = Inherited::now()?;
        let ignored = ignored_signals();
        let caught = FORWARDED.into_iter().filter(|kind| ignored & bit(*kind) == 0);
        let arriving = Arrivals::of(&caught.collect::<Vec<_>>())?;
        set([Signal::CHILD])?.thread_unblock()?;
        Ok(Self { arriving, inherited })
    }

    /// The signal mask for COMMAND.
    pub(super) fn inherited(&self) -> Inherited {
        self.inherited
    }

    pub(super) async fn next(&self) -> (Signal, Sender) {
        self.arriving.next().await
    }

    /// The next signal that ends a wait.
    pub(super) async fn ending(&self) -> Signal {
        loop {
            let (signal, _) = self.next().await;
            if ENDING.contains(&signal) {
                return signal;
            }
        }
    }

    /// A signal that ends a wait and has already arrived; the runtime may not have seen it yet.
    pub(super) fn ended(&self) -> Option<Signal> {
        let arrived = std::iter::from_fn(|| self.arriving.take());
        arrived.map(|(signal, _)| signal).find(|signal| ENDING.contains(signal))
    }
}

impl Orders {
    /// Catches the signals. HUP and QUIT stay ignored if they were from the start (`nohup`).
    pub(super) fn catch() -> io::Result<Self> {
        let ignored = ignored_signals();
        let always = |kind| matches!(kind, Signal::TERM | Signal::INT);
        let caught = ENDING.into_iter().filter(|kind| always(*kind) || ignored & bit(*kind) == 0);
        let caught = caught.map(|kind| Ok((kind, signal(SignalKind::from_raw(kind.as_raw()))?)));
        let arriving = caught.collect::<io::Result<_>>()?;
        Ok(Self { arriving, on_terminal: has_terminal() })
    }

    /// Waits for a signal that ends the service, and returns its name. Calls `reload` for each HUP;
    /// the HUP of a terminal that was closed ends the service.
    pub(super) async fn end(&mut self, reload: impl Fn()) -> String {
        loop {
            let next = poll_fn(|context| {
                for (kind, arriving) in &mut self.arriving {
                    if arriving.poll_recv(context).is_ready() {
                        return Poll::Ready(*kind);
                    }
                }
                Poll::Pending
            });
            match next.await {
                Signal::HUP if !self.on_terminal || has_terminal() => reload(),
                kind => return name(kind),
            }
        }
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

pub(super) fn parse_signal(text: &str) -> Result<Signal, String> {
    let name = text.to_uppercase();
    let named = format!("SIG{}", name.strip_prefix("SIG").unwrap_or(&name)).parse();
    let number = named.map_or_else(|_| text.parse().ok(), |named: NamedSignal| Some(named as i32));
    let signal = number.and_then(Signal::from_named_raw);
    signal.ok_or_else(|| "expected the name or number of a signal, as in TERM or 15".to_owned())
}

/// The name of a signal, or its number.
pub(super) fn name(signal: Signal) -> String {
    let named = NamedSignal::try_from(signal.as_raw());
    named.map_or_else(|_| signal.as_raw().to_string(), |named| named.as_str()[3..].to_owned())
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
