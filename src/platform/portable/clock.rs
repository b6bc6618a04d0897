//! A clock and an alarm on it. On macOS this clock runs on while the machine is suspended.

use std::io;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::time::sleep;

/// The longest sleep of an alarm: the runtime's timers stand still while the machine is suspended.
const LOOK: Duration = Duration::from_millis(200);

/// The time since boot.
pub(crate) fn since_boot() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default()
}

/// An alarm. It rings up to 200 ms after a machine that slept past it has woken.
#[derive(Debug)]
pub(crate) struct Alarm(());

impl Alarm {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self(()))
    }

    /// Waits until so long after boot.
    pub(crate) async fn at(&self, moment: Duration) -> io::Result<()> {
        loop {
            let left = moment.saturating_sub(since_boot());
            if left.is_zero() {
                return Ok(());
            }
            sleep(left.min(LOOK)).await;
        }
    }
}
