//! The guarded resource, which refuses late writers by their numbers; and what is left at the end.

use std::collections::HashMap;

use super::{EXCLUSION, FENCE, LEFT};
use crate::check::context::Context;
use crate::check::lease::Leases;
use crate::check::report::{Report, Violation};
use crate::history::{Line, Write};

/// Returns all writes by key, in the order in which the resource decided.
pub(in crate::check) fn writes(lines: &[Line]) -> HashMap<u32, Vec<&Write>> {
    let mut writes: HashMap<u32, Vec<&Write>> = HashMap::new();
    for line in lines {
        if let Line::Write(write) = line {
            writes.entry(write.key).or_default().push(write);
        }
    }
    writes
}

/// Judges the writes of a key. `fence`: the resource took a write under a lower number than one before
/// it. I1: it refused one whose writer may rely on its lease.
pub(in crate::check) fn judge(
    context: &Context<'_>,
    (leases, writes): (&Leases, &[&Write]),
    report: &mut Report,
) {
    let mut highest: Option<&Write> = None;
    for write in writes {
        let key = write.key;
        let at = write.at;
        let lower = highest.filter(|highest| {
            (highest.fencing_token, highest.token) != (write.fencing_token, write.token)
                && highest.fencing_token >= write.fencing_token
        });
        if let Some(highest) = lower.filter(|_| write.taken) {
            let (low, high) = (write.fencing_token, highest.fencing_token);
            let what = format!("a write under lease {low} was taken after one under {high}");
            report.add(Violation { rule: FENCE, key, at, what, promised: true });
        }
        if !write.taken && !write.late && relies(leases, write) {
            let what =
                format!("lease {} may be relied on, and a write is late", write.fencing_token);
            let promised = context.promises_exclusion(since(leases, write), at);
            report.add(Violation { rule: EXCLUSION, key, at, what, promised });
        }
        if write.taken && lower.is_none() {
            highest = Some(write);
        }
    }
}

/// `left`: something remained although all leases and their bookkeeping should be over.
pub(in crate::check) fn left(lines: &[Line], report: &mut Report) {
    for line in lines {
        if let Line::Left(left) = line
            && left.count > left.allowed
        {
            let what = format!("{} {} remained, {} may", left.count, left.what, left.allowed);
            report.add(Violation { rule: LEFT, key: 0, at: 0, what, promised: true });
        }
    }
}

fn relies(leases: &Leases, write: &Write) -> bool {
    let found = leases.evidence.partition_point(|one| one.fence < write.fencing_token);
    let same = leases.evidence[found..].iter().take_while(|one| one.fence == write.fencing_token);
    let mut same = same.filter(|one| one.token == write.token);
    same.any(|one| one.to <= write.at && write.at < one.rely)
}

fn since(leases: &Leases, write: &Write) -> u64 {
    let found = leases.all.partition_point(|lease| lease.fence < write.fencing_token);
    leases.all.get(found).map_or(write.at, |lease| lease.lo)
}
