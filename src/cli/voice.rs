//! What a command says on standard error, which may be closed: nothing but errors, unless it is
//! told otherwise.

use std::io::Write;

/// How much is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Voice {
    /// Nothing.
    Quiet,
    /// What went wrong.
    Usual,
    /// All.
    Verbose,
}

impl Voice {
    /// Something went wrong.
    pub(super) fn complain<T: std::fmt::Display>(self, what: impl FnOnce() -> T) {
        if self >= Self::Usual {
            say(&what());
        }
    }

    /// Something happened.
    pub(super) fn tell<T: std::fmt::Display>(self, what: impl FnOnce() -> T) {
        if self >= Self::Verbose {
            say(&what());
        }
    }
}

/// One line, whoever reads it.
pub(super) fn say(what: &dyn std::fmt::Display) {
    let _ = writeln!(std::io::stderr(), "lockkeeper: {what}");
}
