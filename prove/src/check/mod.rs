//! The judge: holds a history against the invariants, and says what it could not decide.
//!
//! Every time in it is a bound that holds whatever happened while a question was under way, so what it
//! calls a violation is one. What the record does not decide is counted, not guessed.

mod bounds;
mod context;
mod ends;
#[cfg(test)]
mod exceptions;
mod key;
mod lease;
#[cfg(test)]
pub(crate) mod little;
mod operation;
mod report;
mod rules;
mod share;
#[cfg(test)]
mod sharing;
#[cfg(test)]
mod simulation;
mod spans;
#[cfg(test)]
mod tests;

pub(crate) use report::{Report, Violation, Wanted};

use crate::history::{Kind, Line, Operation, Outcome};
use context::Context;
use key::Key;

/// Checks a history, whatever it has too little of.
pub(crate) fn check(lines: &[Line]) -> Report {
    check_wanted(lines, &Wanted::default())
}

/// Checks a history, which is refused if it has less than what is wanted.
pub(crate) fn check_wanted(lines: &[Line], wanted: &Wanted) -> Report {
    let mut report = Report::default();
    let Some(Line::Run(run)) = lines.first() else {
        report.refused.push("the first line does not say how the run was made".to_owned());
        return report;
    };
    let context = Context::new(run, lines);
    let operations = lines.iter().filter_map(|line| match line {
        Line::Operation(operation) => Some(operation),
        _ => None,
    });
    let mut operations: Vec<&Operation> = operations.collect();
    for fault in context.faults() {
        *report.faults.entry(fault.kind.clone()).or_default() += 1;
    }
    let asked = |one: &&&Operation| !matches!(one.kind, Kind::Alive | Kind::HoldEnd);
    let asked = operations.iter().filter(asked);
    let unknown = asked.clone().filter(|one| one.outcome == Outcome::Unknown);
    report.count("operations", asked.count());
    report.count("unknowns", unknown.count());
    report.count("fault_kinds", report.faults.len());
    operations.sort_by_key(|operation| (operation.key, operation.sent));
    let writes = rules::resource::writes(lines);
    for group in operations.chunk_by(|one, other| one.key == other.key) {
        let key = Key::new(&context, group[0].key, group.to_vec());
        let leases = bounds::leases(&context, &key);
        rules::judge(&context, &key, &leases, &mut report);
        if let Some(writes) = writes.get(&key.key) {
            rules::resource::judge(&context, (&leases, writes), &mut report);
        }
    }
    rules::resource::left(lines, &mut report);
    report.violations.sort_by_key(|violation| (violation.at, violation.key, violation.rule));
    report.hold_against(wanted);
    report
}
