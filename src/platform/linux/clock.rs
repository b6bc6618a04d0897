//! A clock that runs on while the machine is suspended, and an alarm on it.

use std::io;
use std::time::Duration;

use rustix::time::{
    ClockId, Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, clock_gettime,
    timerfd_create, timerfd_settime,
};
use tokio::net::unix::pipe::Receiver;

/// The time since boot, with the time in suspend.
pub(crate) fn since_boot() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default()
}

/// An alarm that rings at once if the machine slept past it, unlike the runtime's timers.
#[derive(Debug)]
pub(crate) struct Alarm(Receiver);

impl Alarm {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Boottime, flags)?;
        // The runtime accepts any descriptor as a pipe, and a timer is read like one.
        Ok(Self(Receiver::from_owned_fd_unchecked(timer)?))
    }

    /// Waits until so long after boot.
    pub(crate) async fn at(&self, moment: Duration) -> io::Result<()> {
        let Ok(it_value) = Timespec::try_from(moment) else {
            return std::future::pending().await; // Beyond the end of the clock.
        };
        let it_interval = Timespec { tv_sec: 0, tv_nsec: 0 };
        let once = Itimerspec { it_interval, it_value };
        timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &once)?;
        while since_boot() < moment {
            self.0.readable().await?;
            // An earlier ring leaves nothing to read; then this waits for the next.
            let _ = self.0.try_read(&mut [0; 8]);
        }
        Ok(())
    }
}
