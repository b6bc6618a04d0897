//! The proof of the proof: a service with one bug has to fail a trial, and by an invariant; the sound
//! service, its control, has to pass them all.
//!
//! Each trial is a process of its own, because its services end with the process.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::thread;

use crate::campaign::bugs::{Bug, bugs, build, copied_tree};
use crate::campaign::directory;
use crate::campaign::show::FIRST;
use crate::servers::Store;

/// The trials of a hunt, one after another, each with its percentage of the hunt's time: the first that
/// fails ends it. Most bugs show within seconds. Trials of odd and of even seeds strike other faults.
const PARTS: [u64; 4] = [5, 10, 25, 60];

/// The name of the sound service among the bugs, on each store.
const CONTROL: &str = "control";

/// What became of one hunt.
#[derive(Clone, Debug, Default)]
struct Hunt {
    /// After how many seconds of load the first violation was, if there was one.
    found_at: Option<f64>,
    /// The rule of each violation.
    rules: Vec<String>,
}

/// Hunts each of these bugs, and the control on each store, so many times, for so many seconds at most,
/// and prints a row for each. Returns whether each bug was found in at least 19 of 20 hunts, and nothing
/// in the control.
pub(crate) fn hunt_all(names: &[&str], seconds: u64, trials: usize) -> io::Result<bool> {
    let control = |store| Bug { name: CONTROL, store, kinds: "", places: Vec::new() };
    let all = bugs()?.into_iter().chain(Store::ALL.map(control));
    let wanted: Vec<_> = all.filter(|bug| names.is_empty() || names.contains(&bug.name)).collect();
    let tree = &copied_tree()?;
    println!("| bug | store | found | broken | median s | most s |\n|---|---|---|---|---|---|");
    let (built, to_hunt) = mpsc::sync_channel(1);
    thread::scope(|scope| {
        scope.spawn(move || build_all(tree, wanted, &built));
        hunt_each(to_hunt, seconds, trials)
    })
}

/// A bug with the service that has it.
type Built = io::Result<(Bug, PathBuf)>;

/// Builds the services one after another, one ahead of the hunts.
fn build_all(tree: &Path, bugs: Vec<Bug>, built: &SyncSender<Built>) {
    for bug in bugs {
        let one = build(tree, &bug).map(|binary| (bug, binary));
        if built.send(one).is_err() {
            return; // A hunt has failed.
        }
    }
}

/// Hunts in each service as it is built; whether each bug was found, and nothing else.
fn hunt_each(built: Receiver<Built>, seconds: u64, trials: usize) -> io::Result<bool> {
    let mut all_found = true;
    for one in built {
        let (bug, binary) = one?;
        let hunts = (0..trials).map(|number| Hunt::once(&binary, &bug, seconds, number as u64));
        let hunts = hunts.collect::<io::Result<Vec<_>>>()?;
        println!("{}", row(bug.name, bug.store, &hunts));
        let found = hunts.iter().filter(|hunt| hunt.found_at.is_some()).count();
        all_found &= if bug.name == CONTROL { found == 0 } else { found * 20 >= trials * 19 };
    }
    Ok(all_found)
}

impl Hunt {
    /// Hunts a bug once, and removes the files of its trials.
    fn once(binary: &Path, bug: &Bug, seconds: u64, number: u64) -> io::Result<Self> {
        let below = &directory().join("seeded-hunt");
        let (mut hunt, mut before) = (Self::default(), 0);
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
            hunt.hear(&log, before as f64, lasts as f64);
            if said.status.code() == Some(2) {
                eprintln!("{} seed {seed} was broken off: {log}", bug.name);
            }
            let _ = std::fs::remove_dir_all(below); // There is none if the trial did not start.
            if hunt.found_at.is_some() {
                if bug.name == CONTROL {
                    eprintln!("control {} seed {seed}:\n{log}", bug.store.name());
                }
                break;
            }
            before += lasts;
        }
        Ok(hunt)
    }

    /// Notes what a trial said of its violations, after so many seconds of earlier trials. Leases that are
    /// left at its end have no moment; they were found then.
    fn hear(&mut self, said: &str, before: f64, lasts: f64) {
        let shown = said.lines().filter_map(|line| line.strip_prefix("--- ")?.split(' ').next());
        self.rules.extend(shown.map(str::to_owned));
        let first = said.lines().find_map(|line| line.strip_prefix(FIRST)?.parse().ok());
        self.found_at = (!self.rules.is_empty()).then(|| before + first.unwrap_or(lasts));
    }
}

/// Returns a row of the table: the rules that were broken most often come first.
fn row(name: &str, store: Store, hunts: &[Hunt]) -> String {
    let mut times: Vec<_> = hunts.iter().filter_map(|hunt| hunt.found_at).collect();
    times.sort_by(f64::total_cmp);
    let told = |at: Option<&f64>| at.map_or_else(|| "-".to_owned(), |at| format!("{at:.1}"));
    let (median, most) = (told(times.get(times.len() / 2)), told(times.last()));
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for rule in hunts.iter().flat_map(|hunt| &hunt.rules) {
        *counts.entry(rule).or_default() += 1;
    }
    let mut rules: Vec<_> = counts.keys().copied().collect();
    rules.sort_by_key(|rule| std::cmp::Reverse(counts[rule]));
    let (found, rules) = (format!("{} of {}", times.len(), hunts.len()), rules.join(" "));
    format!("| {name} | {} | {found} | {rules} | {median} | {most} |", store.name())
}

#[cfg(test)]
mod tests {
    use super::{Hunt, row};
    use crate::servers::Store;

    #[test]
    fn the_first_violation_of_each_hunt_counts() {
        let hunt = |said: &str| {
            let mut hunt = Hunt::default();
            hunt.hear(said, 0.0, 6.0);
            hunt
        };
        let hunts = [
            hunt("first violation at 1.25\n--- I1 exclusion of key 3 at 2.5\n  x\n"),
            hunt("nothing\n"),
            hunt("--- left of key 0 at 0.0\n--- I1 exclusion of key 4 at 1.25\n"),
            hunt(""),
        ];
        let told = "| Bug | redis | 2 of 4 | I1 left | 6.0 | 6.0 |";
        assert_eq!(row("Bug", Store::Redis, &hunts), told);
    }
}
