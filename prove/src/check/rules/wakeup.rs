//! I4 (a waiter is not woken), I5 (a ghost keeps the key) and I9 (a lease ends late): while somebody waits,
//! the key is not free for long.

use super::Court;
use super::fencing::ms;
use crate::check::context::{MS, SECOND};
use crate::check::key::{Number, began, is_claim};
use crate::history::{Nanos, Outcome};

/// Times in which a key may be held, apart and in order.
pub(super) struct Coverage(Vec<(Nanos, Nanos)>);

impl Coverage {
    fn of(mut times: Vec<(Nanos, Nanos)>) -> Self {
        times.sort_unstable();
        let mut apart: Vec<(Nanos, Nanos)> = Vec::with_capacity(times.len());
        for (from, until) in times {
            match apart.last_mut() {
                Some(last) if from <= last.1 => last.1 = last.1.max(until),
                _ => apart.push((from, until)),
            }
        }
        Self(apart)
    }

    /// Returns whether the key may be held at some time between these.
    pub(super) fn meets(&self, from: Nanos, until: Nanos) -> bool {
        let next = self.0.partition_point(|time| time.1 < from);
        self.0.get(next).is_some_and(|time| time.0 <= until)
    }
}

/// Somebody who stood in line from then until then.
pub(super) struct Waiter {
    pub(super) from: Nanos,
    pub(super) until: Nanos,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Why {
    Released,
    Expired,
    Ghost,
    Raced,
}

/// A client that goes within the time that answers take just then, which is between these, may go while
/// the answer is on its way to it.
const RACE: (Nanos, Nanos) = (2 * MS, 20 * MS);

/// Judges the times in which the key was free, and returns those in which it may have been held.
pub(super) fn judge(court: &mut Court<'_>) -> Coverage {
    let held = held(court);
    let waiters = waiters(court);
    let mut free_since = (0, Why::Released);
    let mut found = Vec::new();
    for &(from, until, why) in &held {
        if from > free_since.0 {
            found.extend(idle(court, &waiters, free_since, from));
        }
        if until >= free_since.0 {
            free_since = (until, why);
        }
    }
    found.extend(idle(court, &waiters, free_since, Nanos::MAX));
    for (why, at, lasts) in found {
        let (rule, after) = match why {
            Why::Released => ("I4", "it was given up"),
            Why::Expired => ("I9", "the lease was over"),
            Why::Ghost | Why::Raced => ("I5", "whoever had gone should have lost it"),
        };
        let what = format!("somebody waited for {} ms after {after}, and nobody had it", ms(lasts));
        court.find(rule, at, why != Why::Raced, what);
    }
    Coverage::of(held.into_iter().map(|(from, until, _)| (from, until)).collect())
}

fn held(court: &Court<'_>) -> Vec<(Nanos, Nanos, Why)> {
    let key = court.key;
    let lease = key.leases.iter().map(|lease| {
        let why = if lease.over < lease.by_ttl { Why::Released } else { Why::Expired };
        (lease.lo, lease.latest(), why)
    });
    let mut held: Vec<_> = lease.collect();
    for (number, operation) in (0..).zip(&key.operations) {
        if is_claim(operation) && operation.outcome == Outcome::Unknown {
            let (from, until) = key.perhaps(court.context, number);
            let slowest = court.context.slowest(operation.sent, operation.sent);
            let race = slowest.clamp(RACE.0, RACE.1);
            let raced = operation.gone.is_some_and(|gone| gone < operation.sent + race);
            held.push((from, until, if raced { Why::Raced } else { Why::Ghost }));
        }
    }
    held.sort_unstable();
    held
}

/// Returns those who stood in line, as they came; each one with the longest stay so far.
fn waiters(court: &Court<'_>) -> Vec<Waiter> {
    let mut waiters: Vec<Waiter> =
        (0..).zip(&court.key.operations).filter_map(|(number, _)| waiter(court, number)).collect();
    waiters.sort_unstable_by_key(|waiter| waiter.from);
    let mut longest = 0;
    for waiter in &mut waiters {
        longest = waiter.until.max(longest);
        waiter.until = longest;
    }
    waiters
}

pub(super) fn waiter(court: &Court<'_>, number: Number) -> Option<Waiter> {
    let operation = court.key.operation(number);
    if !is_claim(operation) || operation.asked.wait_ms == 0 {
        return None;
    }
    let arrived = || Some(operation.sent + court.context.arrival(operation.sent)?);
    let from = operation.said.queued_at.or_else(arrived)?;
    let until = match operation.outcome {
        Outcome::Yes => began(operation).0,
        Outcome::No if operation.code == "lock_held" || operation.code == "timeout" => {
            let answered = operation.answered?;
            let waited = operation.sent.saturating_add(operation.asked.wait_ms.saturating_mul(MS));
            let slack = 50 * MS + 2 * court.context.slowest(answered, answered);
            answered.min(waited).saturating_sub(slack)
        }
        Outcome::No => return None,
        Outcome::Unknown => {
            let gone = operation.gone?;
            let whole = !court.context.disturbed(operation.sent, gone);
            gone.saturating_sub(SECOND).min(if whole { gone } else { 0 })
        }
    };
    (from < until).then_some(Waiter { from, until })
}

/// Returns for how long the key was free although somebody waited, if that is too long.
fn idle(
    court: &Court<'_>,
    waiters: &[Waiter],
    (since, why): (Nanos, Why),
    until: Nanos,
) -> Option<(Why, Nanos, Nanos)> {
    if since == Nanos::MAX {
        return None;
    }
    // The latest of those who were in line by then, and of those who came while it was free.
    let until = until.min(waiters.last().map_or(0, |waiter| waiter.until));
    if until <= since {
        return None;
    }
    let allowed = match why {
        Why::Released => court.context.handed_late(since),
        _ => court.context.late(since),
    };
    if until - since <= allowed {
        return None;
    }
    let there = waiters.partition_point(|waiter| waiter.from <= since);
    let stayed = there.checked_sub(1).map_or(0, |last| waiters[last].until).min(until);
    if stayed > since + allowed {
        return Some((why, since, stayed - since));
    }
    let came = waiters[there..].iter().take_while(|waiter| waiter.from < until).find(|waiter| {
        let stayed = waiter.until.min(until);
        stayed > waiter.from + court.context.late(waiter.from)
    })?;
    Some((Why::Released.max(why), came.from, came.until.min(until) - came.from))
}
