//! The clock by which a client judges its lease: like the service's, it runs on while the machine
//! sleeps.

use std::time::Duration;

use crate::platform::clock;

/// A point in time, as the time since boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment(Duration);

impl Moment {
    /// Later than all others.
    pub(super) const NEVER: Self = Self(Duration::MAX);

    pub(super) fn now() -> Self {
        Self(clock::since_boot())
    }

    pub(super) fn from_micros(us: u64) -> Self {
        Self(Duration::from_micros(us))
    }

    pub(super) fn as_micros(self) -> u64 {
        u64::try_from(self.0.as_micros()).unwrap_or(u64::MAX)
    }

    pub(super) fn since_boot(self) -> Duration {
        self.0
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
