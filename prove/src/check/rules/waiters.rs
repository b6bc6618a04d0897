//! I5: a look counts no claim that nobody waits with.

use super::Court;
use crate::check::context::SECOND;
use crate::check::key::{Number, is_claim};
use crate::history::{Kind, Nanos, Outcome};

/// A request that may have been in line.
struct InLine {
    from: Nanos,
    until: Nanos,
    /// The latest end of this one and of those that came before it.
    reach: Nanos,
}

pub(super) fn judge(court: &mut Court<'_>) {
    let line = line(court);
    let mut found = Vec::new();
    for operation in &court.key.operations {
        let counted = operation.said.waiters.filter(|_| operation.kind == Kind::Look);
        let (Some(counted), Some(answered)) = (counted, operation.answered) else { continue };
        let end = line.partition_point(|one| one.from <= answered);
        let near = line[..end].iter().rev().take_while(|one| one.reach >= operation.sent);
        let waiting = near.filter(|one| one.until >= operation.sent).count() as u64;
        if counted > waiting {
            found.push((answered, counted, waiting));
        }
    }
    for (at, counted, waiting) in found {
        let what = format!("a look counts {counted} waiters, and no more than {waiting} wait");
        court.find("I5", at, true, what);
    }
}

fn line(court: &Court<'_>) -> Vec<InLine> {
    let claims = (0 as Number..).zip(&court.key.operations);
    let waited = claims.filter(|(_, one)| is_claim(one) && one.asked.wait_ms > 0);
    // They were sent in this order.
    let mut reach = 0;
    let line = waited.map(|(number, one)| {
        let until = left(court, number);
        reach = until.max(reach);
        InLine { from: one.sent, until, reach }
    });
    line.collect()
}

/// Returns when a request is out of the line for certain.
fn left(court: &Court<'_>, number: Number) -> Nanos {
    let (operation, context) = (court.key.operation(number), court.context);
    let over = match operation.gone {
        Some(gone) if !context.delayed(operation.sent, gone + SECOND) => gone + SECOND,
        _ if operation.outcome == Outcome::Unknown => court.key.settled(number),
        _ => operation.answered.unwrap_or_else(|| court.key.settled(number)),
    };
    over.saturating_add(context.late(over))
}
