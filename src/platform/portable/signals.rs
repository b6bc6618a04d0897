//! Signals by the runtime. Their sender is not told: on a terminal, INT and QUIT are taken for its
//! keys, so that COMMAND does not get Ctrl-C twice.

use std::cell::RefCell;
use std::future::poll_fn;
use std::io;
use std::task::{Context, Poll, Waker};

use rustix::process::Signal;
use tokio::signal::unix;
use tokio::signal::unix::{SignalKind, signal};

use crate::platform::Sender;
use crate::platform::portable::processes::has_terminal;

/// The signals that arrive.
#[derive(Debug)]
pub(crate) struct Arrivals(RefCell<Vec<(Signal, unix::Signal)>>);

impl Arrivals {
    /// Catches these signals.
    pub(crate) fn of(signals: &[Signal]) -> io::Result<Self> {
        let caught = |kind: &Signal| Ok((*kind, signal(SignalKind::from_raw(kind.as_raw()))?));
        let caught = signals.iter().map(caught).collect::<io::Result<_>>()?;
        Ok(Self(RefCell::new(caught)))
    }

    /// The next signal.
    pub(crate) async fn next(&self) -> (Signal, Sender) {
        poll_fn(|context| self.poll(context)).await
    }

    /// A signal that has already arrived, if the runtime has seen it.
    pub(crate) fn take(&self) -> Option<(Signal, Sender)> {
        match self.poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(arrived) => Some(arrived),
            Poll::Pending => None,
        }
    }

    fn poll(&self, context: &mut Context<'_>) -> Poll<(Signal, Sender)> {
        for (kind, arriving) in self.0.borrow_mut().iter_mut() {
            if arriving.poll_recv(context).is_ready() {
                let from_key = matches!(*kind, Signal::INT | Signal::QUIT) && has_terminal();
                let sender = if from_key { Sender::Terminal } else { Sender::Process };
                return Poll::Ready((*kind, sender));
            }
        }
        Poll::Pending
    }
}
