//! How the leases of a key are found in what its clients were told, and how long each may have lasted.

use std::collections::HashMap;

use crate::check::context::{Context, DEFAULT_TTL, MS};
use crate::check::ends::ends;
use crate::check::key::{Key, Stream};
use crate::check::lease::{Evidence, Lease, Leases, streams_of};
use crate::history::{Kind, NO_TOKEN, Nanos, Operation, Outcome, Token};

/// Finds the leases of a key.
pub(super) fn leases(context: &Context<'_>, key: &Key<'_>) -> Leases {
    let mut evidence: Vec<_> =
        key.streams.iter().flat_map(|stream| heard(context, key, stream)).collect();
    for (number, operation) in key.numbered() {
        let (Outcome::Yes, true, Some(fence)) =
            (operation.outcome, operation.prolongs(), operation.said.fencing_token)
        else {
            continue;
        };
        let (from, to) = operation.began();
        let said = operation.told_ttl().or_else(|| operation.asked_ttl());
        let ttl = context.safe(said.unwrap_or_default());
        let (token, kind) = (operation.token, operation.kind);
        let (end, rely) = (from + ttl, from + ttl);
        evidence.push(Evidence { fence, token, from, to, ttl, end, rely, number, kind });
    }
    evidence.sort_by_key(|evidence| (evidence.fence, evidence.token, evidence.from));
    let (mut all, mut clashes) = (Vec::<Lease>::new(), Vec::new());
    let mut start = 0;
    for group in evidence.chunk_by_mut(|a, b| (a.fence, a.token) == (b.fence, b.token)) {
        let lease = lease(context, key, (group, start));
        start = lease.evidence.end;
        if all.last().is_some_and(|last| last.fence == lease.fence) {
            clashes.push((lease.fence, group[0].to));
        }
        all.push(lease);
    }
    succeed(key, &mut all);
    Leases::new(evidence, all, clashes)
}

/// Returns what the events `alive` of a stream prove: each time it refreshed the lease after the event
/// before it, unless both came at once because the client, or what is between, stood still.
fn heard(context: &Context<'_>, key: &Key<'_>, stream: &Stream) -> Vec<Evidence> {
    let grant = key.operation(stream.grant);
    let Some(fence) = grant.said.fencing_token else { return Vec::new() };
    let mut from = grant.began().0;
    let events = stream.alive.iter().map(|&number| {
        let alive = key.operation(number);
        let to = alive.answered.unwrap_or(alive.sent);
        let ttl = alive.told_ttl().unwrap_or_default();
        if to.saturating_sub(alive.sent) >= (ttl / 6).max(50 * MS) {
            from = from.max(alive.sent);
        }
        let (token, kind, end, rely) = (grant.token, Kind::Alive, from + ttl, from + ttl);
        Evidence { fence, token, from, to, ttl: context.safe(ttl), end, rely, number, kind }
    });
    events.collect()
}

/// A lease is over once a later one is there: of its token, where leases share the key.
fn succeed(key: &Key<'_>, leases: &mut [Lease]) {
    let mut later: HashMap<Token, Nanos> = HashMap::new();
    for lease in leases.iter_mut().rev() {
        let token = if key.shared { lease.token } else { NO_TOKEN };
        let later = later.entry(token).or_insert(Nanos::MAX);
        // One that was answered before this one began has a wrong number, and ended nothing.
        lease.over = lease.over.min(if *later < lease.lo { Nanos::MAX } else { *later });
        *later = lease.hi.min(*later);
    }
}

/// Returns the lease of which all of this is evidence.
fn lease(
    context: &Context<'_>,
    key: &Key<'_>,
    (evidence, start): (&mut [Evidence], usize),
) -> Lease {
    let operation = |evidence: &Evidence| key.operation(evidence.number);
    let created = |one: &&Evidence| operation(one).is_claim() && operation(one).status == 201;
    // Of a lease that one question began and the next one was told, the wait is too long; others
    // share the key meanwhile.
    let since = |one: &Evidence| match operation(one).sent {
        sent if key.shared && context.loses_answers(sent, one.to) => sent,
        _ => one.from,
    };
    let begun = evidence.iter().filter(created).map(since).min();
    let first = evidence.iter().min_by_key(|one| one.to);
    let mut lease = Lease {
        fence: evidence[0].fence,
        token: evidence[0].token,
        lo: begun.unwrap_or(evidence[0].from),
        hi: first.map_or(0, |one| one.to),
        evidence: start..start + evidence.len(),
        sure: 0,
        cap: Nanos::MAX,
        ttl: evidence[0].ttl,
        by_ttl: 0,
        over: Nanos::MAX,
        expires: true,
        begun: begun.is_some(),
        first: first.map_or(0, |one| one.number),
    };
    if !lease.begun {
        find_beginning(key, &mut lease);
    }
    let ends = ends(context, key, (&lease, evidence));
    lease.expires = !ends.iter().any(|end| !end.only_holder && end.keeps == 0);
    for one in &mut *evidence {
        for end in ends.iter().filter(|end| end.until >= one.from) {
            let is_claim = matches!(one.kind, Kind::Acquire | Kind::Hold);
            if is_claim && end.taken_over_after.is_some_and(|after| one.from > after) {
                continue;
            }
            let at = end.from.max(one.from).saturating_add(end.keeps);
            one.rely = one.rely.min(at);
            if !end.only_holder {
                one.end = one.end.min(at);
            }
        }
        // In an outage a stream goes on without the store, so its events prove nothing about it.
        let proves = one.kind != Kind::Alive || !context.outage(one.from, one.to);
        lease.sure = lease.sure.max(if proves { one.from.max(one.end) } else { 0 });
    }
    for end in ends.iter().filter(|end| !end.only_holder && end.until >= lease.lo) {
        lease.cap = lease.cap.min(end.from.max(lease.lo).saturating_add(end.keeps));
    }
    lease.by_ttl = by_ttl(context, key, (&lease, evidence));
    lease.over = key.over(lease.token, Some(lease.fence), lease.hi, lease.by_ttl);
    let told = streams_of(key, evidence).filter_map(|stream| {
        let end = key.operation(stream.end?);
        let ended = matches!(end.code.as_str(), "lost/released" | "lost/forced");
        end.answered.filter(|_| ended)
    });
    lease.over = told.min().unwrap_or(Nanos::MAX).min(lease.over);
    lease
}

/// Finds when a lease may have begun of which nobody was told that it is new: a question whose answer was
/// lost may have begun it.
fn find_beginning(key: &Key<'_>, lease: &mut Lease) {
    // Whatever its token had before it was told that it has nothing is another lease.
    let told = |operation: &&Operation| {
        let nothing = operation.is_release() || operation.is_lost() || operation.is_definite_no();
        nothing && operation.answered.is_some_and(|answered| answered <= lease.lo)
    };
    let nothing = key.near(lease.token, 0, lease.hi).map(|near| near.1).find(told);
    let since = nothing.map_or(0, |operation| operation.sent);
    for (_, operation) in key.near(lease.token, since, lease.hi) {
        match operation.outcome {
            Outcome::Unknown if operation.is_claim() => lease.lo = lease.lo.min(operation.sent),
            // The service may not have heard of it at first, and others share the key meanwhile.
            Outcome::Yes if operation.said.fencing_token == Some(lease.fence) => {
                let since = if key.shared { operation.sent } else { operation.began().0 };
                lease.lo = lease.lo.min(since);
            }
            _ => (),
        }
    }
}

/// Returns until when a lease may last, if nobody ends it.
fn by_ttl(context: &Context<'_>, key: &Key<'_>, (lease, evidence): (&Lease, &[Evidence])) -> Nanos {
    let (mut until, mut longest): (Nanos, Nanos) = (0, 0);
    for one in evidence {
        let ttl = longest_ttl(context, key, one);
        longest = longest.max(ttl);
        until = until.max(one.to.saturating_add(ttl));
    }
    for stream in streams_of(key, evidence) {
        let Some(end) = stream.end.map(|end| key.operation(end)) else { return Nanos::MAX };
        let at = end.answered.unwrap_or_default().max(end.gone.unwrap_or_default());
        let linger = key.operation(stream.grant).asked.linger_ms.saturating_mul(MS);
        until = until.max(context.settled(at.max(end.sent)).saturating_add(linger.max(longest)));
    }
    until = context.stretched(lease.lo, until);
    // Questions without an answer may have prolonged it, one after the other.
    loop {
        let before = until;
        let near = key.near(lease.token, lease.lo, before);
        for (number, operation) in near.filter(|(_, one)| one.prolongs() && one.is_unknown()) {
            let ttl = operation.asked_ttl().unwrap_or_else(|| longest.max(DEFAULT_TTL));
            let later = key.settled(number).saturating_add(ttl);
            if later > until {
                until = context.stretched(lease.lo, later);
            }
        }
        if until == before {
            return until;
        }
    }
}

/// Returns the longest TTL of which an answer may tell what is left.
pub(super) fn longest_ttl(context: &Context<'_>, key: &Key<'_>, one: &Evidence) -> Nanos {
    let operation = key.operation(one.number);
    let said = operation.told_ttl().unwrap_or_default();
    let took = one.to.saturating_sub(operation.sent);
    operation.asked_ttl().unwrap_or_else(|| context.longest(said, took)).max(said)
}
