//! I13: who changes a lease names it, and gets another one in its place. A lease keeps its number, its share
//! (S1) and its slot (S2), and ends no earlier than was told (I9). While a stream keeps it, it is the
//! stream's alone; a stream is told of an end, and a claim of a newer one, for a reason.

use super::{Court, END, NAMES, SHARE, SLOT};
use crate::check::context::{MS, PLACE_KEPT, ROLLED_BACK};
use crate::check::key::Stream;
use crate::check::lease::{Evidence, Lease};
use crate::history::{Kind, MOST_SLOTS, Operation, Outcome, SHARED};

pub(super) fn judge(court: &mut Court<'_>) {
    let (key, leases) = (court.key, court.leases);
    for lease in &leases.all {
        same_share(court, lease);
        no_shorter(court, lease);
        kept(court, lease);
    }
    for stream in &key.streams {
        ended(court, stream);
    }
    for operation in court.operations() {
        replaced(court, operation);
        superseded(court, operation);
        if key.shared {
            as_asked(court, operation);
        }
    }
}

/// S1 and S2: all answers of one number tell one share.
fn same_share(court: &mut Court<'_>, lease: &Lease<'_>) {
    let told = |one: &&Evidence<'_>| one.of.kind != Kind::Alive;
    for one in lease.evidence.iter().filter(told) {
        let (slots, units) = (one.of.told_slots(), one.of.told_units());
        let (slot, share) = (one.of.said.slot, (slots, units) == (lease.slots, lease.units));
        if !share || slot != lease.slot {
            let promised = court.context.promises_keeping(lease.lo, one.to);
            let (before, had, was) = (lease.slots, lease.units, lease.slot);
            let what = format!(
                "lease {} was told of {before} slots, {had} units and {was:?}, and of {slots}, {units} \
                 and {slot:?}",
                lease.fence
            );
            let rule = if share { SLOT } else { SHARE };
            return court.find(rule, one.to, promised, what);
        }
    }
}

/// I9: no answer tells of an earlier end than one before it did. On Redlock one may, where a node missed
/// an earlier refresh.
fn no_shorter(court: &mut Court<'_>, lease: &Lease<'_>) {
    let mut longest: Option<&Evidence<'_>> = None;
    for one in &lease.evidence {
        let told = one.of.told_ttl().unwrap_or_default();
        let took = one.to.saturating_sub(one.of.sent);
        // What the question took is taken off, also before the store saw it.
        let ends = one.to + took + court.context.longest(told, took) + 2 * MS;
        // The end of a stream may have left less.
        let before = longest.filter(|before| before.to < one.from);
        let before = before.filter(|before| before.is_plain() || !one.is_plain());
        if let Some(before) = before.filter(|before| before.from + before.ttl > ends) {
            let context = court.context;
            let missed = context.redlock() && context.outage(lease.lo, one.to);
            let promised = context.promises_exclusion(lease.lo, one.to) && !missed;
            let what = format!(
                "lease {} was to end {} ms later, before {:?} was answered",
                lease.fence,
                (before.from + before.ttl - ends) / MS,
                one.of.kind
            );
            return court.find(END, one.to, promised, what);
        }
        let ends = |one: &Evidence<'_>| one.from + one.ttl;
        let longer = longest.filter(|before| ends(before) > ends(one));
        longest = longer.filter(|before| before.is_plain() || !one.is_plain()).or(Some(one));
    }
}

/// A lease that nothing keeps is not kept again under its number.
fn kept(court: &mut Court<'_>, lease: &Lease<'_>) {
    let plain = lease.plain_since();
    let streams = lease.evidence.iter().filter(|one| !one.is_plain());
    let mut again = streams.filter(|one| one.from > plain);
    if let Some(one) = again.next() {
        // An event that was held back tells of an earlier time.
        let promised = !court.context.disturbed(lease.lo, one.to);
        let what = format!("lease {} was kept by nobody, and then by a stream", lease.fence);
        court.find(NAMES, one.to, promised, what);
    }
}

/// The reason for which a stream is told that its lease was lost is one.
fn ended(court: &mut Court<'_>, stream: &Stream<'_>) {
    let (grant, Some(end)) = (stream.grant, stream.end) else { return };
    let Some(answered) = end.answered else { return };
    let number = grant.said.fencing_token;
    let near = || court.key.near(grant.token, grant.sent, answered).map(|near| near.of);
    let released = near().any(|of| of.kind == Kind::Release);
    // Another claim may have begun a lease after this one was over.
    let last = stream.alive.last().unwrap_or(&grant);
    let over = released || last.sent + last.told_ttl().unwrap_or(0) < answered;
    let gives_up = |of: &Operation| of.replaces() == number && of.is_unknown();
    let has_reason = match end.code.as_str() {
        "lost/replaced" => near().any(|of| {
            let anew = of.outcome == Outcome::Yes && of.said.fencing_token > number;
            of.is_claim() && (of.replaces() == number || anew || over && of.is_unknown())
        }),
        // On Redlock a replacement that fails gives the lease up.
        "lost/released" if released || court.context.redlock() && near().any(gives_up) => true,
        // Another instance only sees that the lease is gone.
        "lost/released" | "lost/forced" => {
            court.key.forced.meeting(grant.sent, answered).next().is_some()
        }
        code => !code.starts_with("lost/") || code == "lost/expired",
    };
    if !has_reason {
        let promised = court.context.promises_loss(grant.sent, answered);
        let what = format!("a stream was told {}, which nobody asked for", end.code);
        court.find(NAMES, answered, promised, what);
    }
}

/// A lease that was asked for in place of another one has a greater number, and is told as a new one.
fn replaced(court: &mut Court<'_>, operation: &Operation) {
    let (Some(named), Some(answered)) = (operation.replaces(), operation.answered) else { return };
    let has = operation.said.fencing_token;
    let what = match operation.outcome {
        Outcome::Yes if has <= Some(named) => "was granted",
        Outcome::Yes if operation.kind == Kind::Acquire && operation.status != 201 => "again has",
        Outcome::No if operation.is_lost() && has == Some(named) => "lost it, and has",
        _ => return,
    };
    let what = format!("token {} named lease {named} and {what} {has:?}", operation.token);
    court.find(NAMES, answered, true, what);
}

/// A request is superseded by another one of its token, or by its release.
fn superseded(court: &mut Court<'_>, operation: &Operation) {
    let (true, Some(answered)) = (operation.code.ends_with("superseded"), operation.answered)
    else {
        return;
    };
    let since = operation.sent.saturating_sub(PLACE_KEPT);
    let mut near = court.key.near(operation.token, since, answered).map(|near| near.of);
    let ends = |of: &Operation| of.is_claim() || of.kind == Kind::Release;
    if !near.any(|of| ends(of) && !std::ptr::eq(of, operation)) {
        let before = operation.sent.saturating_sub(ROLLED_BACK);
        let promised = court.context.promises_loss(before, answered)
            && !court.context.suspended(before, answered);
        let what = format!("token {} was superseded by nothing", operation.token);
        court.find(NAMES, answered, promised, what);
    }
}

/// S1: a grant has the slots and units that its question named; S2: it has a slot that fits them.
fn as_asked(court: &mut Court<'_>, operation: &Operation) {
    let (true, Outcome::Yes, Some(answered)) =
        (operation.prolongs(), operation.outcome, operation.answered)
    else {
        return;
    };
    let slots = operation.told_slots();
    // One of 1000 has a slot, and a reader, of which the same is told, has none.
    let units = operation.told_units();
    let numbered = slots != 1 && units == 1 && operation.asked.slots != Some(SHARED);
    let fits = match operation.said.slot {
        Some(slot) => numbered && (1..=slots).contains(&slot),
        None => !numbered || slots == MOST_SLOTS,
    };
    if !fits {
        let what = format!("{slots} slots, {units} units, and slot {:?}", operation.said.slot);
        court.find(SLOT, answered, true, what);
    }
    // A repeat and a refresh need not say it.
    let says = operation.asked.slots.is_some() || operation.status == 201;
    let asked = operation.asked_slots();
    if says && asked != slots {
        let what = format!("{asked} slots were asked for, and {slots} were granted");
        court.find(SHARE, answered, true, what);
    }
    let says = operation.asked.units.is_some() || operation.status == 201;
    let asked = operation.asked_units();
    if says && asked != units {
        let what = format!("{asked} units were asked for, and {units} were granted");
        court.find(SHARE, answered, true, what);
    }
}
