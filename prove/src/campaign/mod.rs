//! A campaign: each store in turn, under load and faults, and then held against its promises.
//!
//! [`trial`] is one store for a while, [`show`] tells people of a violation, and [`seeded`] shows that
//! seeded [`bugs`] are found.

pub(crate) mod bugs;
pub(crate) mod seeded;
pub(crate) mod show;
pub(crate) mod trial;

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::Instant;

use crate::campaign::trial::Trial;
use crate::check::{Report, Wanted, check_wanted};
use crate::servers::Store;

/// What a trial needs beside its load: its start, its end, and its check.
const OVERHEAD: Duration = Duration::from_secs(13);

/// The longest load of a trial: its history has to fit into memory.
const LONGEST: Duration = Duration::from_secs(300);

const SHORTEST: Duration = Duration::from_secs(5);

/// The longest load that a store has in one round, if its time is for no more.
const ONE_ROUND: Duration = Duration::from_secs(40);

#[derive(Clone, Debug)]
pub(crate) struct Campaign {
    pub(crate) lasts: Duration,
    /// From which everything that is left to chance follows.
    pub(crate) seed: u64,
    pub(crate) stores: Vec<Store>,
    pub(crate) binary: PathBuf,
    pub(crate) directory: PathBuf,
}

impl Campaign {
    pub(crate) fn from_env() -> io::Result<Self> {
        let seconds = variable("PROVE_SECONDS")?.unwrap_or(600);
        let names = std::env::var("PROVE_STORES").unwrap_or_default();
        let named = names.split([',', ' ']).filter(|name| !name.is_empty());
        let wrong = |name| io::Error::other(format!("PROVE_STORES: no store {name}"));
        let stores: io::Result<Vec<_>> =
            named.map(|name| Store::of(name).ok_or_else(|| wrong(name))).collect();
        let stores = Some(stores?).filter(|stores| !stores.is_empty());
        Ok(Self {
            lasts: Duration::from_secs(seconds),
            seed: variable("PROVE_SEED")?.unwrap_or_else(|| fastrand::u64(..1_000_000_000)),
            stores: stores.unwrap_or_else(|| Store::ALL.to_vec()),
            binary: binary()?,
            directory: directory(),
        })
    }

    /// Runs it, and prints what there is to say on the way.
    pub(crate) async fn run(&self) -> io::Result<Report> {
        let mut outcome = Report::default();
        let began = Instant::now();
        let (rounds, load) = self.rounds();
        for round in 0..rounds {
            for (number, &store) in (0..).zip(&self.stores) {
                let seed = self.seed + u64::from(round) * (self.stores.len() as u64 | 1) + number;
                let trial = Trial::new(store, load, seed, &self.binary, &self.directory);
                self.one(&trial, &mut outcome).await;
                let left = self.lasts.saturating_sub(began.elapsed());
                eprintln!("about {} s of the campaign are left", left.as_secs());
            }
        }
        Ok(outcome)
    }

    /// Returns how often each store has its turn, and for how long it then has a load. Two rounds at least,
    /// where there is time: half of the kinds of faults exclude the others.
    fn rounds(&self) -> (u32, Duration) {
        let time = self.lasts / u32::try_from(self.stores.len()).unwrap_or(1);
        let longest = (LONGEST + OVERHEAD).as_secs();
        let least = if time > ONE_ROUND + OVERHEAD { 2 } else { 1 };
        let rounds = time.as_secs().div_ceil(longest).max(least);
        let rounds = u32::try_from(rounds).unwrap_or(u32::MAX);
        (rounds, (time / rounds).saturating_sub(OVERHEAD).clamp(SHORTEST, LONGEST))
    }

    /// Runs one trial and adds what it came to.
    async fn one(&self, trial: &Trial, outcome: &mut Report) {
        let name = format!("{} seed {}", trial.store.name(), trial.seed);
        eprintln!("{name}: {} s", trial.lasts.as_secs());
        let lines = match trial.run().await {
            Ok(lines) => lines,
            Err(error) => {
                eprintln!("{name}: {error}; logs: {}", trial.logs().display());
                outcome.refused.push(format!("{name}: {error}"));
                return;
            }
        };
        let report = check_wanted(&lines, &wanted(trial.store, trial.lasts));
        show::report(&report, &lines);
        outcome.add_trial(&name, &report);
        let broken = report.broken().next().is_some();
        if broken {
            eprintln!("{name}: history {}", trial.history().display());
        } else {
            // What cannot be removed is in nobody's way.
            let _ = std::fs::remove_file(trial.history());
            let _ = std::fs::remove_dir_all(trial.logs());
            let _ = std::fs::remove_dir(&trial.directory);
        }
    }
}

/// Returns the least that a trial of this length has to have, on a machine that is busy.
pub(crate) fn wanted(store: Store, lasts: Duration) -> Wanted {
    let seconds = lasts.as_secs();
    // A far store answers less often.
    let full = if store == Store::RedisFar { seconds / 4 } else { seconds };
    vec![
        ("operations", 100 * seconds),
        ("grants", 20 * seconds),
        ("handoffs", seconds),
        ("expiries", seconds),
        ("unknowns", seconds / 2),
        ("shared_grants", 2 * seconds),
        ("shared_handoffs", seconds / 2),
        ("shared_full", full),
        ("replaced", seconds / 2),
        ("shared_replaced", seconds / 4),
        ("late", seconds / 4),
        ("fault_kinds", 2),
    ]
}

pub(crate) fn directory() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map(PathBuf::from);
    target.unwrap_or_else(|| workspace().join("target")).join("prove")
}

pub(crate) fn binary() -> io::Result<PathBuf> {
    let named = std::env::var_os("LOCKKEEPER_BIN").map(PathBuf::from);
    let path = named.unwrap_or_else(|| workspace().join("target/release/lockkeeper"));
    std::fs::canonicalize(&path).map_err(|error| {
        io::Error::other(format!("{}: {error}; LOCKKEEPER_BIN names another", path.display()))
    })
}

fn workspace() -> &'static Path {
    let own = Path::new(env!("CARGO_MANIFEST_DIR"));
    own.parent().unwrap_or(own)
}

fn variable(name: &str) -> io::Result<Option<u64>> {
    let Ok(text) = std::env::var(name) else { return Ok(None) };
    let wrong = |_| io::Error::other(format!("{name}={text} is no number"));
    text.parse().map(Some).map_err(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn campaign(seconds: u64, stores: &[Store]) -> Campaign {
        Campaign {
            lasts: Duration::from_secs(seconds),
            seed: 1,
            stores: stores.to_vec(),
            binary: PathBuf::from("/dev/null"),
            directory: PathBuf::from("/dev/null"),
        }
    }

    #[tokio::test]
    async fn a_campaign_whose_trials_are_all_refused_ends_after_its_rounds() {
        let outcome = campaign(60, &[Store::Redis]).run().await.unwrap();
        assert_eq!(outcome.refused.len(), 2);
    }

    #[test]
    fn the_rounds_of_a_campaign_take_its_time() {
        for (seconds, rounds) in [(400, 1), (600, 2), (5_000, 2), (28_800, 12)] {
            let (told, load) = campaign(seconds, &Store::ALL).rounds();
            assert_eq!(
                (told, (load + OVERHEAD) * 8 * told),
                (rounds, Duration::from_secs(seconds))
            );
        }
        assert_eq!(campaign(60, &Store::ALL).rounds(), (1, SHORTEST));
    }
}
