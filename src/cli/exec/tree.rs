//! Processes as /proc shows them: the descendants of one, and those with a mark in their
//! environment, which their children inherit.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::Path;

use rustix::process::{Pid, getpid};

/// The variable with the marks of all `exec` above a process, outermost first.
pub(super) const MARKS: &str = "LOCK_EXEC";

/// The separator of marks in the variable.
const BETWEEN: char = ':';

/// The most descendants that one search finds: a fork bomb must not delay the kill.
const MAX_FOUND: usize = 10_000;

/// Returns whether /proc shows our pid namespace. In another one, a signal to a number from /proc
/// would reach a stranger.
pub(super) fn is_ours() -> bool {
    let shown = fs::read_link("/proc/self");
    shown.is_ok_and(|shown| shown == Path::new(&getpid().as_raw_pid().to_string()))
}

/// The descendants of `roots`, without `spared` and their descendants.
pub(super) fn below(roots: &[Pid], spared: &[Pid]) -> HashSet<Pid> {
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

/// The processes with this mark, whatever their parent is now.
pub(super) fn marked(mark: &str) -> HashSet<Pid> {
    let bears = |pid: &Pid| {
        let environment = fs::read(format!("/proc/{}/environ", pid.as_raw_pid()));
        environment.is_ok_and(|environment| has_mark(&environment, mark))
    };
    all().filter(bears).collect()
}

/// The children of this process.
pub(super) fn our_children() -> Vec<Pid> {
    Children::find().of(getpid())
}

/// The marks of a child that gets `mark` in addition.
pub(super) fn with_mark(marks: Option<String>, mark: &str) -> String {
    match marks.filter(|marks| !marks.is_empty()) {
        Some(marks) => format!("{marks}{BETWEEN}{mark}"),
        None => mark.to_owned(),
    }
}

/// Returns whether a process runs; zombies do not.
pub(super) fn lives(pid: Pid) -> bool {
    stat(pid).is_some_and(|stat| stat.state != "Z" && stat.state != "X")
}

/// Returns whether this process has a controlling terminal.
pub(super) fn has_terminal() -> bool {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit_once(") ").map_or("", |(_, fields)| fields);
    fields.split(' ').nth(4).is_some_and(|terminal| terminal != "0")
}

fn has_mark(environment: &[u8], mark: &str) -> bool {
    let mut variables = environment.split(|byte| *byte == 0);
    variables.any(|variable| {
        let marks =
            variable.strip_prefix(MARKS.as_bytes()).and_then(|rest| rest.strip_prefix(b"="));
        let mut marks =
            marks.into_iter().flat_map(|marks| marks.split(|byte| *byte == BETWEEN as u8));
        marks.any(|found| found == mark.as_bytes())
    })
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
            if let Some(parent) = stat(pid).and_then(|stat| Pid::from_raw(stat.parent)) {
                gathered.entry(parent).or_default().push(pid);
            }
        }
        Self::Gathered(gathered)
    }

    fn of(&self, parent: Pid) -> Vec<Pid> {
        match self {
            Self::Gathered(gathered) => gathered.get(&parent).cloned().unwrap_or_default(),
            Self::Listed => {
                let tasks = fs::read_dir(format!("/proc/{}/task", parent.as_raw_pid()));
                let tasks = tasks.into_iter().flatten().flatten();
                let lists = tasks.flat_map(|task| fs::read_to_string(task.path().join("children")));
                let lists: Vec<_> = lists.collect();
                let pids = lists.iter().flat_map(|list| list.split_whitespace());
                pids.filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
            }
        }
    }
}

struct Stat {
    state: String,
    parent: i32,
}

fn stat(pid: Pid) -> Option<Stat> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?;
    // The name before it may contain anything.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    Some(Stat { state: fields.next()?.to_owned(), parent: fields.next()?.parse().ok()? })
}

fn all() -> impl Iterator<Item = Pid> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::{has_mark, with_mark};

    #[test]
    fn a_process_has_the_marks_of_all_that_it_runs_under() {
        let marks = with_mark(Some(with_mark(None, "1-10")), "2-20");
        let environment = format!("A=b\0LOCK_EXEC={marks}\0C=d\0");
        for (mark, found) in [("1-10", true), ("2-20", true), ("2-2", false), ("-10", false)] {
            assert_eq!(has_mark(environment.as_bytes(), mark), found, "{mark}");
        }
        assert!(!has_mark(b"NO_LOCK_EXEC=1-10\0", "1-10"));
    }
}
