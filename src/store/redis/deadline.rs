//! The time when a script may act.

use std::time::{Duration, Instant};

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

impl When {
    /// The deadline, if there is one.
    pub(in crate::store) fn deadline(self) -> Option<Deadline> {
        match self {
            Self::AnyTime => None,
            Self::Until(deadline) => Some(deadline),
        }
    }
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
    /// The deadline so long after this moment since boot, for arguments that are made after this.
    pub(in crate::store) fn after(asked: Duration, span: Duration) -> Self {
        Self { moment: asked + span, lead: lead() }
    }

    /// The deadline, since boot.
    pub(in crate::store) fn moment(self) -> Duration {
        self.moment
    }

    /// The deadline, or `patience` from now if that is earlier; `None` if it is over.
    pub(super) fn ends(self, patience: Duration) -> Option<Instant> {
        // A pause between the two readings only makes it earlier.
        let now = Instant::now();
        let left = self.moment().checked_sub(since_boot())?;
        Some(now + left.min(patience))
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
    use std::time::{Duration, Instant};

    use super::{Deadline, lead};
    use crate::platform::clock::since_boot;

    #[test]
    fn a_deadline_that_is_over_ends_nothing() {
        let asked = since_boot();
        for (span, patience, most) in [(60, 600, 60), (600, 5, 5)] {
            let deadline = Deadline::after(asked, Duration::from_secs(span));
            let before = Instant::now();
            let ends = deadline.ends(Duration::from_secs(patience)).expect("it is to come");
            let most = Duration::from_secs(most);
            assert!((before..=Instant::now() + most).contains(&ends));
            assert_eq!(deadline.moment(), asked + Duration::from_secs(span));
        }
        let over = Deadline::after(Duration::ZERO, asked);
        assert_eq!(over.ends(Duration::from_secs(5)), None);
    }

    #[test]
    fn only_a_leap_of_the_wall_clock_makes_arguments_old() {
        let deadline = Deadline::after(Duration::ZERO, Duration::from_secs(60));
        assert!(!deadline.wall_clock_has_leapt());
        for (seconds, has_leapt) in [(-60, true), (-2, true), (2, false), (60, false)] {
            let lead = lead().saturating_add_signed(seconds * 1_000_000);
            let deadline = Deadline { lead, ..deadline };
            assert_eq!(deadline.wall_clock_has_leapt(), has_leapt, "{seconds} s");
        }
    }
}
