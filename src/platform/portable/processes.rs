//! Processes without a list of them: what COMMAND starts is reached through its process group
//! alone, and nothing else ties it to its parent.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::path::PathBuf;

use rustix::process::Pid;

/// This program. It is another one if its file was replaced.
pub(crate) fn own_program() -> io::Result<PathBuf> {
    std::env::current_exe()
}

/// Does nothing: COMMAND outlives a wrapper that is killed until the warden kills its group.
pub(crate) fn die_with_parent() -> io::Result<()> {
    Ok(())
}

/// Does nothing: orphans become children of the system's first process.
pub(crate) fn adopt_orphans() -> io::Result<()> {
    Ok(())
}

/// Returns whether this process has a controlling terminal.
pub(crate) fn has_terminal() -> bool {
    File::open("/dev/tty").is_ok()
}

/// Does nothing: huge pages are Linux's.
pub(crate) fn use_small_pages() -> io::Result<()> {
    Ok(())
}

/// Returns no signal: `nohup` has no effect.
pub(crate) fn ignored_signals() -> u64 {
    0
}

/// Returns none.
pub(crate) fn name(_: u32) -> Option<String> {
    None
}

/// Returns false: no process is listed.
pub(crate) fn is_ours(_: Pid, _: &str) -> bool {
    false
}

/// Returns that no process can be found.
pub(crate) fn are_listed() -> bool {
    false
}

/// Returns none.
pub(crate) fn below(_: &[Pid], _: &[Pid]) -> HashSet<Pid> {
    HashSet::new()
}

/// Returns none.
pub(crate) fn with_environment(_: impl Fn(&[u8]) -> bool) -> HashSet<Pid> {
    HashSet::new()
}

/// Returns none.
pub(crate) fn our_children() -> Vec<Pid> {
    Vec::new()
}

/// Returns true: no process is listed of which another answer could be given.
pub(crate) fn lives(_: Pid) -> bool {
    true
}
