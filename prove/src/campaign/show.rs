//! Violations for people: what was broken, what happened around it, and what failed meanwhile.

use crate::check::{Report, Violation};
use crate::history::{Line, Nanos, Operation};

/// What stands before the moment of the first violation, in seconds.
pub(super) const FIRST: &str = "first violation at ";

/// How many violations of a trial are shown.
const SHOWN: usize = 5;

/// How many violations of what is not promised are shown, for each rule.
const EXAMPLES: usize = 3;

/// How many operations before and after it are shown.
const AROUND: usize = 10;

/// How long before a violation a fault may have ended that is shown.
const BEFORE: Nanos = 3_000_000_000;

/// Prints a report, and the first violations with what happened around them.
pub(crate) fn report(report: &Report, lines: &[Line]) {
    eprint!("{report}");
    for rule in report.not_promised().keys() {
        let unpromised = report.violations.iter().filter(|one| !one.promised && one.rule == *rule);
        for violation in unpromised.take(EXAMPLES) {
            let Violation { key, at, what, .. } = violation;
            eprintln!("not promised: {rule} key {key} at {}: {what}", seconds(*at));
        }
    }
    // What is left at the end has no moment.
    if let Some(first) = report.broken().map(|one| one.at).filter(|at| *at > 0).min() {
        eprintln!("{FIRST}{}", seconds(first));
    }
    for violation in report.broken().take(SHOWN) {
        eprintln!("--- {} of key {} at {}", violation.rule, violation.key, seconds(violation.at));
        for line in around(violation, lines) {
            eprintln!("{line}");
        }
    }
}

/// Returns the operations around a violation and the faults of that time.
fn around(violation: &Violation, lines: &[Line]) -> Vec<String> {
    let at = violation.at;
    let mut operations: Vec<&Operation> = lines
        .iter()
        .filter_map(|line| match line {
            Line::Operation(operation) if operation.key == violation.key => Some(operation),
            _ => None,
        })
        .collect();
    operations.sort_by_key(|operation| operation.sent);
    let middle = operations.partition_point(|operation| operation.sent <= at);
    let from = middle.saturating_sub(AROUND);
    let until = (middle + AROUND / 2).min(operations.len());
    let shown = operations[from..until].iter().map(|operation| told(operation));
    let faults = lines.iter().filter_map(|line| match line {
        Line::Fault(fault) if fault.from <= at && fault.until + BEFORE >= at => {
            let (from, until) = (seconds(fault.from), seconds(fault.until));
            Some(format!("  fault {} of {} {from} to {until}", fault.kind, fault.target))
        }
        _ => None,
    });
    shown.chain(faults).collect()
}

/// Returns an operation as it stands in the history, after its time.
fn told(operation: &Operation) -> String {
    let json = serde_json::to_string(operation).unwrap_or_default();
    format!("  {} {json}", seconds(operation.sent))
}

fn seconds(at: Nanos) -> String {
    format!("{:.6}", at as f64 / 1e9)
}
