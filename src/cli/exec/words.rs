//! The words behind the options of `exec`: KEY and COMMAND, or KEY and `-c STRING` as in `flock`.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use crate::cli::remote::key;
use crate::lock::key::LockKey;

/// The shell that runs a STRING.
const SHELL: &str = "/bin/sh";

/// Ends the options; COMMAND may begin with a dash then.
const END: &str = "--";

/// Programs that run the first of their arguments that is no option.
const INTERPRETERS: [&str; 10] =
    ["sh", "bash", "dash", "ksh", "zsh", "node", "perl", "php", "python", "ruby"];

#[derive(Debug, PartialEq, Eq)]
pub(super) struct Words {
    pub(super) key: LockKey,
    pub(super) command: Vec<OsString>,
    /// The name of what COMMAND runs: its program, or the script behind an interpreter.
    pub(super) name: String,
}

impl Words {
    /// Parses KEY and the words behind it. `string` is that of `-c` before KEY.
    pub(super) fn parse(words: &[OsString], string: Option<&OsStr>) -> Result<Self, String> {
        let (name, rest) = words.split_first().ok_or("no key")?;
        let name = name.to_str().ok_or("the key is not UTF-8")?;
        let key = key(name)?;
        let (words, string) = match (rest, string) {
            ([end, words @ ..], string) if end == END => (words, string),
            ([flag, string], None) if is_string_flag(flag) => (&[][..], Some(&**string)),
            ([flag, ..], None) if is_string_flag(flag) => {
                return Err(format!("{} takes one STRING: quote it", flag.display()));
            }
            ([option, ..], None) if option.as_bytes().starts_with(b"-") => {
                let option = option.display();
                return Err(format!("put {option} before the key, or -- before a COMMAND"));
            }
            (words, string) => (words, string),
        };
        let command = match (words, string) {
            ([_, ..], None) => words.to_vec(),
            ([], Some(string)) => vec![SHELL.into(), "-c".into(), string.to_owned()],
            ([_, ..], Some(_)) => return Err("give a COMMAND or --command, not both".to_owned()),
            ([], None) => return Err(no_command(name)),
        };
        let name = name_of(&command);
        Ok(Self { key, command, name })
    }
}

/// The name of what a command runs. It has no other words of the command: arguments may be secret,
/// as may the variables that a STRING begins with.
fn name_of(command: &[OsString]) -> String {
    let mut words = command.iter().map(|word| word.to_string_lossy().into_owned());
    let program = words.next().map(|word| base(&word)).unwrap_or_default();
    let interpreter =
        program.trim_end_matches(|letter: char| letter.is_ascii_digit() || letter == '.');
    if !INTERPRETERS.contains(&interpreter) {
        return program;
    }
    let script = words.find(|word| !word.starts_with('-'));
    let script = script.and_then(|text| text.split_whitespace().next().map(base));
    script.filter(|script| !script.contains('=')).unwrap_or(program)
}

fn base(word: &str) -> String {
    word.rsplit('/').next().unwrap_or_default().to_owned()
}

fn is_string_flag(word: &OsStr) -> bool {
    word == "-c" || word == "--command"
}

/// The refusal of a key alone; a number is the descriptor of `flock 9`.
fn no_command(key: &str) -> String {
    let told = "no COMMAND after the key";
    if !key.bytes().all(|byte| byte.is_ascii_digit()) {
        return told.to_owned();
    }
    format!("{told} {key}: no descriptor holds a lease; use `acquire` and `release` in a script")
}
