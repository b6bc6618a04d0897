//! What may end a lease before its time: releases, forced releases, ends of streams, and refreshes that
//! name it and set an earlier end.

use crate::check::context::Context;
use crate::check::key::{Key, Stream};
use crate::check::lease::Lease;
use crate::check::share;
use crate::check::spans::Span;
use crate::history::{Kind, Nanos, Operation, Outcome};

/// Something that may end a lease, or leave it a shorter TTL, at some time in its window.
#[derive(Clone, Copy, Default)]
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

/// Returns what may end a lease with these streams before its time, or leave it less.
pub(super) fn ends(
    context: &Context<'_>,
    key: &Key<'_>,
    (lease, streams): (&Lease<'_>, &[&Stream<'_>]),
) -> Vec<End> {
    let evidence = lease.evidence.iter();
    let reach = evidence.clone().map(|one| one.to + one.ttl).max().unwrap_or_default();
    let longest = evidence.map(|one| one.ttl).max().unwrap_or_default();
    let mut ends = Vec::new();
    for Span { from, until, of: operation } in key.near(lease.token, lease.lo, reach) {
        let end = End { from, until, ..End::default() };
        let other = operation.means_another(lease.fence);
        match operation.kind {
            Kind::Release if !other => {
                ends.push(End { only_holder: operation.outcome == Outcome::No, ..end });
            }
            Kind::Refresh if operation.outcome != Outcome::No && !other => {
                let named = operation.asked.fencing_token.is_some();
                // Without a TTL it has the last one.
                let ttl = operation.told_ttl().or_else(|| operation.asked_ttl());
                let keeps = ttl.map_or(longest, |ttl| context.safe(ttl));
                let mine = operation.said.fencing_token.is_none_or(|said| said == lease.fence);
                ends.extend((named && mine && keeps < longest).then_some(End { keeps, ..end }));
            }
            Kind::Hold if operation.is_unknown() => {
                // A stream that nobody saw may have been granted the lease as well, and end it with itself.
                let until = context.settled(end.until);
                let from = operation.gone.unwrap_or(end.from);
                ends.push(End { from, until, taken_over_after: Some(end.until), ..end });
            }
            _ => (),
        }
    }
    let forced = key.forced.meeting(lease.lo, reach);
    let forced =
        forced.filter(|span| span.of.outcome != Outcome::No && !span.of.means_another(lease.fence));
    let successors = key.shared.then(|| share::successors(key, lease, reach));
    let others = forced.chain(successors.into_iter().flatten());
    let ended = |Span { from, until, .. }: Span<_>| End { from, until, ..End::default() };
    ends.extend(others.map(ended));
    ends.extend(streams.iter().filter_map(|stream| end_of(stream)));
    ends
}

fn end_of(stream: &Stream<'_>) -> Option<End> {
    let from = match stream.end {
        Some(end) if matches!(end.code.as_str(), "draining" | "lost/taken_over") => return None,
        Some(Operation { gone: Some(gone), .. }) => *gone,
        // A broken connection is told late on one side.
        _ => {
            let heard = stream.alive.iter().chain([&stream.grant]);
            heard.map(|heard| heard.answered.unwrap_or(heard.sent)).max()?
        }
    };
    let taken_over_after = stream.grant.answered;
    Some(End { from, until: Nanos::MAX, taken_over_after, ..End::default() })
}
