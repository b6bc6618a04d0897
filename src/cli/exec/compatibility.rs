//! Options of `flock` and `timeout` that `exec` understands without having a use for them, or
//! refuses with the way out. Only the parser knows them: help, manual and completions do not.

use clap::{Arg, ArgAction, ArgMatches, Command};

/// Options that say what `exec` does anyway: long name and short ones.
const UNDERSTOOD: [(&str, &[char]); 2] = [("exclusive", &['x', 'e']), ("close", &['o'])];

/// Options that ask for what `exec` cannot do, and the way out.
const REFUSED: [(&str, Option<char>, &str); 4] = [
    ("unlock", None, "a lease ends with its COMMAND, or by `lockkeeper release`: no --unlock"),
    (
        "no-fork",
        Some('F'),
        "exec stays beside COMMAND, to refresh the lease and to pass signals on: leave -F out",
    ),
    ("fcntl", None, "a key is not a file: leave --fcntl out"),
    (
        "foreground",
        None,
        "COMMAND is in the foreground of a terminal anyway: leave --foreground out",
    ),
];

/// Adds the options to `exec`.
pub(in crate::cli) fn added_to(exec: Command) -> Command {
    let understood = UNDERSTOOD.map(|(name, short)| {
        Arg::new(name).long(name).short(short[0]).short_aliases(short[1..].to_vec())
    });
    let refused = REFUSED.map(|(name, short, _)| Arg::new(name).long(name).short(short));
    let all = understood.into_iter().chain(refused);
    exec.args(all.map(|arg| arg.action(ArgAction::Count).hide(true)))
}

/// The way out, if `exec` was asked for what it cannot do.
pub(in crate::cli) fn refused(exec: &ArgMatches) -> Option<&'static str> {
    let asked = REFUSED.iter().find(|(name, ..)| exec.get_count(name) > 0);
    asked.map(|(.., told)| *told)
}
