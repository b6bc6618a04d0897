//! The limit of log lines that requests cause: a few a second, so that a fault is seen and does not
//! fill the disk.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Enough to identify the callers; a few megabytes a day at most.
const LINES_A_SECOND: u32 = 10;

const SECOND: Duration = Duration::from_secs(1);

/// The lines of one kind.
#[derive(Debug)]
pub(super) struct Lines(Mutex<SecondOfLines>);

/// The lines of the current second.
#[derive(Debug)]
struct SecondOfLines {
    began: Option<Instant>,
    written: u32,
    left_out: u64,
}

/// A line that may be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Admitted {
    /// The number of lines left out before it, if there are any.
    pub(super) left_out: Option<u64>,
}

impl Lines {
    pub(super) const fn new() -> Self {
        Self(Mutex::new(SecondOfLines { began: None, written: 0, left_out: 0 }))
    }

    /// Admits a line, or counts it as left out.
    pub(super) fn admit(&self, now: Instant) -> Option<Admitted> {
        let mut second = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if second.began.is_none_or(|began| now.duration_since(began) >= SECOND) {
            (second.began, second.written) = (Some(now), 0);
        }
        if second.written >= LINES_A_SECOND {
            second.left_out += 1;
            return None;
        }
        second.written += 1;
        let left_out = std::mem::take(&mut second.left_out);
        Some(Admitted { left_out: (left_out > 0).then_some(left_out) })
    }
}

impl Default for Lines {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::{Admitted, Lines};

    #[test]
    fn ten_lines_a_second_are_written_and_the_next_one_has_the_number_of_the_others() {
        let (lines, now) = (Lines::new(), Instant::now());
        let none = Some(Admitted { left_out: None });
        assert!((0..10).all(|_| lines.admit(now) == none));
        assert!((0..7).all(|_| lines.admit(now).is_none()));
        let later = now + Duration::from_secs(1);
        assert_eq!(lines.admit(later), Some(Admitted { left_out: Some(7) }));
        assert_eq!(lines.admit(later), none);
    }
}
