//! A table on a terminal that is drawn again in place, until a signal ends it.
//!
//! A frame is one write that overwrites the last one and is never larger than the terminal. The
//! terminal's modes stay as they are, so nothing has to be restored.

use std::io::{IsTerminal, stdout};
use std::time::Duration;

use rustix::process::Signal;
use tokio::time::sleep;

use crate::cli::exit;
use crate::cli::exit::Failure;
use crate::cli::signals::Signals;
use crate::cli::terminal::{Size, plain};
use crate::cli::voice::print;

/// The pause between two frames.
const EVERY: Duration = Duration::from_secs(2);

/// Draws what `ask` returns until a signal comes. While the service does not answer, the last table
/// stays, with the reason below it.
pub(super) async fn watch(
    ask: impl AsyncFn(Size) -> Result<Vec<String>, Failure>,
) -> Result<u8, Failure> {
    if !stdout().is_terminal() {
        return Err("--watch draws on a terminal: leave it out here".to_owned().into());
    }
    let signals = Signals::catch()?;
    let (mut table, mut drawn) = (Vec::new(), 0);
    loop {
        let size = Size::of(stdout());
        let answer = tokio::select! {
            biased;
            signal = signals.ending() => return Ok(ended(signal)),
            answer = ask(size) => answer,
        };
        let note = match answer {
            Ok(lines) => {
                table = lines;
                None
            }
            Err(error) if error.code == exit::UNREACHABLE => Some(plain(&error.why)),
            Err(error) => return Err(error),
        };
        let lines = fitting(&table, note.as_deref(), size);
        print(&frame(&lines, drawn))?;
        drawn = lines.len();
        tokio::select! {
            biased;
            signal = signals.ending() => return Ok(ended(signal)),
            () = sleep(EVERY) => (),
        }
    }
}

/// Ctrl-C is the usual end.
fn ended(signal: Signal) -> u8 {
    if signal == Signal::INT { 0 } else { exit::signalled(signal.as_raw()) }
}

/// The lines and the note, cut to the terminal: a line that wraps, or a last line feed that
/// scrolls, would move the next frame.
fn fitting(table: &[String], note: Option<&str>, size: Size) -> Vec<String> {
    let rows = size.rows.saturating_sub(1 + usize::from(note.is_some()));
    let lines = table.iter().take(rows).map(String::as_str).chain(note);
    lines.map(|line| size.fitting(line)).collect()
}

/// The lines, over those of the last frame.
fn frame(lines: &[String], drawn: usize) -> String {
    let mut text = String::new();
    if drawn > 0 {
        text.push_str(&format!("\x1b[{drawn}F")); // To the first of them.
    }
    for line in lines {
        text.push_str(line);
        text.push_str("\x1b[K\r\n"); // Erases the rest of the line.
    }
    text.push_str("\x1b[J"); // Erases the lines below.
    text
}

#[cfg(test)]
mod tests {
    use super::fitting;
    use crate::cli::terminal::Size;

    fn table(lines: &[&str]) -> Vec<String> {
        lines.iter().map(|&line| line.to_owned()).collect()
    }

    #[test]
    fn a_frame_is_smaller_than_the_terminal_and_keeps_its_note() {
        let long = table(&["KEY", "first", "second, which is long", "third"]);
        let size = Size { columns: 10, rows: 4 };
        assert_eq!(fitting(&long, None, size), ["KEY", "first", "second, w"]);
        assert_eq!(fitting(&long, Some("no answer"), size), ["KEY", "first", "no answer"]);
        let tiny = Size { columns: 1, rows: 1 };
        assert!(fitting(&long, None, tiny).is_empty());
    }
}
