//! The owner that a command gives its lease: who runs what, and where.

use nix::unistd::{User, getppid, getuid};

use crate::platform::processes;

/// The most characters, so that owners fit into tables and logs.
const MOST_CHARS: usize = 60;

/// The owner of a lease for a command of this name, which this process runs.
pub(super) fn ourselves(what: &str) -> String {
    owner(std::process::id(), what)
}

/// The owner of a lease for the process that called this one, which ends before the lease.
pub(super) fn our_caller() -> String {
    let caller = getppid().as_raw().unsigned_abs();
    owner(caller, &processes::name(caller).unwrap_or_else(|| "acquire".to_owned()))
}

/// The same, with a text of any length behind it.
pub(super) fn ourselves_at_length(what: &str) -> String {
    format!("{}:{} {what}", place(), std::process::id())
}

/// The owner of leases for a session of another program, whose processes come and go.
pub(super) fn of_session(what: &str) -> String {
    shown(&format!("{} {what}", place()))
}

fn owner(process: u32, what: &str) -> String {
    shown(&format!("{}:{process} {what}", place()))
}

/// The user is that of the process, by its name: cron and containers set no variable for it.
fn place() -> String {
    let user = User::from_uid(getuid()).ok().flatten().map(|user| user.name);
    let user = user.unwrap_or_else(|| getuid().to_string());
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{user}@{host}")
}

fn shown(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).take(MOST_CHARS).collect()
}
