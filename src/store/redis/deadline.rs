//! The time when a script may act.

use std::time::Duration;

use crate::lock::time::wall_clock_micros;
use crate::platform::clock::since_boot;

/// The leap of the wall clock after which what was read from it before is too old.
const LEAP: Duration = Duration::from_secs(1);

/// The time when a script may act.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::store) enum When {
    AnyTime,
    /// Not after this, nor after its caller has given up; the script's first argument tells it in
    /// the store's time.
    Until(Deadline),
}

/// A moment that is fixed before the arguments of a script are made. What they tell of the wall
/// clock is then hardly older than that when the script acts, even if the process was stopped
/// meanwhile.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::store) struct Deadline {
    moment: Duration,
    /// The wall clock's lead over the time since boot, in microseconds, when it was fixed.
    lead: u64,
}

impl Deadline {
    /// The deadline at this moment since boot, for arguments that are made after this.
    pub(in crate::store) fn at(moment: Duration) -> Self {
        Self { moment, lead: lead() }
    }

    pub(in crate::store) fn moment(self) -> Duration {
        self.moment
    }

    /// Returns true if the wall clock has moved on by more than the time since boot: the machine was
    /// stopped with its clocks, or somebody has set it.
    pub(super) fn wall_clock_has_leapt(self) -> bool {
        Duration::from_micros(lead().saturating_sub(self.lead)) > LEAP
    }
}

/// The wall clock's lead over the time since boot, in microseconds.
fn lead() -> u64 {
    let up = u64::try_from(since_boot().as_micros()).unwrap_or(u64::MAX);
    wall_clock_micros().saturating_sub(up)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Deadline, lead};

    #[test]
    fn only_a_leap_of_the_wall_clock_makes_arguments_old() {
        let deadline = Deadline::at(Duration::from_secs(60));
        assert!(!deadline.wall_clock_has_leapt());
        for (seconds, has_leapt) in [(-60, true), (-2, true), (2, false), (60, false)] {
            let lead = lead().saturating_add_signed(seconds * 1_000_000);
            let deadline = Deadline { lead, ..deadline };
            assert_eq!(deadline.wall_clock_has_leapt(), has_leapt, "{seconds} s");
        }
    }
}
