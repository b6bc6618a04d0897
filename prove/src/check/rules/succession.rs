//! One exclusive lease after another. I9: each ends as late as it should, and is told in time. I6: no release
//! ends another token's. I11: one sequence of leases explains the answers. I1: a new lease tells no more
//! than is safe.

use super::{Court, END, EXCLUSION, RELEASE, SEQUENCE};
use crate::check::context::MS;
use crate::check::lease::Lease;
use crate::history::{Kind, Nanos, Outcome};

pub(super) fn judge(court: &mut Court<'_>) {
    for (lease, next) in court.leases.followed() {
        early_end(court, lease, next);
        told_late(court, lease, next);
    }
    witness(court);
    told_too_much(court);
}

/// I9: nobody ended the lease, and a later one was granted before it was over.
fn early_end(court: &mut Court<'_>, lease: &Lease<'_>, next: &Lease<'_>) {
    if (lease.lo..lease.sure).contains(&next.hi) {
        let promised = court.context.promises_exclusion(lease.lo, next.hi);
        let what = format!(
            "lease {} (token {}) lasts {} us beyond the grant of lease {} (token {})",
            lease.fence,
            lease.token,
            (lease.sure - next.hi) / 1_000,
            next.fence,
            next.token
        );
        let foreign = foreign_release(court, lease, next.hi);
        court.find(if foreign { RELEASE } else { END }, next.hi, promised, what);
    }
}

/// Returns whether somebody released the key with another token while the lease was there.
fn foreign_release(court: &Court<'_>, lease: &Lease<'_>, until: Nanos) -> bool {
    court.key.operations.after(lease.lo, until).map(|span| span.of).any(|operation| {
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
fn told_late(court: &mut Court<'_>, lease: &Lease<'_>, next: &Lease<'_>) {
    let (sent, told, next) = (lease.first.sent, lease.hi, next.hi);
    let ended = lease.cap < Nanos::MAX;
    let left = lease.first.told_ttl().unwrap_or_default();
    if !ended && lease.begun && next + ANSWERS_CROSS < told + left / 2 {
        let excused = court.context.client_disturbed(sent, told)
            || court.context.suspended(sent, told)
            || !court.context.promises_exclusion(lease.lo, told.max(next));
        let what = format!(
            "lease {} was told {} us before or {} us after a later one was granted",
            lease.fence,
            next.saturating_sub(told) / 1_000,
            told.saturating_sub(next) / 1_000
        );
        court.find(END, told, !excused, what);
    }
}

/// I11: each lease begins as early as it can, after the one before it.
fn witness(court: &mut Court<'_>) {
    let mut free: Nanos = 0;
    let (mut latest_start, mut latest_sure) = (0, 0);
    // When the first of those began that follow on one another without a gap.
    let mut since = 0;
    for lease in &court.leases.all {
        let mut start = lease.lo.max(free);
        since = if start > lease.lo { lease.lo.min(since) } else { lease.lo };
        if start > lease.hi {
            // A pair that contradicts itself is told by I9 or I2.
            if latest_sure <= lease.hi && latest_start <= lease.hi {
                let promised = court.context.promises_exclusion(since, start);
                let late = (start - lease.hi) / 1_000;
                let what =
                    format!("lease {} can begin only {late} us after it was answered", lease.fence);
                court.find(SEQUENCE, lease.hi, promised, what);
            }
            start = lease.lo;
        }
        let lasts = start.saturating_add(lease.ttl).min(lease.cap);
        free = start.max(lease.sure).max(lasts);
        latest_start = latest_start.max(lease.lo);
        latest_sure = latest_sure.max(lease.sure);
    }
}

/// I1: on Redlock a new lease tells what its holder may count on, less the drift of clocks. The time that the
/// votes took is taken off as well, but cannot be told from outside. A repeat tells what is left of more.
fn told_too_much(court: &mut Court<'_>) {
    for operation in court.operations() {
        let grant = operation.kind == Kind::Acquire && operation.status == 201;
        let (Some(asked), Some(told)) = (operation.asked_ttl(), operation.told_ttl()) else {
            continue;
        };
        let most = court.context.safe(asked);
        if grant && court.context.redlock() && told > most {
            let what = format!("a grant tells {} ms, and {} ms are safe", told / MS, most / MS);
            court.find(EXCLUSION, operation.answered.unwrap_or(operation.sent), true, what);
        }
    }
}
