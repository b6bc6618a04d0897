//! The clock by which a client judges its lease: like the service's, it runs on while the machine
//! sleeps, and so do the alarms.

use std::io;
use std::time::Duration;

use crate::platform::clock;

/// A point in time, as the time since boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment(Duration);

impl Moment {
    pub(super) fn now() -> Self {
        Self(clock::since_boot())
    }

    pub(super) fn from_micros(us: u64) -> Self {
        Self(Duration::from_micros(us))
    }

    pub(super) fn as_micros(self) -> u64 {
        u64::try_from(self.0.as_micros()).unwrap_or(u64::MAX)
    }

    pub(super) fn after(self, time: Duration) -> Self {
        Self(self.0.saturating_add(time))
    }

    pub(super) fn before(self, time: Duration) -> Self {
        Self(self.0.saturating_sub(time))
    }

    /// The time left until this moment; zero once it has come.
    pub(super) fn left(self) -> Duration {
        self.0.saturating_sub(Self::now().0)
    }

    /// The time since this moment; zero before it.
    pub(super) fn elapsed(self) -> Duration {
        Self::now().0.saturating_sub(self.0)
    }

    pub(super) fn has_come(self) -> bool {
        self.left().is_zero()
    }
}

/// An alarm that rings at once if the machine slept past it, unlike the runtime's timers.
#[derive(Debug)]
pub(super) struct Alarm(clock::Alarm);

impl Alarm {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self(clock::Alarm::new()?))
    }

    /// Waits until `moment`; forever without one.
    pub(super) async fn at(&self, moment: Option<Moment>) -> io::Result<()> {
        match moment {
            Some(Moment(since_boot)) => self.0.at(since_boot).await,
            None => std::future::pending().await,
        }
    }
}
