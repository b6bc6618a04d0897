//! Text on a terminal: its width, and what does not harm it.

use std::os::fd::AsFd;

use rustix::termios::tcgetwinsize;

/// The columns of a terminal that does not know its own.
const USUAL: usize = 80;

/// The number of columns.
pub(super) fn columns(terminal: impl AsFd) -> usize {
    let known = tcgetwinsize(terminal).map_or(0, |size| size.ws_col.into());
    if known > 0 { known } else { USUAL }
}

/// The beginning of a line that does not wrap, which could not be redrawn.
pub(super) fn fitting(line: &str, columns: usize) -> String {
    let mut left = columns - 1;
    let fits = |letter: &char| {
        let rest = left.checked_sub(width(*letter));
        left = rest.unwrap_or(0);
        rest.is_some()
    };
    line.chars().take_while(fits).collect()
}

/// The columns of a letter; those that are not ASCII may take two.
fn width(letter: char) -> usize {
    if letter.is_ascii() { 1 } else { 2 }
}

/// The text with escaped control characters, which a terminal would obey, and escaped characters
/// that are invisible or turn a line around.
pub(super) fn plain(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for letter in text.chars() {
        match is_odd(letter) {
            true => shown.extend(letter.escape_default()),
            false => shown.push(letter),
        }
    }
    shown
}

/// Returns whether a letter controls the terminal, ends or turns around a line, or is invisible.
pub(super) fn is_odd(letter: char) -> bool {
    letter.is_control()
        || matches!(letter, '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}')
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
        assert_eq!(fitting("waiting", 1), "");
    }
}
