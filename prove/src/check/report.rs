//! The judgement on a history: what was broken, what was seen, and whether that was enough.

use std::collections::BTreeMap;
use std::fmt;

use crate::history::Nanos;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    /// Its name among the [`rules`](super::rules).
    pub(crate) rule: &'static str,
    /// The key; 0 for `left`.
    pub(crate) key: u32,
    pub(crate) at: Nanos,
    pub(crate) what: String,
    /// Whether the store promises the rule under the faults of that time.
    pub(crate) promised: bool,
}

/// What a history had, by name: `grants`, `shared_grants` of keys that leases share, and so on.
pub(crate) type Counts = BTreeMap<&'static str, u64>;

/// The least of each count that a run has to have to say anything.
pub(crate) type Wanted = Vec<(&'static str, u64)>;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// All that was broken, also what is not promised at that time.
    pub(crate) violations: Vec<Violation>,
    pub(crate) counts: Counts,
    pub(crate) faults: BTreeMap<String, u64>,
    /// Why the run says too little; empty if it says enough.
    pub(crate) refused: Vec<String>,
}

impl Report {
    /// Returns whether all that is promised was kept, and the run says enough.
    pub(crate) fn passed(&self) -> bool {
        self.refused.is_empty() && self.broken().next().is_none()
    }

    pub(crate) fn broken(&self) -> impl Iterator<Item = &Violation> {
        self.violations.iter().filter(|violation| violation.promised)
    }

    /// Returns how often each rule was broken that was not promised at that time.
    pub(crate) fn not_promised(&self) -> Counts {
        let mut counts = Counts::new();
        for violation in self.violations.iter().filter(|violation| !violation.promised) {
            *counts.entry(violation.rule).or_default() += 1;
        }
        counts
    }

    pub(super) fn count(&mut self, name: &'static str, more: usize) {
        *self.counts.entry(name).or_default() += more as u64;
    }

    /// Adds what one trial of several came to.
    pub(crate) fn add_trial(&mut self, name: &str, more: &Self) {
        self.violations.extend(more.violations.iter().cloned());
        self.refused.extend(more.refused.iter().map(|why| format!("{name}: {why}")));
        add(&mut self.counts, &more.counts);
        add(&mut self.faults, &more.faults);
    }

    /// Returns the last line of a campaign.
    pub(crate) fn line(&self, seed: u64) -> String {
        let [operations, grants, handoffs] = ["operations", "grants", "handoffs"]
            .map(|name| self.counts.get(name).copied().unwrap_or(0));
        let (faults, violations) = (self.faults.values().sum::<u64>(), self.broken().count());
        format!(
            "operations={operations} grants={grants} handoffs={handoffs} faults={faults} \
             violations={violations} seed={seed}"
        )
    }

    /// Refuses a run that had less than is wanted: of unknowns only if there were faults, and of shared
    /// keys only if there were any.
    pub(super) fn hold_against(&mut self, wanted: &Wanted) {
        for &(name, least) in wanted {
            let had = self.counts.get(name).copied().unwrap_or(0);
            let meant = match name {
                "unknowns" => !self.faults.is_empty(),
                name => !name.starts_with("shared_") || self.counts.contains_key("shared_keys"),
            };
            if meant && had < least {
                self.refused.push(format!("{name}: {had} of {least}"));
            }
        }
    }
}

fn add<N: Clone + Ord>(total: &mut BTreeMap<N, u64>, more: &BTreeMap<N, u64>) {
    for (name, count) in more {
        *total.entry(name.clone()).or_default() += count;
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, count) in &self.counts {
            write!(f, "{name}={count} ")?;
        }
        let faults: u64 = self.faults.values().sum();
        writeln!(f, "faults={faults} violations={}", self.broken().count())?;
        for (rule, count) in self.not_promised() {
            writeln!(f, "not promised: {rule} {count} times")?;
        }
        for why in &self.refused {
            writeln!(f, "too little: {why}")?;
        }
        for Violation { rule, key, at, what, .. } in self.broken() {
            writeln!(f, "{rule} key {key} at {:.6} s: {what}", *at as f64 / 1e9)?;
        }
        Ok(())
    }
}
