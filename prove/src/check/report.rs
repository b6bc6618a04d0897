//! The judgement on a history: what was broken, what was seen, and whether that was enough.

use std::collections::BTreeMap;
use std::fmt;

use crate::history::Nanos;

/// A rule that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Violation {
    /// `I1` to `I12` of the invariants, `S1` to `S4` of those of shared keys, `no` (a definite no that was a yes), `fence` (the resource took a late
    /// write) or `left` (something remained at the end).
    pub(crate) rule: &'static str,
    /// The key; 0 for `left`.
    pub(crate) key: u32,
    /// When it showed.
    pub(crate) at: Nanos,
    /// What was seen, for people.
    pub(crate) what: String,
    /// Whether the store promises the rule under the faults of that time.
    pub(crate) promised: bool,
}

/// What a history had of that which it is about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Counted {
    /// Questions of clients; events of streams are none.
    pub(crate) operations: u64,
    /// Leases that somebody was told of.
    pub(crate) grants: u64,
    /// Leases that went to a request that had waited.
    pub(crate) handoffs: u64,
    /// Leases that nobody ended before their time.
    pub(crate) expiries: u64,
    /// Questions whose effect nobody knew.
    pub(crate) unknowns: u64,
    /// Definite refusals.
    pub(crate) refusals: u64,
    /// Tokens that had more than one lease of a key.
    pub(crate) reused_tokens: u64,
    /// Writes to a resource.
    pub(crate) writes: u64,
    /// Faults by their kind.
    pub(crate) faults: BTreeMap<String, u64>,
    /// Grants, one after the other by number, whose order in time the record does not show.
    pub(crate) unordered_grants: u64,
    /// Hand-overs of which the record does not show who stood in line before.
    pub(crate) unordered_waiters: u64,
    /// What there was of leases that share keys.
    pub(crate) shared: SharedCounted,
}

/// What a history had of leases that share keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SharedCounted {
    /// Keys that leases shared.
    pub(crate) keys: u64,
    /// Questions for them.
    pub(crate) operations: u64,
    /// Leases of them, of all kinds.
    pub(crate) grants: u64,
    /// Those that went to a request that had waited.
    pub(crate) handoffs: u64,
    /// Those that may be relied on beside another one.
    pub(crate) together: u64,
    /// Answers at which a key had as many holders as one of them allows.
    pub(crate) full: u64,
    /// Leases that got other slots and kept their numbers.
    pub(crate) changes: u64,
    /// Leases that became exclusive, or readers that got slots, under another number.
    pub(crate) anew: u64,
    /// Changes that the others did not allow.
    pub(crate) refused_changes: u64,
    /// Leases of which the record does not show when they may be relied on.
    pub(crate) unsure: u64,
}

impl SharedCounted {
    /// Adds what another history had.
    pub(crate) fn add(&mut self, more: &Self) {
        self.keys += more.keys;
        self.operations += more.operations;
        self.grants += more.grants;
        self.handoffs += more.handoffs;
        self.together += more.together;
        self.full += more.full;
        self.changes += more.changes;
        self.anew += more.anew;
        self.refused_changes += more.refused_changes;
        self.unsure += more.unsure;
    }
}

impl fmt::Display for SharedCounted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { operations, grants, handoffs, together, full, .. } = self;
        let Self { changes, anew, refused_changes, unsure, .. } = self;
        write!(
            f,
            "shared: operations={operations} grants={grants} handoffs={handoffs} \
             together={together} full={full} changes={changes} anew={anew} \
             refused_changes={refused_changes} unsure={unsure}"
        )
    }
}

/// The least that a run has to have to say anything. Everything is 0 unless asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Wanted {
    /// See [`Counted::operations`].
    pub(crate) operations: u64,
    /// See [`Counted::grants`].
    pub(crate) grants: u64,
    /// See [`Counted::handoffs`].
    pub(crate) handoffs: u64,
    /// See [`Counted::expiries`].
    pub(crate) expiries: u64,
    /// Unknowns, if there was any fault.
    pub(crate) unknowns: u64,
    /// How many kinds of faults.
    pub(crate) fault_kinds: u64,
    /// How many faults of each kind that there was.
    pub(crate) faults_each: u64,
    /// See [`SharedCounted::grants`]; this and the next are asked of a
    /// history only if leases share keys in it.
    pub(crate) shared_grants: u64,
    /// See [`SharedCounted::handoffs`].
    pub(crate) shared_handoffs: u64,
    /// See [`SharedCounted::full`].
    pub(crate) shared_full: u64,
    /// See [`SharedCounted::changes`] and [`SharedCounted::anew`], each of which it has to have.
    pub(crate) shared_changes: u64,
    /// The most of a hundred pairs of grants that may be without an order; 0 asks for nothing.
    pub(crate) unordered_percent: u64,
}

/// The judgement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    /// All that is promised and was broken; of the rest no more than [`Report::SHOWN`] for each rule.
    pub(crate) violations: Vec<Violation>,
    /// How often each rule was broken that was not promised at that time.
    pub(crate) not_promised: BTreeMap<&'static str, u64>,
    /// What there was.
    pub(crate) counted: Counted,
    /// Why the run says too little; empty if it says enough.
    pub(crate) refused: Vec<String>,
}

impl Report {
    /// How many violations of what is not promised are kept for each rule.
    pub(crate) const SHOWN: u64 = 100;

    /// Returns whether all that is promised was kept, and the run says enough.
    pub(crate) fn passed(&self) -> bool {
        self.refused.is_empty() && self.broken().next().is_none()
    }

    /// Returns the violations of what is promised.
    pub(crate) fn broken(&self) -> impl Iterator<Item = &Violation> {
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
        let shared = &counted.shared;
        if shared.keys > 0 {
            least.extend([
                ("grants of shared keys", shared.grants, wanted.shared_grants),
                ("hand-overs of shared keys", shared.handoffs, wanted.shared_handoffs),
                ("moments in which a shared key was full", shared.full, wanted.shared_full),
                ("changes of shares", shared.changes, wanted.shared_changes),
                ("leases that began anew", shared.anew, wanted.shared_changes),
            ]);
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
            "not ordered: {} grants, {} waiters",
            counted.unordered_grants, counted.unordered_waiters
        )?;
        if counted.shared.keys > 0 {
            writeln!(f, "{}", counted.shared)?;
        }
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
