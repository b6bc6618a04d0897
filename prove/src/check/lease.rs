//! The leases of a key, each with what proves that it was there.
//!
//! A lease is known by its fencing token and its token. All times are bounds that hold whatever happened
//! within the operations: `lo` and `hi` of its beginning, `sure` (it lasted at least until then), `latest`
//! (it was over by then). `bounds` finds them.

use std::ops::Range;

use crate::check::key::{Key, Number, Stream};
use crate::check::spans::Spans;
use crate::history::{Kind, Nanos, Token};

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

#[derive(Clone, Debug)]
pub(super) struct Lease {
    pub(super) fence: u64,
    pub(super) token: Token,
    pub(super) lo: Nanos,
    pub(super) hi: Nanos,
    pub(super) evidence: Range<usize>,
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
    /// Returns when it is over at the latest, but for what [`Context::late`](crate::check::context::Context::late)
    /// allows.
    pub(super) fn latest(&self) -> Nanos {
        self.by_ttl.min(self.over)
    }

    /// Returns whether it existed all through that time.
    pub(super) fn covers(&self, from: Nanos, until: Nanos) -> bool {
        self.hi <= from && until <= self.sure
    }
}

#[derive(Debug)]
pub(super) struct Leases {
    pub(super) evidence: Vec<Evidence>,
    /// In the order of their fencing tokens.
    pub(super) all: Vec<Lease>,
    /// The numbers that two tokens have, and when the second one was told.
    pub(super) clashes: Vec<(u64, Nanos)>,
    /// From when until when each of them was there for certain.
    sure: Spans<usize>,
}

impl Leases {
    pub(super) fn new(
        evidence: Vec<Evidence>,
        all: Vec<Lease>,
        clashes: Vec<(u64, Nanos)>,
    ) -> Self {
        let sure = all.iter().enumerate().map(|(index, lease)| (lease.hi, lease.sure, index));
        Self { sure: sure.collect(), evidence, all, clashes }
    }

    pub(super) fn evidence_of(&self, lease: &Lease) -> &[Evidence] {
        &self.evidence[lease.evidence.clone()]
    }

    /// Returns a lease that existed all through that time.
    pub(super) fn during(&self, from: Nanos, until: Nanos) -> Option<&Lease> {
        let mut near = self.sure.covering(from, until).map(|span| &self.all[span.of]);
        near.find(|lease| lease.covers(from, until))
    }
}

/// Returns the streams that had a lease of this evidence.
pub(super) fn streams_of<'k>(
    key: &'k Key<'_>,
    evidence: &[Evidence],
) -> impl Iterator<Item = &'k Stream> {
    let holds = evidence.iter().filter(|one| one.kind == Kind::Hold);
    holds.filter_map(|one| {
        let found = key.streams.binary_search_by_key(&one.number, |stream| stream.grant);
        found.ok().map(|found| &key.streams[found])
    })
}
