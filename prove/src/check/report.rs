//! The judgement on a history: what was broken, what was seen, and whether that was enough.

use std::collections::BTreeMap;
use std::fmt;

use crate::history::Nanos;

/// A rule that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// `I1` to `I12` of the invariants, `no` (a definite no that was a yes), `fence` (the resource took a late
    /// write) or `left` (something remained at the end).
    pub rule: &'static str,
    /// The key; 0 for `left`.
    pub key: u32,
    /// When it showed.
    pub at: Nanos,
    /// What was seen, for people.
    pub what: String,
    /// Whether the store promises the rule under the faults of that time.
    pub promised: bool,
}

/// What a history had of that which it is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Questions of clients; events of streams are none.
    pub operations: u64,
    /// Leases that somebody was told of.
    pub grants: u64,
    /// Leases that went to a request that had waited.
    pub handoffs: u64,
    /// Leases that nobody ended before their time.
    pub expiries: u64,
    /// Questions whose effect nobody knew.
    pub unknowns: u64,
    /// Definite refusals.
    pub refusals: u64,
    /// Tokens that had more than one lease of a key.
    pub reused_tokens: u64,
    /// Writes to a resource.
    pub writes: u64,
    /// Faults by their kind.
    pub faults: BTreeMap<String, u64>,
    /// Grants, one after the other by number, whose order in time the record does not show.
    pub unordered_grants: u64,
    /// Hand-overs of which the record does not show who stood in line before.
    pub unordered_waiters: u64,
    /// Leases told by another number than before, which Redlock may do.
    pub renumbered: u64,
}

/// The least that a run has to have to say anything. Everything is 0 unless asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Wanted {
    /// See [`Counted::operations`].
    pub operations: u64,
    /// See [`Counted::grants`].
    pub grants: u64,
    /// See [`Counted::handoffs`].
    pub handoffs: u64,
    /// See [`Counted::expiries`].
    pub expiries: u64,
    /// Unknowns, if there was any fault.
    pub unknowns: u64,
    /// How many kinds of faults.
    pub fault_kinds: u64,
    /// How many faults of each kind that there was.
    pub faults_each: u64,
    /// The most of a hundred pairs of grants that may be without an order; 0 asks for nothing.
    pub unordered_percent: u64,
}

/// The judgement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// All that is promised and was broken; of the rest no more than [`Report::SHOWN`] for each rule.
    pub violations: Vec<Violation>,
    /// How often each rule was broken that was not promised at that time.
    pub not_promised: BTreeMap<&'static str, u64>,
    /// What there was.
    pub counted: Counted,
    /// Why the run says too little; empty if it says enough.
    pub refused: Vec<String>,
}

impl Report {
    /// How many violations of what is not promised are kept for each rule.
    pub const SHOWN: u64 = 100;

    /// Returns whether all that is promised was kept, and the run says enough.
    pub fn passed(&self) -> bool {
        self.refused.is_empty() && self.broken().next().is_none()
    }

    /// Returns the violations of what is promised.
    pub fn broken(&self) -> impl Iterator<Item = &Violation> {
        self.violations.iter().filter(|violation| violation.promised)
    }

    pub(super) fn add(&mut self, violation: Violation) {
        if !violation.promised {
            let count = self.not_promised.entry(violation.rule).or_default();
            *count += 1;
            if *count > Self::SHOWN {
                return;
            }
        }
        self.violations.push(violation);
    }

    pub(super) fn hold_against(&mut self, wanted: &Wanted) {
        let counted = &self.counted;
        let mut least = vec![
            ("operations", counted.operations, wanted.operations),
            ("grants", counted.grants, wanted.grants),
            ("hand-overs", counted.handoffs, wanted.handoffs),
            ("expiries", counted.expiries, wanted.expiries),
            ("kinds of faults", counted.faults.len() as u64, wanted.fault_kinds),
        ];
        if !counted.faults.is_empty() {
            least.push(("unknowns", counted.unknowns, wanted.unknowns));
        }
        for (kind, &count) in &counted.faults {
            least.push((kind, count, wanted.faults_each));
        }
        let short = least.into_iter().filter(|(_, had, least)| had < least);
        let mut why: Vec<_> =
            short.map(|(what, had, least)| format!("{what}: {had} of {least}")).collect();
        let allowed = counted.grants * wanted.unordered_percent / 100;
        if wanted.unordered_percent > 0 && counted.unordered_grants > allowed {
            why.push(format!("grants without an order: {}", counted.unordered_grants));
        }
        self.refused.extend(why);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Counted { operations, grants, handoffs, expiries, unknowns, .. } = self.counted;
        let faults: u64 = self.counted.faults.values().sum();
        let violations = self.broken().count();
        writeln!(
            f,
            "operations={operations} grants={grants} handoffs={handoffs} expiries={expiries} \
             unknowns={unknowns} faults={faults} violations={violations}"
        )?;
        let counted = &self.counted;
        writeln!(
            f,
            "not ordered: {} grants, {} waiters; renumbered: {}",
            counted.unordered_grants, counted.unordered_waiters, counted.renumbered
        )?;
        for (rule, count) in &self.not_promised {
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
