//! Text on a terminal: its width, and what does not harm it.

use std::collections::{BTreeSet, HashMap};
use std::os::fd::AsFd;

use rustix::termios::tcgetwinsize;
use unicode_width::UnicodeWidthChar;

/// The columns of a terminal that does not know its own.
const USUAL: usize = 80;

/// The sign for what is left out of a text.
const CUT: &str = "\u{2026}";

/// The number of columns.
pub(super) fn columns(terminal: impl AsFd) -> usize {
    let known = tcgetwinsize(terminal).map_or(0, |size| size.ws_col.into());
    if known > 0 { known } else { USUAL }
}

/// The columns that a text takes: two for a wide letter, none for one that combines with another.
pub(super) fn width(text: &str) -> usize {
    text.chars().map(columns_of).sum()
}

fn columns_of(letter: char) -> usize {
    letter.width().unwrap_or_default()
}

/// The beginning of a line that does not wrap, which could not be redrawn.
pub(super) fn fitting(line: &str, columns: usize) -> &str {
    beginning(line, columns - 1)
}

/// As much of the beginning of a text as these columns hold.
pub(super) fn beginning(text: &str, columns: usize) -> &str {
    let mut left = columns;
    let end = text.char_indices().find(|(_, letter)| {
        let rest = left.checked_sub(columns_of(*letter));
        left = rest.unwrap_or_default();
        rest.is_none()
    });
    end.map_or(text, |(end, _)| &text[..end])
}

/// As much of the end of a text as these columns hold. It begins with no letter that combines with
/// the one before.
pub(super) fn ending(text: &str, columns: usize) -> &str {
    let mut left = columns;
    let mut begin = text.len();
    for (at, letter) in text.char_indices().rev() {
        let own = columns_of(letter);
        let Some(rest) = left.checked_sub(own) else { break };
        left = rest;
        if own > 0 {
            begin = at;
        }
    }
    &text[begin..]
}

/// A text of at most so many columns, without its middle if it is longer: the ends tell keys apart.
pub(super) fn shortened(text: &str, most: usize) -> String {
    if width(text) <= most {
        return text.to_owned();
    }
    let room = most.saturating_sub(width(CUT));
    format!("{}{CUT}{}", beginning(text, room / 2), ending(text, room - room / 2))
}

/// Texts of at most so many columns. Two that differ are shown differently, at the cost of what they
/// have in common; where that cannot be, they are whole.
pub(super) fn shortened_apart(texts: &[&str], most: usize) -> Vec<String> {
    let mut shown: Vec<_> = texts.iter().map(|text| shortened(text, most)).collect();
    for form in [ends_with, shows_difference, whole] {
        let mut groups: HashMap<_, Vec<usize>> = HashMap::new();
        for (index, text) in shown.iter().enumerate() {
            groups.entry(text.clone()).or_default().push(index);
        }
        for group in groups.into_values() {
            let alike: BTreeSet<_> = group.iter().map(|index| texts[*index]).collect();
            if let (Some(first), Some(last)) = (alike.first(), alike.last())
                && first != last
            {
                // In the order of their bytes, the first and the last have least in common.
                let common = common_beginning(first, last);
                for index in group {
                    shown[index] = form(texts[index], common, most);
                }
            }
        }
    }
    shown
}

fn ends_with(text: &str, _: usize, most: usize) -> String {
    format!("{CUT}{}", ending(text, most.saturating_sub(width(CUT))))
}

/// The text from where it differs on, and its end.
fn shows_difference(text: &str, common: usize, most: usize) -> String {
    let room = most.saturating_sub(2 * width(CUT));
    let difference = beginning(&text[common..], room / 2);
    let end = ending(text, room - room / 2);
    format!("{CUT}{difference}{CUT}{end}")
}

fn whole(text: &str, _: usize, _: usize) -> String {
    text.to_owned()
}

/// The bytes of whole letters with which two texts begin.
fn common_beginning(one: &str, other: &str) -> usize {
    let pairs = one.chars().zip(other.chars());
    pairs.take_while(|(one, other)| one == other).map(|(letter, _)| letter.len_utf8()).sum()
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
    use super::{ending, fitting, plain, shortened, shortened_apart, width};

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

    #[test]
    fn a_text_has_the_columns_that_a_terminal_gives_it() {
        for (text, columns) in [("web-1", 5), ("東京", 4), ("e\u{301}", 1), ("\u{2026}", 1)] {
            assert_eq!(width(text), columns, "{text}");
        }
        for (text, most, shown) in [
            ("tenants/4711/report-1", 9, "tena\u{2026}rt-1"),
            ("東京都庁舎", 7, "東\u{2026}舎"),
            ("re\u{301}sume\u{301}s", 5, "re\u{301}\u{2026}e\u{301}s"),
            ("東京", 4, "東京"),
            ("東京都", 1, "\u{2026}"),
        ] {
            assert_eq!(shortened(text, most), shown);
            assert!(width(shown) <= most);
        }
        // Half of a letter is no end.
        assert_eq!(ending("ae\u{301}", 0), "");
        assert_eq!(ending("ae\u{301}", 1), "e\u{301}");
    }

    #[test]
    fn texts_that_differ_are_shown_differently() {
        let reports = ["tenants/4711/report", "tenants/4711/report-2", "other"];
        assert_eq!(shortened_apart(&reports, 9), ["tena\u{2026}port", "tena\u{2026}rt-2", "other"]);
        // The beginning is the same, and the middle is not.
        let months = ["prod/eu-1/2026-11/report", "prod/eu-1/2026-12/report"];
        assert_eq!(shortened_apart(&months, 12), ["\u{2026}6-11/report", "\u{2026}6-12/report"]);
        let hosts = ["prod/eu-1/2026/app/report", "prod/us-1/2026/app/report"];
        assert_eq!(
            shortened_apart(&hosts, 12),
            ["\u{2026}eu-1/\u{2026}eport", "\u{2026}us-1/\u{2026}eport"]
        );
        let hidden = ["aaaaaaaaaaXaaaaaaaaaaYaaaaaaaaaa", "aaaaaaaaaaXaaaaaaaaaaZaaaaaaaaaa"];
        assert_eq!(shortened_apart(&hidden, 9)[0].matches('Y').count(), 1);
        let twice = ["aaaaaaaaaaaaaaaaaaaa"; 2];
        assert_eq!(shortened_apart(&twice, 5), ["aa\u{2026}aa"; 2]);
    }
}
