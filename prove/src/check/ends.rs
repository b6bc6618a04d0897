//! What may end a lease before its time: releases, requests that name it to replace it, forced releases,
//! and ends of streams.

use crate::check::key::{Key, Stream};
use crate::check::lease::Lease;
use crate::check::spans::Span;
use crate::history::{Kind, Nanos, Operation, Outcome};

/// Something that may end a lease at some time in its window.
#[derive(Clone, Copy, Default)]
pub(super) struct End {
    pub(super) from: Nanos,
    pub(super) until: Nanos,
    /// Whether only the holder gives up, and the lease may go on.
    pub(super) only_holder: bool,
    /// Whether it is the end of a stream, which touches no lease that it does not keep any more.
    pub(super) of_stream: bool,
}

/// Returns what may end a lease with these streams before its time.
pub(super) fn ends(key: &Key<'_>, lease: &Lease<'_>, streams: &[&Stream<'_>]) -> Vec<End> {
    let evidence = lease.evidence.iter();
    let reach = evidence.map(|one| one.to + one.ttl).max().unwrap_or_default();
    let own = key.near(lease.token, lease.lo, reach).filter(|span| match span.of.kind {
        Kind::Release => true,
        // One that is refused by the others leaves the lease as it is.
        _ => span.of.replaces().is_some() && !is_refused(span.of),
    });
    let forced = key.forced.meeting(lease.lo, reach);
    let forced = forced.filter(|span| span.of.outcome != Outcome::No);
    let meant = own.chain(forced).filter(|span| !span.of.means_another(lease.fence));
    let ends = meant.map(|Span { from, until, of }| {
        let only_holder = of.outcome == Outcome::No;
        End { from, until, only_holder, of_stream: false }
    });
    ends.chain(streams.iter().filter_map(|stream| end_of(stream))).collect()
}

fn is_refused(operation: &Operation) -> bool {
    operation.outcome == Outcome::No && operation.code == "lock_held"
}

fn end_of(stream: &Stream<'_>) -> Option<End> {
    let from = match stream.end {
        Some(end) if end.code == "draining" => return None,
        Some(Operation { gone: Some(gone), .. }) => *gone,
        // A broken connection is told late on one side.
        _ => stream.heard().map(|heard| heard.answered.unwrap_or(heard.sent)).max()?,
    };
    Some(End { from, until: Nanos::MAX, of_stream: true, ..End::default() })
}
