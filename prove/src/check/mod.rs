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
#[cfg(test)]
mod sharing;
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
    let mut operations = Vec::new();
    for line in lines {
        match line {
            Line::Operation(operation) => operations.push(operation),
            Line::Fault(fault) => *report.faults.entry(fault.kind.clone()).or_default() += 1,
            Line::Left(left) => rules::left(left, &mut report),
            Line::Run(_) => (),
        }
    }
    let asked = operations.iter().filter(|one| !matches!(one.kind, Kind::Alive | Kind::HoldEnd));
    let unknown = asked.clone().filter(|one| one.outcome == Outcome::Unknown);
    let late = asked.clone().filter(|one| one.late.is_some());
    report.count("operations", asked.clone().count());
    report.count("late", late.count());
    report.count("unknowns", unknown.count());
    report.count("fault_kinds", report.faults.len());
    operations.sort_by_key(|operation: &&Operation| (operation.key, operation.sent));
    for group in operations.chunk_by(|one, other| one.key == other.key) {
        let key = Key::new(&context, group);
        let leases = bounds::leases(&context, &key);
        rules::judge(&context, &key, &leases, &mut report);
    }
    report.violations.sort_by_key(|violation| (violation.at, violation.key, violation.rule));
    report.hold_against(wanted);
    report
}
