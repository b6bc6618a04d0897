//! The clock by which a client judges its lease: like the service's, it runs on while the machine
//! sleeps, and so do the alarms.

use std::io;
use std::time::Duration;

use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};
use tokio::net::unix::pipe::Receiver;

/// A point in time, as the time since boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Moment(Duration);

impl Moment {
    pub(super) fn now() -> Self {
        Self(Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default())
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

    pub(super) fn has_come(self) -> bool {
        self.left().is_zero()
    }
}

/// An alarm that rings at once if the machine slept past it, unlike the runtime's timers.
#[derive(Debug)]
pub(super) struct Alarm(Receiver);

impl Alarm {
    pub(super) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Boottime, flags)?;
        // The runtime accepts any descriptor as a pipe, and a timer is read like one.
        Ok(Self(Receiver::from_owned_fd_unchecked(timer)?))
    }

    /// Waits until `moment`; forever without one.
    pub(super) async fn at(&self, moment: Option<Moment>) -> io::Result<()> {
        let Some(moment) = moment else { return std::future::pending().await };
        let Ok(it_value) = Timespec::try_from(moment.0) else {
            return std::future::pending().await; // Beyond the end of the clock.
        };
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        let once = Itimerspec { it_interval, it_value };
        timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &once)?;
        while !moment.has_come() {
            self.0.readable().await?;
            // An earlier ring leaves nothing to read; then this waits for the next.
            let _ = self.0.try_read(&mut [0; 8]);
        }
        Ok(())
    }
}
