//! What may end a lease before its time: releases, forced releases, ends of streams, and questions with a
//! shorter TTL.

use super::context::{Context, DEFAULT_TTL, MS};
use super::key::{Key, Stream, asked_ttl, ended_by_force};
use super::lease::Lease;
use super::share;
use crate::history::{Kind, Nanos, Operation, Outcome};

/// Something that may end a lease, or leave it a shorter TTL, at some time in its window.
pub(super) struct End {
    pub(super) from: Nanos,
    pub(super) until: Nanos,
    /// What is left of the lease then.
    pub(super) keeps: Nanos,
    /// Whether only the holder gives up, and the lease may go on.
    pub(super) only_holder: bool,
    /// The end of a stream: it does not touch a lease that was taken over after this.
    pub(super) taken_over_after: Option<Nanos>,
}

/// Returns what may end a lease before its time, or leave it less.
pub(super) fn ends(
    context: &Context<'_>,
    key: &Key<'_>,
    lease: &Lease,
    (reach, longest): (Nanos, Nanos),
) -> Vec<End> {
    let mut ends = Vec::new();
    for number in key.near(lease.token, lease.lo, reach) {
        let (operation, until) = (key.operation(number), key.settled(number));
        let from = operation.sent;
        let other = operation.asked.fencing_token.is_some_and(|meant| meant != lease.fence);
        match operation.kind {
            Kind::Release if !other => {
                let only_holder = operation.outcome == Outcome::No;
                ends.push(End { from, until, keeps: 0, only_holder, taken_over_after: None });
            }
            Kind::Acquire | Kind::Hold | Kind::Refresh
                if operation.outcome != Outcome::No && !other && shortens(operation) =>
            {
                let ttl =
                    operation.said.ttl_ms.map(|ttl| ttl * MS).or_else(|| asked_ttl(operation));
                // An absent TTL is the default of an acquire, and the last one of a refresh.
                let keeps = match ttl {
                    Some(ttl) => context.safe(ttl),
                    None if operation.kind == Kind::Refresh => continue,
                    None => context.safe(DEFAULT_TTL),
                };
                let mine = operation.said.fencing_token.is_none_or(|said| said == lease.fence);
                let until = match operation.kind {
                    Kind::Acquire | Kind::Refresh if context.redlock() => {
                        key.counts(context, number)
                    }
                    _ => until,
                };
                if mine && keeps < longest {
                    ends.push(End {
                        from,
                        until,
                        keeps,
                        only_holder: false,
                        taken_over_after: None,
                    });
                }
            }
            _ => (),
        }
        if operation.kind == Kind::Hold && operation.outcome == Outcome::Unknown {
            // A stream that nobody saw may have been granted the lease as well, and end it with itself.
            let from = operation.gone.unwrap_or(from);
            let (taken_over_after, until) = (Some(until), context.settled(until));
            ends.push(End { from, until, keeps: 0, only_holder: false, taken_over_after });
        }
    }
    forced_ends(context, key, (lease, reach), &mut ends);
    if key.shared {
        for number in share::successors(key, lease, reach) {
            let (from, until) = (key.operation(number).sent, key.settled(number));
            ends.push(End { from, until, keeps: 0, only_holder: false, taken_over_after: None });
        }
    }
    for stream in streams_of(key, lease) {
        stream_ends(context, key, stream, &mut ends);
    }
    ends
}

/// Returns whether a question may leave a lease a shorter TTL: a refresh that names it.
fn shortens(operation: &Operation) -> bool {
    operation.kind == Kind::Refresh && operation.asked.fencing_token.is_some()
}

fn forced_ends(
    context: &Context<'_>,
    key: &Key<'_>,
    (lease, reach): (&Lease, Nanos),
    ends: &mut Vec<End>,
) {
    let end = key.forced.partition_point(|&number| key.operation(number).sent <= reach);
    let near = (0..end).rev().take_while(|&entry| key.forced_reach[entry] >= lease.lo);
    for number in near.map(|entry| key.forced[entry]) {
        let (operation, until) = (key.operation(number), key.settled(number));
        // On Redlock it ends all votes for the key, and tells the highest of their numbers.
        let other = !context.redlock()
            && ended_by_force(operation).is_some_and(|ended| ended != lease.fence);
        if operation.outcome != Outcome::No && !other && until >= lease.lo {
            let from = operation.sent;
            ends.push(End { from, until, keeps: 0, only_holder: false, taken_over_after: None });
        }
    }
}

fn stream_ends(context: &Context<'_>, key: &Key<'_>, stream: &Stream, ends: &mut Vec<End>) {
    let grant = key.operation(stream.grant);
    let taken_over_after = grant.answered;
    let ttl = grant.said.ttl_ms.unwrap_or_default() * MS;
    // On Redlock whoever keeps the lease sets the stream's own TTL.
    let refreshes = End {
        from: grant.sent,
        until: stream.end.map_or(Nanos::MAX, |end| key.settled(end)),
        keeps: ttl,
        only_holder: false,
        taken_over_after,
    };
    ends.extend(context.redlock().then_some(refreshes));
    let end = stream.end.map(|end| key.operation(end));
    let from = match end {
        Some(end) if end.code == "draining" => return,
        Some(end) if end.code == "lost/taken_over" => return,
        Some(Operation { gone: Some(gone), .. }) => *gone,
        // A broken connection is told late on one side.
        _ => stream.last,
    };
    let until = Nanos::MAX;
    ends.push(End { from, until, keeps: 0, only_holder: false, taken_over_after });
}

/// Returns the streams that had a lease.
pub(super) fn streams_of<'k>(key: &'k Key<'_>, lease: &Lease) -> impl Iterator<Item = &'k Stream> {
    let holds = key.evidence_of(lease).iter().filter(|one| one.kind == Kind::Hold);
    holds.filter_map(|one| {
        let found = key.streams.binary_search_by_key(&one.number, |stream| stream.grant);
        found.ok().map(|found| &key.streams[found])
    })
}
