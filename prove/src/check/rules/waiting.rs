//! Nobody waits for long for a key that has room for all who wait. Of an exclusive key that is I4 (it was
//! given up, and no waiter was woken), I5 (whoever had it last has gone) or I9 (its lease ends late); of a
//! shared key it is S5.
//!
//! The judge knows who may hold the key at each moment, and that may be more than do.

use super::{Court, END, GHOST, ROOM, WAKE_UP};
use crate::check::context::{MS, SECOND};
use crate::check::rules::holders::{Holder, holders};
use crate::check::spans::{Span, Spans};
use crate::history::{Kind, MOST_SLOTS, Nanos, Operation, Outcome};

/// What may have made room.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Why {
    Released,
    Expired,
    Ghost,
    Raced,
}

/// A time in which the same leases and claims may hold the key.
pub(super) struct Stretch {
    from: Nanos,
    until: Nanos,
    /// The units that they have.
    units: u16,
    /// The least that one of them allows.
    least: u16,
    /// What became of the last one who had it before.
    why: Why,
}

/// A client that goes within the time that answers take just then, which is between these, may go while
/// the answer is on its way to it.
const RACE: (Nanos, Nanos) = (2 * MS, 20 * MS);

/// Judges those who waited, and returns who may have held the key meanwhile.
pub(super) fn judge(court: &mut Court<'_>) -> Vec<Stretch> {
    let stretches = stretches(court);
    let line = in_line(court);
    let mut told = 0; // Since when there was room at which somebody was found to wait last.
    for operation in court.operations() {
        // A lease that is told again may have begun at any time since the claim was sent.
        let again = operation.outcome == Outcome::Yes && operation.status != 201;
        let Some(time) = waited(court, operation).filter(|_| !again || !court.key.shared) else {
            continue;
        };
        let there = || line.meeting(time.0, time.1).map(|one| one.of);
        let slots = there().map(Operation::asked_slots).min().unwrap_or(1);
        let needs = there().map(Operation::asked_units).max().unwrap_or(1);
        let found = passed_over(court, &stretches, time, (slots, needs));
        let Some((stretch, since, lasts)) = found else { continue };
        let (why, from) = (stretch.why, stretch.from);
        if told == from && !court.key.shared {
            continue;
        }
        told = from;
        let (rule, after) = match why {
            _ if court.key.shared => (ROOM, "there was room for all who waited"),
            Why::Released => (WAKE_UP, "it was given up"),
            Why::Expired => (END, "the lease was over"),
            Why::Ghost | Why::Raced => (GHOST, "whoever had gone should have lost it"),
        };
        let (token, ms) = (operation.token, lasts / MS);
        let what = format!("token {token} waited for {ms} ms after {after}");
        court.find(rule, since, court.key.shared || why != Why::Raced, what);
    }
    stretches
}

/// Returns whether somebody may hold the key at some time between these.
pub(super) fn is_held(stretches: &[Stretch], from: Nanos, until: Nanos) -> bool {
    let first = stretches.partition_point(|stretch| stretch.until < from);
    let mut near = stretches[first..].iter().take_while(|stretch| stretch.from <= until);
    near.any(|stretch| stretch.units > 0)
}

/// Returns in which stretch, since when and for how long there was room for a claim that was in line, if
/// that is too long. All who wait allow these slots, and none needs more units.
fn passed_over<'s>(
    court: &Court<'_>,
    stretches: &'s [Stretch],
    (from, until): (Nanos, Nanos),
    (slots, needs): (u16, u16),
) -> Option<(&'s Stretch, Nanos, Nanos)> {
    let first = stretches.partition_point(|stretch| stretch.until <= from);
    let mut room: Option<&Stretch> = None;
    for stretch in stretches[first..].iter().take_while(|stretch| stretch.from < until) {
        if stretch.units.saturating_add(needs) > stretch.least.min(slots) {
            room = None;
            continue;
        }
        let began = *room.get_or_insert(stretch);
        let (since, end) = (began.from.max(from), stretch.until.min(until));
        // Whoever came while there was room has to ask, and so has one who shares.
        let woken = began.from >= from && began.units == 0 && began.why == Why::Released;
        let allowed = match woken {
            true => court.context.handed_late(since),
            false => court.context.late(since),
        };
        if end - since > allowed {
            return Some((began, since, end - since));
        }
    }
    None
}

/// Returns the times in which the same may hold the key, one after another.
fn stretches(court: &Court<'_>) -> Vec<Stretch> {
    let mut perhaps = holders(court);
    perhaps.sort_by_key(|one| one.from);
    let mut times: Vec<Nanos> = perhaps.iter().flat_map(|one| [one.from, one.until]).collect();
    times.extend([0, Nanos::MAX]);
    times.sort_unstable();
    times.dedup();
    let (mut next, mut there) = (0, Vec::new());
    let (mut gone, mut why) = (0, Why::Released);
    let mut stretches = Vec::with_capacity(times.len());
    for pair in times.windows(2) {
        let (from, until) = (pair[0], pair[1]);
        while let Some(one) = perhaps.get(next).filter(|one| one.from <= from) {
            there.push(*one);
            next += 1;
        }
        there.retain(|one| {
            if one.until <= from {
                // Of those who have gone at one time, anybody may have had the key.
                let before = if gone > one.from { why } else { Why::Released };
                why = match ended(court, one.of) {
                    ended if ended >= Why::Ghost => ended.max(before),
                    ended => ended,
                };
                gone = gone.max(one.until);
            }
            one.until > from
        });
        let least = match court.key.shared {
            true => there.iter().map(|one| one.of.allows()).min(),
            false => Some(1),
        };
        let units = there.iter().map(|one| one.of.units()).fold(0, u16::saturating_add);
        stretches.push(Stretch { from, until, units, least: least.unwrap_or(MOST_SLOTS), why });
    }
    stretches
}

fn ended(court: &Court<'_>, holder: Holder<'_>) -> Why {
    match holder {
        Holder::Lease(lease) if lease.over < lease.by_ttl => Why::Released,
        Holder::Lease(_) => Why::Expired,
        // A stream ends with its connection, whether or not its answer was on its way.
        Holder::Unknown(operation) if operation.kind == Kind::Hold => Why::Ghost,
        Holder::Unknown(operation) => {
            let slowest = court.context.slowest(operation.sent, operation.sent);
            let race = operation.sent + slowest.clamp(RACE.0, RACE.1);
            if operation.left().is_some_and(|gone| gone < race) { Why::Raced } else { Why::Ghost }
        }
    }
}

/// Returns the requests that may have been in line, each until it is out of it for certain.
pub(super) fn in_line<'c>(court: &Court<'c>) -> Spans<&'c Operation> {
    let context = court.context;
    let all = court.key.operations.all();
    let waited = all.filter(|span| span.of.may_wait());
    let left = waited.map(|span| {
        let over = match span.of.left() {
            Some(gone) if !context.delayed(span.from, gone + SECOND) => gone + SECOND,
            _ => span.until,
        };
        Span { until: over.saturating_add(context.late(over)), ..span }
    });
    left.collect()
}

/// Returns from when until when a claim stood in line for certain.
fn waited(court: &Court<'_>, operation: &Operation) -> Option<(Nanos, Nanos)> {
    if !operation.may_wait() || operation.asked.several {
        return None;
    }
    let arrived = || Some(operation.sent + court.context.arrival(operation.sent)?);
    let from = operation.said.queued_at.or_else(arrived)?;
    let until = match operation.outcome {
        Outcome::Yes => operation.began().0,
        Outcome::No if operation.code == "lock_held" || operation.code == "timeout" => {
            let answered = operation.answered?;
            let waited = operation.sent.saturating_add(operation.asked.wait_ms.saturating_mul(MS));
            let slack = 50 * MS + 2 * court.context.slowest(answered, answered);
            answered.min(waited).saturating_sub(slack)
        }
        Outcome::No => return None,
        Outcome::Unknown if operation.late.is_some() => return None,
        Outcome::Unknown => {
            let gone = operation.gone?;
            let whole = !court.context.disturbed(operation.sent, gone);
            gone.saturating_sub(SECOND).min(if whole { gone } else { 0 })
        }
    };
    (from < until).then_some((from, until))
}
