//! Signals by signalfd, which tells a key of the terminal from `kill`.

use std::io;
use std::os::fd::AsFd;

use nix::sys::signal::SigSet;
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::process::Signal;
use tokio::net::unix::pipe::Receiver;

use crate::platform::Sender;

/// The size of a `signalfd_siginfo` and the offsets of its fields: signalfd(2).
const SIGINFO_BYTES: usize = 128;
const SSI_SIGNO: usize = 0;
const SSI_CODE: usize = 8;

/// The code of signals from the kernel, such as those of a terminal's keys.
const SI_KERNEL: i32 = 0x80;

/// The signals that arrive.
#[derive(Debug)]
pub(crate) struct Arrivals(Receiver);

impl Arrivals {
    /// Blocks these signals in this thread, and reads them instead.
    pub(crate) fn of(signals: &[Signal]) -> io::Result<Self> {
        let mut caught = SigSet::empty();
        for signal in signals {
            caught.add(signal.as_raw().try_into()?);
        }
        caught.thread_block()?;
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        let arriving = SignalFd::with_flags(&caught, flags)?.as_fd().try_clone_to_owned()?;
        // The runtime accepts any descriptor as a pipe, and signals are read like one.
        Ok(Self(Receiver::from_owned_fd_unchecked(arriving)?))
    }

    /// The next signal.
    pub(crate) async fn next(&self) -> (Signal, Sender) {
        let mut siginfo = [0; SIGINFO_BYTES];
        loop {
            if self.0.try_read(&mut siginfo).is_ok() {
                if let Some(arrived) = arrived(&siginfo) {
                    return arrived;
                }
            } else if self.0.readable().await.is_err() {
                return std::future::pending().await;
            }
        }
    }

    /// A signal that has already arrived; the runtime may not have seen it yet.
    pub(crate) fn take(&self) -> Option<(Signal, Sender)> {
        let mut siginfo = [0; SIGINFO_BYTES];
        while rustix::io::read(&self.0, &mut siginfo).is_ok() {
            if let Some(arrived) = arrived(&siginfo) {
                return Some(arrived);
            }
        }
        None
    }
}

fn arrived(siginfo: &[u8; SIGINFO_BYTES]) -> Option<(Signal, Sender)> {
    let number = |at: usize| Some(i32::from_ne_bytes(siginfo.get(at..at + 4)?.try_into().ok()?));
    let signal = Signal::from_named_raw(number(SSI_SIGNO)?)?;
    let sender = match number(SSI_CODE)? {
        SI_KERNEL => Sender::Terminal,
        _ => Sender::Process,
    };
    Some((signal, sender))
}
