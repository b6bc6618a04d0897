//! The proof of the proof: a service with one bug has to fail a trial, and by an invariant.
//!
//! Each trial is a process of its own, because its services end with the process.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::campaign::bugs::{Bug, SeededTree, bugs};
use crate::servers::Store;

/// How many trials, one after another, share the time of a hunt: the first that fails ends it. Those of
/// odd and of even seeds strike other faults.
const PARTS: u64 = 4;

/// What became of the hunts for one bug.
#[derive(Clone, Debug, Default)]
pub struct Hunt {
    /// How many hunts there were.
    pub trials: usize,
    /// After how many seconds of load the first violation was, in each hunt that had one.
    pub found_at: Vec<f64>,
    /// How often each rule was broken.
    pub rules: BTreeMap<String, usize>,
}

/// Hunts each of these bugs so many times, for so many seconds at most, and prints a row for each.
/// Returns whether each was found in at least 19 of 20.
///
/// # Errors
/// A trial could not be started.
pub fn hunt_all(names: &[&str], seconds: u64, trials: usize) -> io::Result<bool> {
    let mut all = true;
    println!("| bug | store | found | broken | median s |\n|---|---|---|---|---|");
    let mut copy = SeededTree::new()?;
    let wanted = |name: &str| names.is_empty() || names.contains(&name);
    for bug in bugs()?.into_iter().filter(|bug| wanted(bug.name)) {
        let binary = copy.build(&bug)?;
        let mut hunt = Hunt::default();
        for number in 0..trials as u64 {
            hunt.once(&binary, &bug, seconds, number)?;
        }
        println!("{}", hunt.row(bug.name, bug.store));
        all &= hunt.found_at.len() * 20 >= trials * 19;
    }
    Ok(all)
}

impl Hunt {
    fn once(&mut self, binary: &Path, bug: &Bug, seconds: u64, number: u64) -> io::Result<()> {
        self.trials += 1;
        let lasts = (seconds / PARTS).to_string();
        for part in 0..PARTS {
            let seed = (number * PARTS + part).to_string();
            let mut trial = Command::new(std::env::current_exe()?);
            trial.args(["run", bug.store.name(), &lasts, &seed]).env("LOCKKEEPER_BIN", binary);
            if !bug.kinds.is_empty() {
                trial.env("PROVE_KINDS", bug.kinds);
            }
            let said = trial.stdout(Stdio::null()).stderr(Stdio::piped()).output()?;
            if let Some(at) = self.first(&String::from_utf8_lossy(&said.stderr)) {
                self.found_at.push((part * (seconds / PARTS)) as f64 + at);
                break;
            }
        }
        Ok(())
    }

    /// Counts what a trial said of its violations; returns when the first was.
    fn first(&mut self, said: &str) -> Option<f64> {
        let mut first: Option<f64> = None;
        for line in said.lines() {
            let Some((rule, rest)) =
                line.strip_prefix("--- ").and_then(|rest| rest.split_once(' '))
            else {
                continue;
            };
            *self.rules.entry(rule.to_owned()).or_default() += 1;
            let at = rest.rsplit(' ').next().and_then(|at| at.trim_end_matches('s').parse().ok());
            first = first.into_iter().chain(at).reduce(f64::min);
        }
        first
    }

    /// Returns a row of the table.
    fn row(&self, name: &str, store: Store) -> String {
        let mut times = self.found_at.clone();
        times.sort_by(f64::total_cmp);
        let median =
            times.get(times.len() / 2).map_or_else(|| "-".to_owned(), |at| format!("{at:.1}"));
        let rules: Vec<_> = self.rules.keys().map(String::as_str).collect();
        let found = format!("{} of {}", times.len(), self.trials);
        format!("| {name} | {} | {found} | {} | {median} |", store.name(), rules.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::Hunt;
    use crate::servers::Store;

    #[test]
    fn the_first_violation_of_each_trial_counts() {
        let mut hunt = Hunt { trials: 3, ..Hunt::default() };
        let told = "a\n--- I1 of key 3 at 2.500\n  x\n--- I2 of key 4 at 1.250\n";
        assert_eq!(hunt.first(told), Some(1.25));
        assert_eq!(hunt.first("nothing\n"), None);
        assert_eq!(hunt.first("--- I1 of key 3 at 7.000\n"), Some(7.0));
        hunt.found_at = vec![1.25, 7.0];
        let row = hunt.row("Bug", Store::Redis);
        assert_eq!(row, "| Bug | redis | 2 of 3 | I1 I2 | 7.0 |");
    }
}
