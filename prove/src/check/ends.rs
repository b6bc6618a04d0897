//! What may end a lease before its time: releases, forced releases, ends of streams, and refreshes that
//! name it and set an earlier end.

use crate::check::context::Context;
use crate::check::key::{Key, Stream};
use crate::check::lease::{Evidence, Lease, streams_of};
use crate::check::share;
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

impl End {
    fn between(from: Nanos, until: Nanos) -> Self {
        Self { from, until, keeps: 0, only_holder: false, taken_over_after: None }
    }
}

/// Returns what may end a lease with this evidence before its time, or leave it less.
pub(super) fn ends(
    context: &Context<'_>,
    key: &Key<'_>,
    (lease, evidence): (&Lease, &[Evidence]),
) -> Vec<End> {
    let reach = evidence.iter().map(|one| one.to + one.ttl).max().unwrap_or_default();
    let longest = evidence.iter().map(|one| one.ttl).max().unwrap_or_default();
    let mut ends = Vec::new();
    for (number, operation) in key.near(lease.token, lease.lo, reach) {
        let end = End::between(operation.sent, key.settled(number));
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
    for span in key.forced.meeting(lease.lo, reach) {
        let operation = key.operation(span.of);
        let other = operation.ended_by_force().is_some_and(|ended| ended != lease.fence);
        if operation.outcome != Outcome::No && !other {
            ends.push(End::between(span.from, span.until));
        }
    }
    if key.shared {
        let successors = share::successors(key, lease, (evidence, reach)).into_iter();
        ends.extend(
            successors.map(|number| End::between(key.operation(number).sent, key.settled(number))),
        );
    }
    ends.extend(streams_of(key, evidence).filter_map(|stream| end_of(key, stream)));
    ends
}

fn end_of(key: &Key<'_>, stream: &Stream) -> Option<End> {
    let end = stream.end.map(|end| key.operation(end));
    let from = match end {
        Some(end) if matches!(end.code.as_str(), "draining" | "lost/taken_over") => return None,
        Some(Operation { gone: Some(gone), .. }) => *gone,
        // A broken connection is told late on one side.
        _ => {
            let last =
                stream.alive.iter().chain([&stream.grant]).map(|&heard| key.operation(heard));
            last.map(|heard| heard.answered.unwrap_or(heard.sent)).max()?
        }
    };
    let taken_over_after = key.operation(stream.grant).answered;
    Some(End { taken_over_after, ..End::between(from, Nanos::MAX) })
}
