//! The proof of the proof: a service with one bug has to fail a trial, and by an invariant; the sound
//! service, its control, has to pass them all.
//!
//! Each trial is a process of its own, because its services end with the process.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::campaign::bugs::{Bug, SeededTree, bugs};
use crate::campaign::directory;
use crate::campaign::show::FIRST;
use crate::servers::Store;

/// The trials of a hunt, one after another, each with its percentage of the hunt's time: the first that
/// fails ends it. Most bugs show within seconds. Trials of odd and of even seeds strike other faults.
const PARTS: [u64; 4] = [5, 10, 25, 60];

/// The name of the sound service among the bugs, on each store.
const CONTROL: &str = "control";

/// What became of the hunts for one bug.
#[derive(Clone, Debug, Default)]
pub(crate) struct Hunt {
    pub(crate) trials: usize,
    /// After how many seconds of load the first violation was, in each hunt that had one.
    pub(crate) found_at: Vec<f64>,
    pub(crate) rules: BTreeMap<String, usize>,
    /// How many trials did not run to their end.
    pub(crate) broken_off: usize,
}

/// The hunts that are to be made, and what came of them so far.
struct Hunts {
    bugs: Vec<(Bug, PathBuf)>,
    trials: usize,
    seconds: u64,
    /// The number of the next hunt, over all bugs.
    next: AtomicUsize,
    results: Mutex<Vec<Hunt>>,
}

/// Hunts each of these bugs, and the control on each store, so many times, for so many seconds at most,
/// several at a time, and prints a row for each. Returns whether each bug was found in at least 19 of 20
/// hunts, and nothing in the control.
pub(crate) fn hunt_all(
    names: &[&str],
    seconds: u64,
    trials: usize,
    jobs: usize,
) -> io::Result<bool> {
    let wanted = |bug: &Bug| names.is_empty() || names.contains(&bug.name);
    let mut copy = SeededTree::new()?;
    let mut built = Vec::new();
    for bug in bugs()?.into_iter().chain(controls()).filter(wanted) {
        let binary = copy.build(&bug)?;
        built.push((bug, binary));
    }
    let results = Mutex::new(vec![Hunt::default(); built.len()]);
    let hunts = Hunts { bugs: built, trials, seconds, next: AtomicUsize::new(0), results };
    println!("| bug | store | found | broken | median s | most s |\n|---|---|---|---|---|---|");
    std::thread::scope(|scope| {
        let hunts = &hunts;
        let jobs: Vec<_> = (0..jobs).map(|job| scope.spawn(move || hunts.work(job))).collect();
        jobs.into_iter().try_for_each(|job| job.join().unwrap_or_else(|_| Err(panicked())))
    })?;
    Ok(hunts.all_found())
}

fn panicked() -> io::Error {
    io::Error::other("a hunt panicked")
}

/// Returns the sound service on each store.
fn controls() -> impl Iterator<Item = Bug> {
    Store::ALL.into_iter().map(|store| Bug::none(CONTROL, store))
}

impl Hunts {
    /// Takes one hunt after another until all are made.
    fn work(&self, job: usize) -> io::Result<()> {
        let below = directory().join(format!("seeded-hunt-{job}"));
        loop {
            let next = self.next.fetch_add(1, Ordering::Relaxed);
            let (bug, number) = (next / self.trials, next % self.trials);
            let Some((seeded, binary)) = self.bugs.get(bug) else { return Ok(()) };
            let found = Hunt::once(binary, seeded, self.seconds, number as u64, &below)?;
            let mut results = self.results.lock().unwrap_or_else(PoisonError::into_inner);
            results[bug].add(found);
            if results[bug].trials == self.trials {
                println!("{}", results[bug].row(seeded.name, seeded.store));
            }
        }
    }

    fn all_found(&self) -> bool {
        let results = self.results.lock().unwrap_or_else(PoisonError::into_inner);
        self.bugs.iter().zip(results.iter()).all(|((bug, _), hunt)| match bug.name {
            CONTROL => hunt.found_at.is_empty(),
            _ => hunt.found_at.len() * 20 >= hunt.trials * 19,
        })
    }
}

impl Hunt {
    /// Hunts a bug once; the files of its trials are below this directory, and are removed.
    fn once(binary: &Path, bug: &Bug, seconds: u64, number: u64, below: &Path) -> io::Result<Self> {
        let mut hunt = Self { trials: 1, ..Self::default() };
        let mut before = 0;
        for (part, percent) in (0..).zip(PARTS) {
            let lasts = seconds * percent / 100;
            let seed = (number * PARTS.len() as u64 + part).to_string();
            let mut trial = Command::new(std::env::current_exe()?);
            trial.args(["run", bug.store.name(), &lasts.to_string(), &seed]);
            trial.env("LOCKKEEPER_BIN", binary).env("CARGO_TARGET_DIR", below);
            if !bug.kinds.is_empty() {
                trial.env("PROVE_KINDS", bug.kinds);
            }
            let said = trial.stdout(Stdio::null()).stderr(Stdio::piped()).output()?;
            let log = String::from_utf8_lossy(&said.stderr).into_owned();
            let first = hunt.first(&log, lasts as f64);
            if said.status.code() == Some(2) {
                hunt.broken_off += 1;
                eprintln!("{} seed {seed} was broken off: {log}", bug.name);
            }
            if bug.name == CONTROL && first.is_some() {
                eprintln!("control {} seed {seed}:\n{log}", bug.store.name());
            }
            let _ = std::fs::remove_dir_all(below); // There is none if the trial did not start.
            if let Some(at) = first {
                hunt.found_at.push(before as f64 + at);
                break;
            }
            before += lasts;
        }
        Ok(hunt)
    }

    /// Counts what a trial said of its violations; returns when the first was, which is at its end
    /// for what is left then.
    fn first(&mut self, said: &str, end: f64) -> Option<f64> {
        let shown = said.lines().filter_map(|line| line.strip_prefix("--- ")?.split(' ').next());
        let rules: Vec<_> = shown.collect();
        for rule in &rules {
            *self.rules.entry((*rule).to_owned()).or_default() += 1;
        }
        let first = said.lines().find_map(|line| line.strip_prefix(FIRST)?.parse().ok());
        (!rules.is_empty()).then(|| first.unwrap_or(end))
    }

    fn add(&mut self, more: Self) {
        self.trials += more.trials;
        self.broken_off += more.broken_off;
        self.found_at.extend(more.found_at);
        for (rule, count) in more.rules {
            *self.rules.entry(rule).or_default() += count;
        }
    }

    /// Returns a row of the table: the rules that were broken most often come first.
    fn row(&self, name: &str, store: Store) -> String {
        let mut times = self.found_at.clone();
        times.sort_by(f64::total_cmp);
        let told = |at: Option<&f64>| at.map_or_else(|| "-".to_owned(), |at| format!("{at:.1}"));
        let (median, most) = (told(times.get(times.len() / 2)), told(times.last()));
        let mut rules: Vec<_> = self.rules.iter().collect();
        rules.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        let rules: Vec<_> = rules.into_iter().map(|(rule, _)| rule.as_str()).collect();
        let found = format!("{} of {}", times.len(), self.trials);
        let rules = rules.join(" ");
        let mut row =
            format!("| {name} | {} | {found} | {rules} | {median} | {most} |", store.name());
        if self.broken_off > 0 {
            row += &format!(" {} trials were broken off", self.broken_off);
        }
        row
    }
}

#[cfg(test)]
mod tests {
    use super::Hunt;
    use crate::servers::Store;

    #[test]
    fn the_first_violation_of_each_hunt_counts() {
        let hunt = |said: &str| {
            let mut hunt = Hunt { trials: 1, ..Hunt::default() };
            let first = hunt.first(said, 6.0);
            hunt.found_at.extend(first);
            hunt
        };
        let mut all = hunt("first violation at 1.25\n--- I1 exclusion of key 3 at 2.5\n  x\n");
        all.add(hunt("nothing\n"));
        all.add(hunt("--- left of key 0 at 0.0\n--- I1 exclusion of key 4 at 1.25\n"));
        all.add(Hunt { trials: 1, broken_off: 1, ..Hunt::default() });
        let row = all.row("Bug", Store::Redis);
        let told = "| Bug | redis | 2 of 4 | I1 left | 6.0 | 6.0 | 1 trials were broken off";
        assert_eq!(row, told);
    }
}
