//! The rules, each with the name that it has among the invariants.

mod answers;
mod exclusion;
mod fencing;
mod order;
pub(super) mod resource;
mod room;
mod served;
mod shared;
mod tokens;
mod told;
mod waiters;
mod wakeup;

use super::context::Context;
use super::key::Key;
use super::lease::Lease;
use super::report::{Report, Violation};
use crate::history::Nanos;

/// One key, and where what is found goes.
pub(super) struct Court<'c> {
    context: &'c Context<'c>,
    key: &'c Key<'c>,
    report: &'c mut Report,
}

impl Court<'_> {
    fn find(&mut self, rule: &'static str, at: Nanos, promised: bool, what: String) {
        let key = self.key.key;
        self.report.add(Violation { rule, key, at, what, promised });
    }
}

/// Holds one key against all rules.
pub(super) fn judge(context: &Context<'_>, key: &Key<'_>, report: &mut Report) {
    let mut court = Court { context, key, report };
    count(&mut court);
    fencing::judge(&mut court);
    if key.shared {
        shared::judge(&mut court);
    } else {
        exclusion::judge(&mut court);
    }
    order::judge(&mut court);
    told::judge(&mut court);
    tokens::judge(&mut court);
    waiters::judge(&mut court);
    let coverage = wakeup::judge(&mut court);
    answers::judge(&mut court, &coverage);
}

fn count(court: &mut Court<'_>) {
    let (key, report) = (court.key, &mut *court.report);
    let first = |lease: &&Lease| {
        let first = key.operation(lease.first);
        first.asked.wait_ms > 0 && first.said.waited_ms.is_some_and(|ms| ms > 0)
    };
    report.count("grants", key.leases.len());
    report.count("handoffs", key.leases.iter().filter(first).count());
    report.count("expiries", key.leases.iter().filter(|lease| lease.expires).count());
    // Leases that hold together need no order.
    let pairs = key.leases.windows(2).filter(|pair| !key.shared && pair[0].hi >= pair[1].lo);
    report.count("unordered_grants", pairs.count());
}
