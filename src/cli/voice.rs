//! Lines of a command on standard error: only errors, unless it is verbose. On a terminal one more
//! line may be redrawn in place below them.
//!
//! A thread writes them. If standard error is a full pipe or a stopped terminal, the thread blocks
//! and the command goes on without it.

use std::io::{IsTerminal, Write, stderr};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::Builder;
use std::time::Duration;

use nix::sys::signal::{SigSet, SigmaskHow};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::termios::tcgetwinsize;

/// The most lines that wait for a slow reader; later ones are dropped.
const MAX_LINES: usize = 256;

/// The longest that the process waits for a slow reader at its end.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Returns to the beginning of the line and erases it.
const ERASE: &str = "\r\x1b[K";

/// The columns of a terminal that does not know its own.
const USUAL_COLUMNS: usize = 80;

/// The writing thread; `None` if it cannot be started.
static WRITER: OnceLock<Option<SyncSender<Message>>> = OnceLock::new();

/// The verbosity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Voice {
    /// Nothing.
    Quiet,
    /// Errors.
    Usual,
    /// Errors and events.
    Verbose,
}

/// A message to the writing thread.
enum Message {
    Line(String),
    /// The redrawn line, without its end; an empty one is erased.
    Drawn(String),
    /// Answered when all earlier lines are written.
    Flush(Sender<()>),
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
        self.tells() && stderr().is_terminal()
    }

    /// Redraws the last line of the terminal; an empty one is erased. Other lines go above it.
    pub(super) fn draw(self, what: &str) {
        if !self.draws() {
            return;
        }
        let text = if what.is_empty() { String::new() } else { fitting(&line(&what), columns()) };
        if let Some(writer) = WRITER.get_or_init(start) {
            // Full because the terminal is stopped.
            let _ = writer.try_send(Message::Drawn(text));
        }
    }
}

/// Writes why the process ends, without waiting long for a stuck standard error.
pub(super) fn last_words(what: &dyn std::fmt::Display) {
    say(what);
    flush();
}

/// Writes one line; never blocks.
fn say(what: &dyn std::fmt::Display) {
    let line = line(what) + "\n";
    match WRITER.get_or_init(start) {
        Some(writer) => {
            // Full because the reader stopped reading.
            let _ = writer.try_send(Message::Line(line));
        }
        None if takes_a_line() => {
            let _ = stderr().write_all(line.as_bytes());
        }
        None => (),
    }
}

fn line(what: &dyn std::fmt::Display) -> String {
    format!("lockkeeper: {}", plain(&what.to_string()))
}

/// The columns of the terminal.
fn columns() -> usize {
    let size = tcgetwinsize(stderr()).ok().map(|size| usize::from(size.ws_col));
    size.filter(|columns| *columns > 0).unwrap_or(USUAL_COLUMNS)
}

/// The beginning of a line that does not wrap, which could not be redrawn. Letters that are not
/// ASCII may take two columns.
fn fitting(line: &str, columns: usize) -> String {
    let mut left = columns.saturating_sub(1);
    let fits = |letter: &char| {
        let rest = left.checked_sub(if letter.is_ascii() { 1 } else { 2 });
        left = rest.unwrap_or(0);
        rest.is_some()
    };
    line.chars().take_while(fits).collect()
}

/// Waits briefly for unwritten lines, before the process ends.
pub(super) fn flush() {
    let Some(Some(writer)) = WRITER.get() else { return };
    let (written, all_written) = channel();
    if writer.try_send(Message::Flush(written)).is_ok() {
        let _ = all_written.recv_timeout(LAST_WORDS);
    }
}

/// The text with escaped control characters, which a terminal would obey, and escaped characters
/// that are invisible or turn a line around.
pub(super) fn plain(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter.is_control() || is_odd(letter) {
            true => shown.extend(letter.escape_default()),
            false => shown.push(letter),
        }
    }
    shown
}

fn is_odd(letter: char) -> bool {
    matches!(letter, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
}

/// Starts the thread with all signals blocked: the main thread handles them.
fn start() -> Option<SyncSender<Message>> {
    let (lines, messages) = sync_channel(MAX_LINES);
    let before = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK).ok()?;
    let started = Builder::new().name("stderr".to_owned()).spawn(move || write(&messages));
    let _ = before.thread_set_mask();
    started.ok().map(|_| lines)
}

fn write(messages: &Receiver<Message>) {
    let mut is_drawn = false;
    while let Ok(message) = messages.recv() {
        let erase = if is_drawn { ERASE } else { "" };
        let (text, written) = match message {
            Message::Line(text) => {
                is_drawn = false;
                (text, None)
            }
            Message::Drawn(text) => {
                is_drawn = !text.is_empty();
                (text, None)
            }
            Message::Flush(written) => {
                is_drawn = false;
                (String::new(), Some(written))
            }
        };
        // Standard error may be closed.
        let _ = stderr().write_all(format!("{erase}{text}").as_bytes());
        if let Some(written) = written {
            let _ = written.send(());
        }
    }
}

fn takes_a_line() -> bool {
    let stderr = stderr();
    let mut polled = [PollFd::new(&stderr, PollFlags::OUT)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&now)).is_ok() && polled[0].revents().contains(PollFlags::OUT)
}

#[cfg(test)]
mod tests {
    use super::{fitting, plain};

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(
            plain("a \u{1b}[31mb\r\nc\u{9b}2J\u{7f}"),
            "a \\u{1b}[31mb\\r\\nc\\u{9b}2J\\u{7f}"
        );
        assert_eq!(plain("a\u{202e}b\u{200b}"), "a\\u{202e}b\\u{200b}");
        assert_eq!(plain("Zürich, 東京"), "Zürich, 東京");
    }

    #[test]
    fn a_redrawn_line_is_shorter_than_the_terminal() {
        assert_eq!(fitting("waiting", 80), "waiting");
        assert_eq!(fitting("waiting", 7), "waitin");
        assert_eq!(fitting("東京 waits", 7), "東京 w");
        assert_eq!(fitting("a東京", 5), "a東");
        assert_eq!(fitting("waiting", 0), "");
    }
}
