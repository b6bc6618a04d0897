//! An absence of the service while a claim is made: for how long it is waited out.

use std::time::Duration;

use crate::cli::clock::Moment;

/// The longest absence that a claim outlasts whose wait is over, or that does not wait: a restart
/// takes less.
const WITHOUT_WAIT: Duration = Duration::from_secs(5);

/// The longest absence that a claim outlasts before it stood in line: that of a machine that starts,
/// whose network is not up and whose names do not resolve yet.
const BEFORE_LINE: Duration = Duration::from_secs(60);

/// A service answers at once unless it has put a claim in line, or is stuck.
const ANSWERS: Duration = Duration::from_secs(1);

/// The absence of the service, as a claim sees it.
#[derive(Debug, Default)]
pub(in crate::cli) struct Absence {
    since: Option<Moment>,
    /// The claim has stood in line, and waits out any absence for as long as its wait lasts.
    stood: bool,
}

/// A request without an answer.
#[derive(Clone, Copy, Debug)]
pub(in crate::cli) struct Unanswered {
    pub(in crate::cli) at: Moment,
    /// The connection was made.
    pub(in crate::cli) sent: bool,
    /// It ended before its wait was over.
    pub(in crate::cli) was_cut: bool,
}

impl Absence {
    /// The service has answered a claim that it put in line.
    pub(in crate::cli) fn ends(&mut self) {
        (self.since, self.stood) = (None, true);
    }

    /// The service has not answered.
    pub(in crate::cli) fn notes(&mut self, request: Unanswered) {
        let Unanswered { at, sent, was_cut } = request;
        self.stood |= sent && was_cut && at.after(ANSWERS).has_come();
        // Until it was cut, the service was there.
        self.since.get_or_insert_with(|| if was_cut { Moment::now() } else { at });
    }

    /// Returns whether the claim is given up; `is_over` says that its wait is.
    pub(in crate::cli) fn is_too_long(&self, is_over: bool) -> bool {
        let most = match (is_over, self.stood) {
            (true, _) => WITHOUT_WAIT,
            (false, true) => return false,
            (false, false) => BEFORE_LINE,
        };
        self.since.is_some_and(|since| since.after(most).has_come())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Absence, Unanswered};
    use crate::cli::clock::Moment;

    #[test]
    fn a_claim_that_stood_in_line_outlasts_any_absence_until_its_wait_is_over() {
        let ago = |seconds| Some(Moment::now().before(Duration::from_secs(seconds)));
        for (stood, is_over, seconds, is_too_long) in [
            (false, false, 59, false),
            (false, false, 60, true),
            (true, false, 1_000_000, false),
            (true, true, 4, false),
            (true, true, 5, true),
            (false, true, 5, true),
        ] {
            let absence = Absence { since: ago(seconds), stood };
            assert_eq!(absence.is_too_long(is_over), is_too_long, "{absence:?} {is_over}");
        }
    }

    #[test]
    fn a_request_that_was_cut_after_a_second_stood_in_line() {
        let at = |ms| Moment::now().before(Duration::from_millis(ms));
        for (ms, sent, was_cut, stood) in [
            (1_000, true, true, true),
            (900, true, true, false),
            (3_000, false, true, false),
            (30_000, true, false, false),
        ] {
            let mut absence = Absence::default();
            absence.notes(Unanswered { at: at(ms), sent, was_cut });
            assert_eq!(absence.stood, stood, "{ms} {sent} {was_cut}");
            absence.ends();
            assert!(absence.stood && absence.since.is_none());
        }
    }
}
