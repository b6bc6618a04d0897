//! Lines of a command on standard error: only errors, unless it is verbose. On a terminal one more
//! line may be redrawn in place below them, unless it is quiet.

use std::fs::{File, Metadata};
use std::io;
use std::io::{IsTerminal, Read, Write, stdout};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::cli::stderr;
use crate::cli::stderr::write;
use crate::cli::terminal::{columns, fitting, plain};

/// Returns to the beginning of the line and erases it.
const ERASE: &str = "\r\x1b[K";

/// Whether the last line of the terminal is a redrawn one.
static DRAWN: AtomicBool = AtomicBool::new(false);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Voice {
    /// Nothing.
    Quiet,
    /// Errors.
    Usual,
    /// Errors and events.
    Verbose,
}

impl Voice {
    /// Reports an error.
    pub(super) fn complain<T: std::fmt::Display>(self, what: impl FnOnce() -> T) {
        if self >= Self::Usual {
            say(&what());
        }
    }

    /// Reports an event.
    pub(super) fn tell<T: std::fmt::Display>(self, what: impl FnOnce() -> T) {
        if self >= Self::Verbose {
            say(&what());
        }
    }

    /// Returns whether events are reported.
    pub(super) fn tells(self) -> bool {
        self >= Self::Verbose
    }

    /// Returns whether [`Voice::draw`] has a terminal to draw on.
    pub(super) fn draws(self) -> bool {
        self >= Self::Usual && io::stderr().is_terminal()
    }

    /// Redraws the last line of the terminal, as it is for so many columns; an empty one is erased.
    /// Other lines go above it.
    pub(super) fn draw(self, what: impl FnOnce(usize) -> String) {
        if !self.draws() {
            return;
        }
        let columns = columns(io::stderr());
        let text = plain(&what(columns));
        let text = fitting(&text, columns);
        write(format!("{}{text}", erased()).into());
        DRAWN.store(!text.is_empty(), Ordering::Relaxed);
    }

    /// Returns whether nothing is reported.
    pub(super) fn is_quiet(self) -> bool {
        self == Self::Quiet
    }
}

/// Writes to standard output, whose reader may be gone.
pub(super) fn print(text: &str) -> Result<(), String> {
    written(text).map_err(|error| format!("cannot write to standard output: {error}"))
}

/// The same, for a caller to which a reader that is gone is no fault.
pub(super) fn written(text: &str) -> io::Result<()> {
    let mut out = stdout();
    out.write_all(text.as_bytes()).and_then(|()| out.flush())
}

/// Returns whether standard output was closed at the start. The runtime has put the null device in
/// its place then, for reading and writing; `> /dev/null` opens it for writing only.
pub(super) fn is_closed() -> bool {
    let Ok(out) = stdout().as_fd().try_clone_to_owned().map(File::from) else { return true };
    let device = |found: io::Result<Metadata>| found.map(|found| found.rdev()).ok();
    device(out.metadata()) == device(std::fs::metadata("/dev/null"))
        && (&out).read(&mut [0]).is_ok()
}

/// Writes why the process ends, without waiting long for a stuck standard error.
pub(super) fn last_words(what: &dyn std::fmt::Display) {
    say(what);
    flush();
}

/// Waits briefly for unwritten lines, before the process ends.
pub(super) fn flush() {
    let erased = erased();
    if !erased.is_empty() {
        write(erased.into());
    }
    stderr::flush();
}

/// Writes one line.
fn say(what: &dyn std::fmt::Display) {
    write(format!("{}{}\n", erased(), line(what)).into());
}

/// Erases a redrawn line: the next text takes its place.
fn erased() -> &'static str {
    if DRAWN.swap(false, Ordering::Relaxed) { ERASE } else { "" }
}

fn line(what: &dyn std::fmt::Display) -> String {
    format!("lockkeeper: {}", plain(&what.to_string()))
}
