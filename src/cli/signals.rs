//! The signals that are sent to us: they end the wait, and are passed on to COMMAND.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use futures_util::FutureExt;
use rustix::process::Signal;
use tokio::signal::unix::SignalKind;
use tokio::signal::unix::signal;

const FORWARDED: [Signal; 6] =
    [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];

/// Those that end the wait.
const ENDING: [Signal; 4] = [Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT];

/// What can be given to `--signal`.
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

/// The signals that come.
#[derive(Debug)]
pub(super) struct Signals(Vec<(Signal, tokio::signal::unix::Signal)>);

impl Signals {
    /// From now on none of those that end a service ends it unheard. HUP and QUIT stay ignored if
    /// they were from the start (`nohup`).
    pub(super) fn catch_ends() -> io::Result<Self> {
        let ignored = ignored();
        let stays = |kind: Signal| ignored >> (kind.as_raw() - 1) & 1 != 0;
        let always = |kind| matches!(kind, Signal::TERM | Signal::INT);
        let caught = ENDING.into_iter().filter(|kind| always(*kind) || !stays(*kind));
        let caught = caught
            .map(|kind| signal(SignalKind::from_raw(kind.as_raw())).map(|coming| (kind, coming)));
        caught.collect::<io::Result<_>>().map(Self)
    }

    /// From now on none of them ends us. One that is ignored (`nohup`, `&`) stays so, here and in
    /// COMMAND.
    pub(super) fn catch() -> io::Result<Self> {
        let ignored = ignored();
        let caught = FORWARDED.iter().filter(|kind| ignored >> (kind.as_raw() - 1) & 1 == 0);
        let caught = caught
            .map(|&kind| signal(SignalKind::from_raw(kind.as_raw())).map(|coming| (kind, coming)));
        caught.collect::<io::Result<_>>().map(Self)
    }

    /// The next one.
    pub(super) async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            for (kind, coming) in &mut self.0 {
                if coming.poll_recv(context).is_ready() {
                    return Poll::Ready(*kind);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// The next one that ends a wait.
    pub(super) async fn ending(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if ENDING.contains(&signal) {
                return signal;
            }
        }
    }

    /// One that ends a wait, if it has come already.
    pub(super) async fn ended(&mut self) -> Option<Signal> {
        // The runtime has to look first.
        tokio::task::yield_now().await;
        self.ending().now_or_never()
    }
}

/// Reads the name or the number of a signal.
pub(super) fn parse_signal(text: &str) -> Result<Signal, String> {
    let name = text.to_uppercase();
    let name = name.strip_prefix("SIG").unwrap_or(&name);
    let number = text.parse().ok().and_then(Signal::from_named_raw);
    let named = NAMED.iter().find(|(known, _)| *known == name).map(|(_, signal)| *signal);
    let known = || NAMED.map(|(name, _)| name).join(", ");
    number.or(named).ok_or_else(|| format!("it is a number or one of {}", known()))
}

/// Which signals this process was started to ignore, a bit for each.
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
