//! The files as the rules see them: their text, and their code without comments and literals.

use std::path::{Path, PathBuf};

/// A file of this package.
#[derive(Clone, Debug)]
pub(crate) struct File {
    /// From the root of the package, with `/`.
    pub(crate) path: String,
    pub(crate) text: String,
}

impl File {
    /// A file that is not on disk: what a rule has to find fault with.
    pub(crate) fn planted(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), text: text.to_owned() }
    }

    /// The file at `path`.
    pub(crate) fn read(path: &str) -> Self {
        let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{path}: {error}"));
        Self { path: path.to_owned(), text }
    }

    /// Its text, every comment and literal blanked; lines stay where they are.
    pub(crate) fn code(&self) -> String {
        code(&self.text)
    }

    /// How many lines stand before its tests.
    pub(crate) fn lines_before_tests(&self) -> usize {
        self.text.lines().take_while(|line| *line != "#[cfg(test)]").count()
    }

    /// Its code, cut before its tests.
    pub(crate) fn code_before_tests(&self) -> String {
        let code = self.code();
        let lines: Vec<_> = code.lines().take(self.lines_before_tests()).collect();
        lines.join("\n")
    }
}

/// What `make clients` leaves in the tree, which git ignores.
const INSTALLED: &str = "node_modules";

/// All files under `directory` whose names end in `.ending`, in order.
pub(crate) fn files(directory: &str, ending: &str) -> Vec<File> {
    let mut paths = Vec::new();
    walk(Path::new(directory), &mut paths);
    paths.retain(|path| path.extension().is_some_and(|its| its == ending));
    paths.sort();
    assert!(!paths.is_empty(), "no .{ending} file is left in {directory}");
    paths.iter().map(|path| File::read(path.to_str().unwrap())).collect()
}

fn walk(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true if path.ends_with(INSTALLED) => (),
            true => walk(&path, found),
            false => found.push(path),
        }
    }
}

/// Fails with all faults at once.
#[track_caller]
pub(crate) fn assert_none(faults: &[String]) {
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

/// Fails unless there is exactly one fault, and it says `what`.
#[track_caller]
pub(crate) fn assert_found(faults: &[String], what: &str) {
    assert!(faults.len() == 1 && faults[0].contains(what), "not only {what:?} in {faults:#?}");
}

/// Whether a letter belongs to a name.
pub(crate) fn is_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

/// The names and numbers in code.
pub(crate) fn words(code: &str) -> impl Iterator<Item = &str> {
    code.split(|letter| !is_word(letter)).filter(|word| !word.is_empty())
}

/// Rust without comments and literals.
fn code(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let within_word = code.ends_with(is_word);
        let blank = match first {
            '/' => comment(rest),
            'r' | 'b' if !within_word => raw_literal(rest),
            '"' => literal(rest, '"'),
            '\'' => character(rest),
            _ => 0,
        };
        if blank == 0 {
            code.push(first);
            rest = &rest[first.len_utf8()..];
        } else {
            let lines = rest[..blank].chars().map(|letter| if letter == '\n' { '\n' } else { ' ' });
            code.extend(lines);
            rest = &rest[blank..];
        }
    }
    code
}

/// How long the comment is that `text` begins with; 0 if it begins with none.
fn comment(text: &str) -> usize {
    if text.starts_with("//") {
        return text.find('\n').unwrap_or(text.len());
    }
    let (mut depth, mut at) = (0, 0);
    loop {
        let rest = &text[at..];
        if rest.starts_with("/*") {
            (depth, at) = (depth + 1, at + 2);
        } else if rest.starts_with("*/") {
            (depth, at) = (depth - 1, at + 2);
        } else {
            at += rest.chars().next().map_or(0, char::len_utf8);
        }
        if depth == 0 {
            return if text.starts_with("/*") { at } else { 0 };
        }
        assert!(at < text.len(), "a comment does not end");
    }
}

fn raw_literal(text: &str) -> usize {
    let Some(rest) = text.strip_prefix("br").or_else(|| text.strip_prefix('r')) else { return 0 };
    let hashes = rest.bytes().take_while(|byte| *byte == b'#').count();
    if !rest[hashes..].starts_with('"') {
        return 0;
    }
    let begin = text.len() - rest.len() + hashes + 1;
    let end = format!("\"{}", "#".repeat(hashes));
    begin + text[begin..].find(&end).unwrap() + end.len()
}

fn literal(text: &str, end: char) -> usize {
    let mut escaped = false;
    for (at, letter) in text.char_indices().skip(1) {
        if escaped {
            escaped = false;
        } else if letter == end {
            return at + 1;
        } else {
            escaped = letter == '\\';
        }
    }
    panic!("a literal does not end: {text}")
}

/// As [`comment`], for a character; a lifetime is none.
fn character(text: &str) -> usize {
    let mut letters = text.chars().skip(1);
    match (letters.next(), letters.next()) {
        (Some('\\'), _) => literal(text, '\''),
        (Some(letter), Some('\'')) => letter.len_utf8() + 2,
        _ => 0,
    }
}

#[test]
fn code_is_what_is_left_without_comments_and_literals() {
    for (text, left) in [
        ("a // b\nc", "a     \nc"),
        ("a /* b /* c */ d */ e", "a                   e"),
        (r#"a("b\"c", d)"#, "a(      , d)"),
        (r##"a(r#"b"c"#, br"d", b"e")"##, "a(        ,      , b   )"),
        (r"a('b', '\'', '\u{7f}', &'c d)", "a(   ,     ,         , &'c d)"),
        ("a / b", "a / b"),
    ] {
        let code = code(text);
        assert_eq!(code.split_whitespace().collect::<Vec<_>>(), words_of(left), "{text}");
        assert_eq!(code.lines().count(), text.lines().count());
    }
}

fn words_of(text: &str) -> Vec<&str> {
    text.split_whitespace().collect()
}

#[test]
fn tests_stand_behind_the_line_that_says_so() {
    let file = File::planted("src/a.rs", "mod a;\n\n#[cfg(test)]\nmod tests {}\n");
    assert_eq!(file.lines_before_tests(), 2);
    assert_eq!(file.code_before_tests(), "mod a;\n");
}
