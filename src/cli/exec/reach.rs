//! The processes of COMMAND: its process group and all its descendants, whatever groups and
//! sessions they have made (`timeout`, `set -m`, `setsid`).
//!
//! While the wrapper lives, orphans become its children, so all of them are below it. Once it is
//! dead they are found by the mark in their environment.

use std::collections::HashSet;

use rustix::process::{
    Pid, Signal, getpgid, getpgrp, getpid, getppid, kill_process, kill_process_group,
    test_kill_process_group,
};

use crate::cli::exec::WARDEN;
use crate::cli::exec::marks::has_mark;
use crate::platform::{Sender, processes};

/// The most searches for processes that were started while others were stopped.
const SEARCHES: usize = 20;

/// The processes that signals for COMMAND reach.
#[derive(Clone, Debug)]
pub(super) struct Reach {
    pub(super) wrapper: Pid,
    /// COMMAND's first process, until it is reaped.
    pub(super) first: Option<Pid>,
    /// COMMAND's process group. On a terminal it has none of its own: it shares the wrapper's, and
    /// so Ctrl-C, Ctrl-Z and the right to read.
    pub(super) group: Option<Pid>,
    /// Children of the wrapper that are not COMMAND's: the warden, and earlier ones.
    pub(super) spared: Vec<Pid>,
    pub(super) mark: String,
}

impl Reach {
    /// Sends a signal to all. The terminal has already sent its own to its foreground group.
    pub(super) fn send(&self, signal: Signal, sender: Sender) {
        let served = |group: Option<Pid>| match sender {
            Sender::Terminal => group == Some(getpgrp()),
            Sender::Process => group.is_some() && group == self.group,
        };
        if let Some(group) = self.group.filter(|_| sender == Sender::Process) {
            // An error means that it has ended and needs no signal; so below.
            let _ = kill_process_group(group, signal);
        }
        for pid in self.found() {
            if !served(getpgid(Some(pid)).ok()) {
                let _ = kill_process(pid, signal);
            }
        }
    }

    /// Kills all processes that are found. Stops them first, so that none starts another meanwhile.
    /// Returns those that were alive: call it until there are none.
    pub(super) fn kill(&self) -> HashSet<Pid> {
        if let Some(group) = self.group {
            // At once: a search takes its time on a busy machine.
            let _ = kill_process_group(group, Signal::STOP);
        }
        let mut stopped = HashSet::new();
        for _ in 0..SEARCHES {
            let found = self.alive();
            let more: Vec<_> = found.difference(&stopped).copied().collect();
            if more.is_empty() {
                break;
            }
            for pid in more {
                let _ = kill_process(pid, Signal::STOP);
                stopped.insert(pid);
            }
        }
        if let Some(group) = self.group {
            let _ = kill_process_group(group, Signal::KILL);
        }
        for pid in &stopped {
            let _ = kill_process(*pid, Signal::KILL);
        }
        stopped
    }

    /// The processes that have not ended.
    pub(super) fn alive(&self) -> HashSet<Pid> {
        let mut found = self.found();
        if processes::are_listed() {
            found.retain(|pid| processes::lives(*pid));
        } else {
            found.extend(self.group.filter(|group| test_kill_process_group(*group).is_ok()));
        }
        found
    }

    /// Parses the output of `Display`.
    pub(super) fn parse<'a>(mut words: impl Iterator<Item = &'a str>) -> Option<Self> {
        let mark = words.next()?.to_owned();
        let mut pids = words.map(|pid| pid.parse().map(Pid::from_raw));
        let first = pids.next()?.ok()?;
        let group = pids.next()?.ok()?;
        let wrapper = pids.next()?.ok()??;
        let spared = pids.map(|pid| pid.ok()?).collect::<Option<_>>()?;
        Some(Self { wrapper, first, group, spared, mark })
    }

    fn found(&self) -> HashSet<Pid> {
        let mut found = self.all_found();
        // Those of an `exec` in COMMAND give its leases back when it is killed, and end then.
        found.retain(|pid| !processes::is_ours(*pid, WARDEN));
        found
    }

    fn all_found(&self) -> HashSet<Pid> {
        let mut found: HashSet<_> = self.first.into_iter().collect();
        if !processes::are_listed() {
            return found;
        }
        let us = getpid();
        if us == self.wrapper || getppid() == Some(self.wrapper) {
            found.extend(processes::below(&[self.wrapper], &self.spared));
        } else {
            found.extend(processes::with_environment(|environment| {
                has_mark(environment, &self.mark)
            }));
            let marked: Vec<_> = found.iter().copied().collect();
            found.extend(processes::below(&marked, &self.spared));
        }
        found.remove(&us);
        found
    }
}

impl std::fmt::Display for Reach {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let number = |pid: Option<Pid>| pid.map_or(0, Pid::as_raw_pid);
        write!(f, "{} {} {}", self.mark, number(self.first), number(self.group))?;
        write!(f, " {}", self.wrapper.as_raw_pid())?;
        self.spared.iter().try_for_each(|pid| write!(f, " {}", pid.as_raw_pid()))
    }
}
