//! How the leases of a key are found in what its clients were told, and how long each may have lasted.

use std::collections::{BTreeMap, HashMap};

use crate::check::context::{Context, DEFAULT_TTL, MS};
use crate::check::ends::ends;
use crate::check::key::{Key, Stream};
use crate::check::lease::{Evidence, Lease, Leases};
use crate::history::{Kind, NO_TOKEN, Nanos, Operation, Outcome, Token};

/// Finds the leases of a key.
pub(super) fn leases<'a>(context: &Context<'_>, key: &Key<'a>) -> Leases<'a> {
    let mut evidence: BTreeMap<(u64, Token), Vec<Evidence<'a>>> = BTreeMap::new();
    for stream in &key.streams {
        if let Some(fence) = stream.grant.said.fencing_token {
            let all = evidence.entry((fence, stream.grant.token)).or_default();
            all.extend(heard(context, stream));
        }
    }
    for of in key.operations.all().map(|span| span.of) {
        if let (Outcome::Yes, true, Some(fence)) =
            (of.outcome, of.prolongs(), of.said.fencing_token)
        {
            let (from, to) = of.began();
            let said = of.told_ttl().or_else(|| of.asked_ttl());
            let ttl = context.safe(said.unwrap_or_default());
            let all = evidence.entry((fence, of.token)).or_default();
            all.push(Evidence { of, from, to, ttl, rely: from + ttl });
        }
    }
    let leases = evidence.into_iter().map(|(id, evidence)| lease(context, key, id, evidence));
    let mut leases: Vec<_> = leases.collect();
    succeed(key, &mut leases);
    Leases::new(leases)
}

/// Returns what the events `alive` of a stream prove: each time it refreshed the lease after the event
/// before it, unless both came at once because the client, or what is between, stood still. In an outage,
/// and on Redlock, the event may tell of an earlier refresh, since which the rest of the TTL has passed.
fn heard<'a>(context: &Context<'_>, stream: &Stream<'a>) -> impl Iterator<Item = Evidence<'a>> {
    let mut from = stream.grant.began().0;
    let mut since = from;
    stream.alive.iter().map(move |&of| {
        let (to, ttl) = (of.answered.unwrap_or(of.sent), of.told_ttl().unwrap_or_default());
        if to.saturating_sub(of.sent) >= (ttl / 6).max(50 * MS) {
            let gone = of.asked_ttl().map_or(0, |asked| asked.saturating_sub(ttl));
            let began = of.sent.saturating_sub(gone);
            let may_be_old = context.redlock() || context.outage(began, to);
            from = from.max(if may_be_old { began } else { of.sent });
            since = since.max(of.sent);
        }
        Evidence { of, from, to, ttl: context.safe(ttl), rely: since + ttl }
    })
}

/// A lease is over once a later one is there: of its token, where leases share the key.
fn succeed(key: &Key<'_>, leases: &mut [Lease<'_>]) {
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
fn lease<'a>(
    context: &Context<'_>,
    key: &Key<'a>,
    (fence, token): (u64, Token),
    mut evidence: Vec<Evidence<'a>>,
) -> Lease<'a> {
    evidence.sort_by_key(|one| one.from);
    let created = |one: &&Evidence<'_>| one.of.is_claim() && one.of.status == 201;
    // Of a lease that one question began and the next one was told, the wait is too long; others
    // share the key meanwhile.
    let since = |one: &Evidence<'_>| match one.of.sent {
        sent if key.shared && context.loses_answers(sent, one.to) => sent,
        _ => one.from,
    };
    let begun = evidence.iter().filter(created).map(since).min();
    let first = evidence.iter().min_by_key(|one| one.to).unwrap_or(&evidence[0]);
    let mut lease = Lease {
        fence,
        token,
        lo: begun.unwrap_or(evidence[0].from),
        hi: first.to,
        sure: 0,
        cap: Nanos::MAX,
        ttl: evidence[0].ttl,
        by_ttl: 0,
        over: Nanos::MAX,
        begun: begun.is_some(),
        first: first.of,
        slots: first.of.told_slots(),
        units: first.of.told_units(),
        slot: first.of.said.slot,
        evidence,
    };
    if !lease.begun {
        find_beginning(key, &mut lease);
    }
    let of_lease = |stream: &&Stream<'_>| {
        (stream.grant.said.fencing_token, stream.grant.token) == (Some(fence), token)
    };
    let streams: Vec<&Stream<'a>> = key.streams.iter().filter(of_lease).collect();
    let ends = ends(key, &lease, &streams);
    for one in &mut lease.evidence {
        // Until when the lease lasted at least, as far as this answer proves it.
        let mut lasts = one.rely;
        for end in &ends {
            if end.until < one.from || end.of_stream && one.is_plain() {
                continue;
            }
            let at = end.from.max(one.from);
            one.rely = one.rely.min(at);
            if !end.only_holder {
                lasts = lasts.min(at);
            }
        }
        // In an outage a stream goes on without the store, so its events prove nothing about it.
        if one.of.kind != Kind::Alive || !context.outage(one.from, one.to) {
            lease.sure = lease.sure.max(one.from.max(lasts));
        }
    }
    for end in ends.iter().filter(|end| !end.only_holder) {
        lease.cap = lease.cap.min(end.from.max(lease.lo));
    }
    lease.by_ttl = by_ttl(context, key, (&lease, &streams));
    lease.over = key.over(token, Some(fence), lease.hi, lease.by_ttl);
    let told = streams.iter().filter_map(|stream| stream.end).filter_map(|end| {
        let ended = matches!(end.code.as_str(), "lost/released" | "lost/forced" | "lost/replaced");
        end.answered.filter(|_| ended)
    });
    lease.over = told.min().unwrap_or(Nanos::MAX).min(lease.over);
    lease
}

/// Finds when a lease may have begun of which nobody was told that it is new: a question whose answer was
/// lost may have begun it.
fn find_beginning(key: &Key<'_>, lease: &mut Lease<'_>) {
    // Whatever its token had before it was told that it has nothing is another lease.
    let told = |operation: &&Operation| {
        // A refusal may tell of another lease that it has.
        let has_another = operation.is_lost() && operation.said.fencing_token.is_some();
        let nothing = operation.ends() && !has_another || operation.is_definite_no();
        nothing && operation.answered.is_some_and(|answered| answered <= lease.lo)
    };
    let nothing = key.near(lease.token, 0, lease.hi).map(|near| near.of).find(told);
    let since = nothing.map_or(0, |operation| operation.sent);
    for operation in key.near(lease.token, since, lease.hi).map(|near| near.of) {
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
fn by_ttl(
    context: &Context<'_>,
    key: &Key<'_>,
    (lease, streams): (&Lease<'_>, &[&Stream<'_>]),
) -> Nanos {
    let (mut until, mut longest): (Nanos, Nanos) = (0, 0);
    for one in &lease.evidence {
        let ttl = longest_ttl(context, one);
        longest = longest.max(ttl);
        until = until.max(one.to.saturating_add(ttl));
    }
    for stream in streams {
        let Some(end) = stream.end else { return Nanos::MAX };
        let at = end.answered.unwrap_or_default().max(end.gone.unwrap_or_default());
        let linger = stream.grant.asked.linger_ms.saturating_mul(MS);
        until = until.max(context.settled(at.max(end.sent)).saturating_add(linger.max(longest)));
    }
    until = context.stretched(lease.lo, until);
    // Questions without an answer may have prolonged it, one after the other.
    loop {
        let before = until;
        let near = key.near(lease.token, lease.lo, before).filter(|span| span.of.is_unknown());
        for span in near.filter(|span| span.of.prolongs() && span.of.replaces().is_none()) {
            let ttl = span.of.asked_ttl().unwrap_or_else(|| longest.max(DEFAULT_TTL));
            let later = span.until.saturating_add(ttl);
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
pub(super) fn longest_ttl(context: &Context<'_>, one: &Evidence<'_>) -> Nanos {
    let operation = one.of;
    let said = operation.told_ttl().unwrap_or_default();
    let took = one.to.saturating_sub(operation.sent);
    operation.asked_ttl().unwrap_or_else(|| context.longest(said, took)).max(said)
}
