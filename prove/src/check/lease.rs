//! The leases of a key: what proves that they were there, from when until when their holders may rely on
//! them, and until when they may last.
//!
//! A lease is known by its fencing token and its token. All times are bounds that hold whatever happened
//! within the operations: `lo` and `hi` of its beginning, `sure` (it lasted at least until then), `latest`
//! (it was over by then).

use std::collections::HashMap;
use std::ops::Range;

use super::context::{Context, DEFAULT_TTL, MS};
use super::ends::{ends, streams_of};
use super::key::{
    Key, Number, Stream, asked_ttl, began, is_claim, is_definite_no, is_lost, is_release,
};
use crate::history::{Kind, NO_TOKEN, Nanos, Operation, Outcome, Token};

/// An answer that proves that a lease existed at some time in its window, and for how long.
#[derive(Clone, Debug)]
pub(super) struct Evidence {
    pub(super) fence: u64,
    pub(super) token: Token,
    pub(super) from: Nanos,
    pub(super) to: Nanos,
    /// What the holder may count on from `from`.
    pub(super) ttl: Nanos,
    /// Until when the lease lasted at least, as far as this answer proves it.
    pub(super) end: Nanos,
    /// Until when the holder may rely on it, because of this answer.
    pub(super) rely: Nanos,
    pub(super) number: Number,
    pub(super) kind: Kind,
}

/// A lease.
#[derive(Clone, Debug)]
pub(super) struct Lease {
    pub(super) fence: u64,
    pub(super) token: Token,
    pub(super) lo: Nanos,
    pub(super) hi: Nanos,
    pub(super) evidence: Range<u32>,
    pub(super) sure: Nanos,
    /// It may have been ended, or cut, by then.
    pub(super) cap: Nanos,
    /// The TTL it began with.
    pub(super) ttl: Nanos,
    /// Until when it may last by its TTL.
    pub(super) by_ttl: Nanos,
    /// When it was known to be over: released, forced, lost, succeeded by another one.
    pub(super) over: Nanos,
    /// Whether nobody ended it.
    pub(super) expires: bool,
    /// Whether it is known which question began it.
    pub(super) begun: bool,
    /// The question that was told of it first.
    pub(super) first: Number,
}

impl Lease {
    /// Returns when it is over at the latest, but for what [`Context::late`] allows.
    pub(super) fn latest(&self) -> Nanos {
        self.by_ttl.min(self.over)
    }

    /// Returns whether it existed all through that time.
    pub(super) fn covers(&self, from: Nanos, until: Nanos) -> bool {
        self.hi <= from && until <= self.sure
    }
}

/// Finds the leases of a key.
pub(super) fn collect(context: &Context<'_>, key: &mut Key<'_>) {
    for alive in &mut key.evidence {
        alive.ttl = context.safe(alive.ttl);
    }
    for (number, operation) in (0..).zip(&key.operations) {
        let grants = is_claim(operation) || operation.kind == Kind::Refresh;
        let (Outcome::Yes, true, Some(fence)) =
            (operation.outcome, grants, operation.said.fencing_token)
        else {
            continue;
        };
        let (from, to) = began(operation);
        let said = operation.said.ttl_ms.map(|ttl| ttl * MS).or_else(|| asked_ttl(operation));
        let ttl = context.safe(said.unwrap_or_default());
        let (token, kind) = (operation.token, operation.kind);
        let (end, rely) = (from + ttl, from + ttl);
        key.evidence.push(Evidence { fence, token, from, to, ttl, end, rely, number, kind });
    }
    key.evidence.sort_by_key(|evidence| (evidence.fence, evidence.token, evidence.from));
    group(context, key);
    for lease in 0..key.leases.len() {
        bound(context, key, lease);
    }
    succeed(key);
}

/// A lease is over once a later one is there: of its token, where leases share the key.
fn succeed(key: &mut Key<'_>) {
    let mut later: HashMap<Token, Nanos> = HashMap::new();
    for lease in key.leases.iter_mut().rev() {
        let token = if key.shared { lease.token } else { NO_TOKEN };
        let later = later.entry(token).or_insert(Nanos::MAX);
        // One that was answered before this one began has a wrong number, and ended nothing.
        lease.over = lease.over.min(if *later < lease.lo { Nanos::MAX } else { *later });
        *later = lease.hi.min(*later);
    }
}

/// Adds what an event `alive` proves: its stream refreshed the lease after the event before it, unless
/// both came at once because the client, or what is between, stood still.
pub(super) fn push_alive(
    evidence: &mut Vec<Evidence>,
    stream: &mut Stream,
    number: Number,
    (operations, alive): (&[&Operation], &Operation),
) {
    let grant = operations[stream.grant as usize];
    let to = alive.answered.unwrap_or(alive.sent);
    let ttl = alive.said.ttl_ms.map_or(0, |ttl| ttl * MS);
    if to.saturating_sub(alive.sent) >= (ttl / 6).max(50 * MS) {
        stream.since = stream.since.max(alive.sent);
    }
    stream.last = stream.last.max(to);
    let Some(fence) = grant.said.fencing_token else { return };
    let from = stream.since;
    evidence.push(Evidence {
        fence,
        token: grant.token,
        from,
        to,
        ttl,
        end: from + ttl,
        rely: from + ttl,
        number,
        kind: Kind::Alive,
    });
}

fn group(context: &Context<'_>, key: &mut Key<'_>) {
    let mut start = 0;
    let mut last: Option<(u64, Token)> = None;
    for group in key.evidence.chunk_by(|a, b| (a.fence, a.token) == (b.fence, b.token)) {
        let (fence, token) = (group[0].fence, group[0].token);
        let end = start + group.len() as u32;
        if last.is_some_and(|(before, other)| before == fence && other != token) {
            key.clashes.push((fence, group[0].to));
        }
        last = Some((fence, token));
        let operation = |evidence: &Evidence| key.operations[evidence.number as usize];
        let created =
            group.iter().filter(|one| is_claim(operation(one)) && operation(one).status == 201);
        let first = group.iter().min_by_key(|one| one.to).map_or(0, |one| one.number);
        let begun = created.clone().next().is_some();
        // Of a lease that one question began and the next one was told, the wait is too long; others
        // share the key meanwhile.
        let since = |one: &Evidence| match operation(one).sent {
            sent if key.shared && context.loses_answers(sent, one.to) => sent,
            _ => one.from,
        };
        let lo = created.map(since).min();
        key.leases.push(Lease {
            fence,
            token,
            lo: lo.or_else(|| group.iter().map(|one| one.from).min()).unwrap_or_default(),
            hi: group.iter().map(|one| one.to).min().unwrap_or_default(),
            evidence: start..end,
            sure: 0,
            cap: Nanos::MAX,
            ttl: group[0].ttl,
            by_ttl: 0,
            over: Nanos::MAX,
            expires: true,
            begun,
            first,
        });
        start = end;
    }
}

/// Finds the bounds of a lease.
fn bound(context: &Context<'_>, key: &mut Key<'_>, index: usize) {
    let mut lease = key.leases[index].clone();
    if !lease.begun {
        find_beginning(key, &mut lease);
    }
    let evidence = key.evidence_of(&lease);
    let reach = evidence.iter().map(|one| one.to + one.ttl).max().unwrap_or_default();
    let longest = evidence.iter().map(|one| one.ttl).max().unwrap_or_default();
    let ends = ends(context, key, &lease, (reach, longest));
    lease.expires = !ends.iter().any(|end| !end.only_holder && end.keeps == 0);
    let range = lease.evidence.start as usize..lease.evidence.end as usize;
    for one in &mut key.evidence[range] {
        for end in ends.iter().filter(|end| end.until >= one.from) {
            let taken_over = is_claim_kind(one.kind)
                && end.taken_over_after.is_some_and(|after| one.from > after);
            if taken_over {
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
    lease.by_ttl = by_ttl(context, key, &lease);
    let limit = lease.by_ttl;
    lease.over = key.over(lease.token, Some(lease.fence), lease.hi, limit);
    let told = streams_of(key, &lease).filter_map(|stream| {
        let end = key.operation(stream.end?);
        let ended = matches!(end.code.as_str(), "lost/released" | "lost/forced");
        end.answered.filter(|_| ended)
    });
    lease.over = told.min().unwrap_or(Nanos::MAX).min(lease.over);
    key.leases[index] = lease;
}

/// Finds when a lease may have begun of which nobody was told that it is new: a question whose answer was
/// lost may have begun it.
fn find_beginning(key: &Key<'_>, lease: &mut Lease) {
    // Whatever its token had before it was told that it has nothing is another lease.
    let told = |&number: &Number| {
        let operation = key.operation(number);
        let nothing = is_release(operation) || is_lost(operation) || is_definite_no(operation);
        nothing && operation.answered.is_some_and(|answered| answered <= lease.lo)
    };
    let nothing = key.near(lease.token, 0, lease.hi).find(told);
    let since = nothing.map_or(0, |number| key.operation(number).sent);
    for number in key.near(lease.token, since, lease.hi) {
        let operation = key.operation(number);
        match operation.outcome {
            Outcome::Unknown if is_claim(operation) => lease.lo = lease.lo.min(operation.sent),
            Outcome::Yes if operation.said.fencing_token == Some(lease.fence) => {
                // The service may not have heard of it at first, and others share the key meanwhile.
                let since = if key.shared { operation.sent } else { began(operation).0 };
                lease.lo = lease.lo.min(since);
            }
            _ => (),
        }
    }
}

/// Returns until when a lease may last, if nobody ends it.
fn by_ttl(context: &Context<'_>, key: &Key<'_>, lease: &Lease) -> Nanos {
    let mut until: Nanos = 0;
    let mut longest: Nanos = 0;
    for one in key.evidence_of(lease) {
        let operation = key.operation(one.number);
        let said = operation.said.ttl_ms.unwrap_or_default() * MS;
        let took = one.to.saturating_sub(operation.sent);
        let ttl = asked_ttl(operation).unwrap_or_else(|| context.longest(said, took)).max(said);
        longest = longest.max(ttl);
        until = until.max(one.to.saturating_add(ttl));
    }
    for stream in streams_of(key, lease) {
        let Some(end) = stream.end.map(|end| key.operation(end)) else { return Nanos::MAX };
        let at = end.answered.unwrap_or_default().max(end.gone.unwrap_or_default());
        let linger = key.operation(stream.grant).asked.linger_ms.saturating_mul(MS);
        until = until.max(context.settled(at.max(end.sent)).saturating_add(linger.max(longest)));
    }
    until = context.stretched(lease.lo, until);
    // Questions without an answer may have prolonged it, one after the other.
    loop {
        let before = until;
        for number in key.near(lease.token, lease.lo, before) {
            let operation = key.operation(number);
            let prolongs = is_claim(operation) || operation.kind == Kind::Refresh;
            if prolongs && operation.outcome == Outcome::Unknown {
                let ttl = asked_ttl(operation).unwrap_or_else(|| longest.max(DEFAULT_TTL));
                let later = key.settled(number).saturating_add(ttl);
                if later > until {
                    until = context.stretched(lease.lo, later);
                }
            }
        }
        if until == before {
            return until;
        }
    }
}

fn is_claim_kind(kind: Kind) -> bool {
    matches!(kind, Kind::Acquire | Kind::Hold)
}
