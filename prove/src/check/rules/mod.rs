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
    let key = court.key;
    let counted = &mut court.report.counted;
    counted.grants += key.leases.len() as u64;
    for lease in &key.leases {
        let first = key.operation(lease.first);
        let waited = first.asked.wait_ms > 0 && first.said.waited_ms.is_some_and(|ms| ms > 0);
        counted.handoffs += u64::from(waited);
        counted.expiries += u64::from(lease.expires);
    }
    // Leases that hold together need no order.
    for pair in key.leases.windows(2).filter(|_| !key.shared) {
        counted.unordered_grants += u64::from(pair[0].hi >= pair[1].lo);
    }
    let mut tokens: Vec<_> = key.leases.iter().map(|lease| lease.token).collect();
    tokens.sort_unstable();
    let reused = tokens.chunk_by(|one, other| one == other).filter(|leases| leases.len() > 1);
    counted.reused_tokens += reused.count() as u64;
}
