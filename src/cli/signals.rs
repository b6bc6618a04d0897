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
    /// The signals that were blocked at our start, one bit each.
    pub(super) blocked: u64,
}

/// The signals to a service; read by the runtime, because a service has many threads.
#[derive(Debug)]
pub(super) struct Orders {
    arriving: Vec<(Signal, unix::Signal)>,
    on_terminal: bool,
}

impl Signals {
    /// Catches the signals. Ignored ones (`nohup`, `&`) stay ignored, here and in COMMAND.
    pub(super) fn catch() -> io::Result<Self> {
        let mask = SigSet::thread_get_mask()?;
        let blocked = mask.iter().map(|kind| bit(kind as i32)).sum();
        let ignored = ignored_signals();
        let caught = FORWARDED.into_iter().filter(|kind| ignored & bit(kind.as_raw()) == 0);
        let arriving = Arrivals::of(&caught.collect::<Vec<_>>())?;
        SigSet::from(NamedSignal::SIGCHLD).thread_unblock()?;
        Ok(Self { arriving, blocked })
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
        let caught = ENDING.into_iter();
        let caught = caught.filter(|kind| always(*kind) || ignored & bit(kind.as_raw()) == 0);
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

/// Blocks these signals in this thread, and no others.
pub(super) fn block_only(blocked: u64) -> io::Result<()> {
    // Signals without a name stay as they were inherited.
    let mut mask = SigSet::thread_get_mask()?;
    for kind in NamedSignal::iterator() {
        match blocked & bit(kind as i32) {
            0 => mask.remove(kind),
            _ => mask.add(kind),
        }
    }
    Ok(mask.thread_set_mask()?)
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

fn bit(number: i32) -> u64 {
    1 << (number - 1)
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
