//! The guarded resource, which refuses late writers by their numbers; and what is left at the end.

use super::{Court, EXCLUSION, FENCE, LEFT};
use crate::check::lease::Lease;
use crate::check::report::{Report, Violation};
use crate::history::{Left, Write};

/// Judges the writes of all keys that are to this one, in the order in which the resource decided. `fence`:
/// it took one under a lower number than one before it. I1: it refused one whose writer may rely on its
/// lease.
pub(super) fn judge(court: &mut Court<'_>, writes: &[&Write]) {
    let leases = &court.leases.all;
    let mut highest: Option<&Write> = None;
    for write in writes.iter().filter(|write| write.key == court.key.key) {
        let (at, number) = (write.at, (write.fencing_token, write.token));
        let lower = highest.filter(|highest| {
            (highest.fencing_token, highest.token) != number
                && highest.fencing_token >= write.fencing_token
        });
        if let Some(highest) = lower.filter(|_| write.taken) {
            let (low, high) = (write.fencing_token, highest.fencing_token);
            let what = format!("a write under lease {low} was taken after one under {high}");
            court.find(FENCE, at, true, what);
        }
        if write.taken && lower.is_none() {
            highest = Some(write);
        }
        let lease = leases.binary_search_by_key(&number, |lease| (lease.fence, lease.token));
        let lease = lease.ok().map(|index| &leases[index]);
        let relies =
            |lease: &&Lease<'_>| lease.evidence.iter().any(|one| one.to <= at && at < one.rely);
        if let Some(lease) = lease.filter(relies).filter(|_| !write.taken && !write.late) {
            let what = format!("lease {} may be relied on, and a write is late", lease.fence);
            let promised = court.context.promises_exclusion(lease.lo, at);
            court.find(EXCLUSION, at, promised, what);
        }
    }
}

/// `left`: something remained although all leases and their bookkeeping should be over.
pub(in crate::check) fn left(left: &Left, report: &mut Report) {
    if left.count > left.allowed {
        let what = format!("{} {} remained, {} may", left.count, left.what, left.allowed);
        report.violations.push(Violation { rule: LEFT, key: 0, at: 0, what, promised: true });
    }
}
