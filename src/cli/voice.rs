//! Lines of a command on standard error: only errors, unless it is verbose.
//!
//! A thread writes them. If standard error is a full pipe or a stopped terminal, the thread blocks
//! and the command goes on without it.

use std::io::{Write, stderr};
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::thread::Builder;
use std::time::Duration;

use nix::sys::signal::{SigSet, SigmaskHow};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

/// The most lines that wait for a slow reader; later ones are dropped.
const MAX_LINES: usize = 256;

/// The longest that the process waits for a slow reader at its end.
const LAST_WORDS: Duration = Duration::from_secs(1);

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
}

/// Writes why the process ends, without waiting long for a stuck standard error.
pub(super) fn last_words(what: &dyn std::fmt::Display) {
    say(what);
    flush();
}

/// Writes one line; never blocks.
fn say(what: &dyn std::fmt::Display) {
    let line = format!("lockkeeper: {}\n", plain(&what.to_string()));
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
    while let Ok(message) = messages.recv() {
        match message {
            Message::Line(line) => {
                // Standard error may be closed.
                let _ = stderr().write_all(line.as_bytes());
            }
            Message::Flush(written) => {
                let _ = written.send(());
            }
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
    use super::plain;

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(
            plain("a \u{1b}[31mb\r\nc\u{9b}2J\u{7f}"),
            "a \\u{1b}[31mb\\r\\nc\\u{9b}2J\\u{7f}"
        );
        assert_eq!(plain("a\u{202e}b\u{200b}"), "a\\u{202e}b\\u{200b}");
        assert_eq!(plain("Zürich, 東京"), "Zürich, 東京");
    }
}
