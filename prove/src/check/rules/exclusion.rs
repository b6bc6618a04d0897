//! I1 (two may rely on the key), I9 (a lease ended early), I8 (one token has two leases), I6 (a release took
//! another's lease) and I11 (no one sequence of leases explains the answers).

use std::collections::HashSet;

use super::Court;
use crate::check::context::MS;
use crate::check::key::Number;
use crate::check::lease::Lease;
use crate::history::{Kind, NO_TOKEN, Nanos, Outcome};

pub(super) fn judge(court: &mut Court<'_>) {
    two_rely(court);
    early_end(court);
    told_late(court);
    witness(court);
}

/// I1: sweeps over the times in which holders may rely on their leases.
fn two_rely(court: &mut Court<'_>) {
    let mut relied: Vec<(Nanos, Nanos, usize)> = Vec::with_capacity(court.key.leases.len());
    for (index, lease) in court.key.leases.iter().enumerate() {
        for one in court.key.evidence_of(lease) {
            if one.rely > one.to {
                relied.push((one.to, one.rely, index));
            }
        }
    }
    relied.sort_unstable();
    // The one that lasts longest so far.
    let mut last: Option<(Nanos, usize)> = None;
    let mut told: HashSet<(usize, usize)> = HashSet::new();
    for (from, until, index) in relied {
        let Some((end, before)) = last else {
            last = Some((until, index));
            continue;
        };
        if before != index && from < end {
            let pair = (before.min(index), before.max(index));
            if told.insert(pair) {
                overlap(court, pair, (from, end.min(until)));
            }
        }
        if until > end {
            last = Some((until, index));
        }
    }
}

fn overlap(court: &mut Court<'_>, (one, other): (usize, usize), (from, until): (Nanos, Nanos)) {
    let (one, other) = (&court.key.leases[one], &court.key.leases[other]);
    let promised = court.context.promises_exclusion(one.lo.min(other.lo), from);
    let what = format!(
        "leases {} (token {}) and {} (token {}) may both be relied on for {} us",
        one.fence,
        one.token,
        other.fence,
        other.token,
        (until - from) / 1_000
    );
    let same_token = one.token == other.token && one.token != NO_TOKEN;
    court.find("I1", from, promised, what.clone());
    if same_token {
        court.find("I8", from, promised, what);
    }
}

/// I9: nobody ended the lease, and a later one was granted before it was over.
fn early_end(court: &mut Court<'_>) {
    let mut next: Option<usize> = None;
    let mut found = Vec::new();
    for (index, lease) in court.key.leases.iter().enumerate().rev() {
        if let Some(next) = next
            && (lease.lo..lease.sure).contains(&court.key.leases[next].hi)
        {
            found.push((index, next));
        }
        if next.is_none_or(|next| lease.hi < court.key.leases[next].hi) {
            next = Some(index);
        }
    }
    for (index, next) in found {
        let (lease, next) = (&court.key.leases[index], &court.key.leases[next]);
        let promised = court.context.promises_exclusion(lease.lo, next.hi);
        let what = format!(
            "lease {} (token {}) lasts {} us beyond the grant of lease {} (token {})",
            lease.fence,
            lease.token,
            (lease.sure - next.hi) / 1_000,
            next.fence,
            next.token
        );
        let rule = if foreign_release(court, lease, next.hi) { "I6" } else { "I9" };
        court.find(rule, next.hi, promised, what);
    }
}

/// Returns whether somebody released the key with another token while the lease was there.
fn foreign_release(court: &Court<'_>, lease: &Lease, until: Nanos) -> bool {
    let key = court.key;
    let end = key.operations.partition_point(|operation| operation.sent <= until);
    let recent = (0..end as Number).rev().map(|number| key.operation(number));
    let mut recent = recent.take_while(|operation| operation.sent >= lease.lo);
    recent.any(|operation| {
        operation.kind == Kind::Release
            && operation.token != lease.token
            && operation.outcome != Outcome::Unknown
    })
}

/// How much earlier than its own answer that of a later lease may be received.
const ANSWERS_CROSS: Nanos = 150 * MS;

/// I9: nobody ended the lease, and a later one was granted although half of what its client was told
/// is left of it should have been left by then.
///
/// The other half may have passed while the store answered. A process that is suspended between its
/// last look at the clock and its answer cannot know, and what is between it and its client may be
/// slow.
fn told_late(court: &mut Court<'_>) {
    let mut next = Nanos::MAX;
    let mut found = Vec::new();
    for lease in court.key.leases.iter().rev() {
        let ended = !lease.expires || lease.cap < Nanos::MAX;
        let left = court.key.operation(lease.first).said.ttl_ms.unwrap_or_default() * MS;
        if !ended && lease.begun && next.saturating_add(ANSWERS_CROSS) < lease.hi + left / 2 {
            found.push((lease, next));
        }
        next = next.min(lease.hi);
    }
    for (lease, next) in found {
        let (sent, told) = (court.key.operation(lease.first).sent, lease.hi);
        let excused = court.context.client_disturbed(sent, told)
            || court.context.suspended(sent, told)
            || !court.context.promises_exclusion(lease.lo, told.max(next));
        let what = format!(
            "lease {} was told {} us before or {} us after a later one was granted",
            lease.fence,
            next.saturating_sub(told) / 1_000,
            told.saturating_sub(next) / 1_000
        );
        court.find("I9", told, !excused, what);
    }
}

/// I11: each lease begins as early as it can, after the one before it.
fn witness(court: &mut Court<'_>) {
    let mut free: Nanos = 0;
    let (mut latest_start, mut latest_sure) = (0, 0);
    // When the first of those began that follow on one another without a gap.
    let mut since = 0;
    let mut found = Vec::new();
    for lease in &court.key.leases {
        let mut start = lease.lo.max(free);
        since = if start > lease.lo { lease.lo.min(since) } else { lease.lo };
        if start > lease.hi {
            // A pair that contradicts itself is told by I9 or I2.
            if latest_sure <= lease.hi && latest_start <= lease.hi {
                found.push((lease.fence, since, lease.hi, start));
            }
            start = lease.lo;
        }
        let lasts = start.saturating_add(lease.ttl).min(lease.cap);
        free = start.max(lease.sure).max(lasts);
        latest_start = latest_start.max(lease.lo);
        latest_sure = latest_sure.max(lease.sure);
    }
    for (fence, since, hi, start) in found {
        let promised = court.context.promises_exclusion(since, start);
        let late = (start - hi) / 1_000;
        let what = format!("lease {fence} can begin only {late} us after it was answered");
        court.find("I11", hi, promised, what);
    }
}
