//! The proof of the proof: a service with one bug has to fail a trial, and by an invariant.
//!
//! A build of the service with its feature `seeded-bugs` takes the name of a bug from the variable
//! `SEEDED_BUG`. Each trial is a process of its own, so that the variable reaches the service.

use std::collections::BTreeMap;
use std::io;
use std::process::{Command, Stdio};

use crate::servers::Store;

/// The bugs, and the store on which each of them shows.
pub const BUGS: &[(&str, Store)] = &[
    ("ReleaseWithoutCompare", Store::Redis),
    ("RefreshRevives", Store::Redis),
    ("RefreshAlwaysYes", Store::Redis),
    ("FenceCounts", Store::Redis),
    ("FenceAsText", Store::Redis),
    ("NewestFirst", Store::Redis),
    ("Barging", Store::Redis),
    ("HandOverSwallowed", Store::Redis),
    ("DeparturesIgnored", Store::Redis),
    ("DeadInstancesWait", Store::Redis3),
    ("RepeatIsHeld", Store::Redis),
    ("KeeperTakesLaterLease", Store::Redis3),
    ("NumberIgnored", Store::Redis),
    ("RedisEndsEarly", Store::Redis),
    ("NoBeforeTheLastAnswer", Store::Redis),
    ("GoneStays", Store::Redis),
    ("NothingTakenBack", Store::Redis),
    ("WholeTtl", Store::Redis),
    ("AnswerBeforeCommit", Store::Embedded),
    ("WallClock", Store::Embedded),
    ("EndsEarly", Store::Embedded),
    ("WholeSeconds", Store::Embedded),
    ("HalfIsEnough", Store::Redlock),
    ("NoTimeCheck", Store::Redlock),
    ("NoWriteBack", Store::Redlock),
    ("VotesStay", Store::Redlock),
    ("NobodyWaitsAfterLoss", Store::Redlock),
];

/// What became of the trials with one bug.
#[derive(Clone, Debug, Default)]
pub struct Hunt {
    /// How many trials there were.
    pub trials: usize,
    /// When the first violation was, in seconds of each trial that had one.
    pub found_at: Vec<f64>,
    /// How often each rule was broken.
    pub rules: BTreeMap<String, usize>,
}

/// Hunts each of these bugs in so many trials of so many seconds, and prints a row for each.
/// Returns whether each was found in at least 19 of 20.
///
/// # Errors
/// A trial could not be started.
pub fn hunt_all(names: &[&str], seconds: &str, trials: usize) -> io::Result<bool> {
    let mut all = true;
    println!("| bug | store | found | broken | median s |\n|---|---|---|---|---|");
    let wanted = |name: &str| names.is_empty() || names.contains(&name);
    for &(name, store) in BUGS.iter().filter(|(name, _)| wanted(name)) {
        let mut hunt = Hunt::default();
        for seed in 0..trials {
            hunt.one(name, store, seconds, seed)?;
        }
        println!("{}", hunt.row(name, store));
        all &= hunt.found_at.len() * 20 >= trials * 19;
    }
    Ok(all)
}

impl Hunt {
    fn one(&mut self, name: &str, store: Store, seconds: &str, seed: usize) -> io::Result<()> {
        let own = std::env::current_exe()?;
        let mut trial = Command::new(own);
        trial.args(["run", store.name(), seconds, &seed.to_string()]).env("SEEDED_BUG", name);
        let said = trial.stdout(Stdio::null()).stderr(Stdio::piped()).output()?;
        self.count(&String::from_utf8_lossy(&said.stderr));
        Ok(())
    }

    /// Counts what a trial said of its violations.
    fn count(&mut self, said: &str) {
        self.trials += 1;
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
        self.found_at.extend(first);
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
        let mut hunt = Hunt::default();
        hunt.count("a\n--- I1 of key 3 at 2.500\n  x\n--- I2 of key 4 at 1.250\n");
        hunt.count("nothing\n");
        hunt.count("--- I1 of key 3 at 7.000\n");
        let row = hunt.row("Bug", Store::Redis);
        assert_eq!(row, "| Bug | redis | 2 of 3 | I1 I2 | 7.0 |");
    }
}
