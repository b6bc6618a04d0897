//! S5: nobody waits for long for a shared key that has room for all who wait.
//!
//! A place that is kept for a lease that is over is found by it. The judge knows who may hold the key at
//! each moment, and that may be more than do.

use super::Court;
use super::fencing::ms;
use super::wakeup::{Waiter, waiter};
use crate::check::key::{Number, is_claim};
use crate::check::share::{Share, bounds};
use crate::history::{MOST_SLOTS, Nanos, Outcome};

/// A time in which the same leases and claims may hold the key.
struct Stretch {
    from: Nanos,
    until: Nanos,
    holders: u16,
    /// The least that one of them allows.
    least: u16,
}

impl Stretch {
    fn admits(&self, slots: u16) -> bool {
        self.holders < self.least.min(slots)
    }
}

/// A claim that may have been in line, with its slots.
struct InLine {
    from: Nanos,
    until: Nanos,
    /// The latest end of this one and of those that came before it.
    reach: Nanos,
    slots: u16,
}

pub(super) fn judge(court: &mut Court<'_>, told: &[Vec<Share>]) {
    let stretches = stretches(court, told);
    let line = line(court);
    let mut found = Vec::new();
    for (number, operation) in (0 as Number..).zip(&court.key.operations) {
        // A lease that is told again may have begun at any time since the claim was sent.
        let again = operation.outcome == Outcome::Yes && operation.status != 201;
        let Some(Waiter { from, until }) = waiter(court, number).filter(|_| !again) else {
            continue;
        };
        let end = line.partition_point(|other| other.from <= until);
        let near = line[..end].iter().rev().take_while(|other| other.reach >= from);
        let near = near.filter(|other| other.until >= from);
        let slots = near.map(|other| other.slots).min().unwrap_or(1);
        if let Some((since, lasts)) = passed_over(court, &stretches, (from, until), slots) {
            found.push((operation.token, since, lasts));
        }
    }
    for (token, since, lasts) in found {
        let what = format!(
            "token {token} waited for {} ms while the key had room for all who waited",
            ms(lasts)
        );
        court.find("S5", since, true, what);
    }
}

/// Returns since when and for how long there was room for a claim that was in line, if that is too long.
fn passed_over(
    court: &Court<'_>,
    stretches: &[Stretch],
    (from, until): (Nanos, Nanos),
    slots: u16,
) -> Option<(Nanos, Nanos)> {
    let first = stretches.partition_point(|stretch| stretch.until <= from);
    let mut since = from;
    for stretch in stretches[first..].iter().take_while(|stretch| stretch.from < until) {
        if !stretch.admits(slots) {
            since = stretch.until;
            continue;
        }
        let end = stretch.until.min(until);
        if end > since && end - since > court.context.late(since) {
            return Some((since, end - since));
        }
    }
    None
}

/// Returns the times in which the same may hold the key, one after another.
fn stretches(court: &Court<'_>, told: &[Vec<Share>]) -> Vec<Stretch> {
    let key = court.key;
    let leases = key.leases.iter().enumerate();
    let mut perhaps: Vec<(Nanos, Nanos, Result<usize, u16>)> =
        leases.map(|(index, lease)| (lease.lo, lease.latest(), Ok(index))).collect();
    for (number, operation) in (0 as Number..).zip(&key.operations) {
        if is_claim(operation) && operation.outcome == Outcome::Unknown {
            let (from, until) = key.perhaps(court.context, number);
            perhaps.push((from, until, Err(operation.asked.slots.unwrap_or(1).min(MOST_SLOTS))));
        }
    }
    perhaps.sort_unstable_by_key(|one| one.0);
    let mut times: Vec<Nanos> = perhaps.iter().flat_map(|one| [one.0, one.1]).collect();
    times.extend([0, Nanos::MAX]);
    times.sort_unstable();
    times.dedup();
    let (mut next, mut there) = (0, Vec::new());
    let mut stretches = Vec::with_capacity(times.len());
    for pair in times.windows(2) {
        let (from, until) = (pair[0], pair[1]);
        there.retain(|&one: &usize| perhaps[one].1 > from);
        while perhaps.get(next).is_some_and(|one| one.0 <= from) {
            there.extend((perhaps[next].1 > from).then_some(next));
            next += 1;
        }
        let allows = there.iter().map(|&one| match perhaps[one].2 {
            Ok(lease) => bounds(&told[lease], from, until).map_or(1, |bounds| bounds.least),
            Err(slots) => slots,
        });
        let least = allows.min().unwrap_or(MOST_SLOTS);
        let holders = u16::try_from(there.len()).unwrap_or(MOST_SLOTS);
        stretches.push(Stretch { from, until, holders, least });
    }
    stretches
}

/// Returns all claims that may have been in line.
fn line(court: &Court<'_>) -> Vec<InLine> {
    let key = court.key;
    let claims = (0 as Number..).zip(&key.operations);
    let waited = claims.filter(|(_, one)| is_claim(one) && one.asked.wait_ms > 0);
    // They were sent in this order.
    let mut reach = 0;
    let line = waited.map(|(number, one)| {
        let until = one.answered.unwrap_or_else(|| key.settled(number));
        reach = until.max(reach);
        InLine { from: one.sent, until, reach, slots: one.asked.slots.unwrap_or(1).min(MOST_SLOTS) }
    });
    line.collect()
}
