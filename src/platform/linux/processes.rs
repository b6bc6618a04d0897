//! Processes as /proc shows them, and what ties them to one another.

use std::collections::{HashMap, HashSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use rustix::process::{Pid, Signal, getpid, set_child_subreaper, set_parent_process_death_signal};
use rustix::thread::disable_transparent_huge_pages;

/// The most descendants that one search finds: a fork bomb must not delay the kill.
const MAX_FOUND: usize = 10_000;

/// This program, even if its file has been replaced.
pub(crate) fn own_program() -> io::Result<PathBuf> {
    let program = PathBuf::from("/proc/self/exe");
    let found = fs::read_link(&program);
    found.map_err(|error| {
        let why = format!("mount /proc, which this command needs: /proc/self/exe: {error}");
        io::Error::new(error.kind(), why)
    })?;
    Ok(program)
}

/// Keeps huge pages out of this process from now on: of a block of 8 KiB with 100 bytes in use, the
/// second half would take memory too.
pub(crate) fn use_small_pages() -> io::Result<()> {
    Ok(disable_transparent_huge_pages(true)?)
}

/// Has this process killed when its parent ends.
pub(crate) fn die_with_parent() -> io::Result<()> {
    Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
}

/// Makes orphans below this process its children, so that they can be found and reaped.
pub(crate) fn adopt_orphans() -> io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// Returns whether this process has a controlling terminal. It has none any more once that is
/// closed.
pub(crate) fn has_terminal() -> bool {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
    fields.split(' ').nth(4).is_some_and(|terminal| terminal != "0")
}

/// The signals that this process ignores from its start, one bit each.
pub(crate) fn ignored_signals() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

/// The name of a process: its program, or a script that names its interpreter itself.
pub(crate) fn name(process: u32) -> Option<String> {
    let name = fs::read_to_string(format!("/proc/{process}/comm")).ok()?;
    Some(name.trim_end().to_owned()).filter(|name| !name.is_empty())
}

/// Returns whether a process runs this very program with this first argument.
pub(crate) fn is_ours(pid: Pid, argument: &str) -> bool {
    let directory = PathBuf::from(format!("/proc/{}", pid.as_raw_pid()));
    let words = fs::read(directory.join("cmdline")).unwrap_or_default();
    let is_named = words.split(|byte| *byte == 0).nth(1) == Some(argument.as_bytes());
    // A link to the file itself, whatever its name is by now.
    let file = |link: &Path| fs::metadata(link).ok().map(|file| (file.dev(), file.ino()));
    is_named && file(&directory.join("exe")) == file(Path::new("/proc/self/exe"))
}

/// Returns whether /proc lists our pid namespace. In another one, a signal to a number from /proc
/// would reach a stranger.
pub(crate) fn are_listed() -> bool {
    let shown = fs::read_link("/proc/self");
    shown.is_ok_and(|shown| shown == Path::new(&getpid().as_raw_pid().to_string()))
}

/// The descendants of `roots`, without `spared` and their descendants.
pub(crate) fn below(roots: &[Pid], spared: &[Pid]) -> HashSet<Pid> {
    let children = Children::find();
    let mut found = HashSet::new();
    let mut next = roots.to_vec();
    while let Some(parent) = next.pop().filter(|_| found.len() < MAX_FOUND) {
        for child in children.of(parent) {
            if !spared.contains(&child) && found.insert(child) {
                next.push(child);
            }
        }
    }
    found
}

/// The processes whose environment, as it was at their start, is such a one.
pub(crate) fn with_environment(such: impl Fn(&[u8]) -> bool) -> HashSet<Pid> {
    // A thread that has ended, the first one too, has none.
    let of = |task: PathBuf| fs::read(task.join("environ")).ok().filter(|text| !text.is_empty());
    let bears = |pid: &Pid| tasks(*pid).find_map(of).is_some_and(|environment| such(&environment));
    all().filter(bears).collect()
}

/// The children of this process, if they are listed.
pub(crate) fn our_children() -> Vec<Pid> {
    if are_listed() { Children::find().of(getpid()) } else { Vec::new() }
}

/// Returns whether a thread of a process runs. The first one may have ended before others: then the
/// process looks like a zombie.
pub(crate) fn lives(pid: Pid) -> bool {
    tasks(pid).filter_map(|task| stat(&task)).any(|(state, _)| state != "Z" && state != "X")
}

/// The threads of a process, in /proc.
fn tasks(pid: Pid) -> impl Iterator<Item = PathBuf> {
    let tasks = fs::read_dir(format!("/proc/{}/task", pid.as_raw_pid()));
    tasks.into_iter().flatten().flatten().map(|task| task.path())
}

/// The children of each process.
enum Children {
    /// Listed by the kernel for each task.
    Listed,
    /// Gathered from the parents of all processes, without CONFIG_PROC_CHILDREN.
    Gathered(HashMap<Pid, Vec<Pid>>),
}

impl Children {
    fn find() -> Self {
        let ourselves = getpid().as_raw_pid();
        if fs::exists(format!("/proc/self/task/{ourselves}/children")).unwrap_or(false) {
            return Self::Listed;
        }
        let mut gathered: HashMap<Pid, Vec<Pid>> = HashMap::new();
        for pid in all() {
            let one = stat(&PathBuf::from(format!("/proc/{}", pid.as_raw_pid())));
            if let Some(parent) = one.and_then(|(_, parent)| Pid::from_raw(parent)) {
                gathered.entry(parent).or_default().push(pid);
            }
        }
        Self::Gathered(gathered)
    }

    fn of(&self, parent: Pid) -> Vec<Pid> {
        match self {
            Self::Gathered(gathered) => gathered.get(&parent).cloned().unwrap_or_default(),
            Self::Listed => {
                let lists = tasks(parent).map(|task| fs::read_to_string(task.join("children")));
                let lists: Vec<_> = lists.flatten().collect();
                let pids = lists.iter().flat_map(|list| list.split_whitespace());
                pids.filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
            }
        }
    }
}

/// The state and the parent of a process, or of a thread.
fn stat(of: &Path) -> Option<(String, i32)> {
    let stat = fs::read_to_string(of.join("stat")).ok()?;
    // The name before it may contain anything.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    Some((fields.next()?.to_owned(), fields.next()?.parse().ok()?))
}

fn all() -> impl Iterator<Item = Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
}
