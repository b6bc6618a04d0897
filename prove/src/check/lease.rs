//! The leases of a key, each with what proves that it was there.
//!
//! A lease is known by its fencing token and its token. All times are bounds that hold whatever happened
//! within the operations: `lo` and `hi` of its beginning, `sure` (it lasted at least until then), `latest`
//! (it was over by then). `bounds` finds them.

use crate::check::spans::{Span, Spans};
use crate::history::{Kind, Nanos, Operation, Token};

/// An answer that proves that a lease existed at some time in its window, and for how long.
#[derive(Clone, Debug)]
pub(super) struct Evidence<'a> {
    pub(super) of: &'a Operation,
    pub(super) from: Nanos,
    pub(super) to: Nanos,
    /// What the holder may count on from `from`.
    pub(super) ttl: Nanos,
    /// Until when the holder may rely on it, because of this answer.
    pub(super) rely: Nanos,
}

#[derive(Clone, Debug)]
pub(super) struct Lease<'a> {
    pub(super) fence: u64,
    pub(super) token: Token,
    pub(super) lo: Nanos,
    pub(super) hi: Nanos,
    /// As it begins.
    pub(super) evidence: Vec<Evidence<'a>>,
    pub(super) sure: Nanos,
    /// Somebody may have ended it, or cut it short, by then.
    pub(super) cap: Nanos,
    /// The TTL it began with.
    pub(super) ttl: Nanos,
    /// Until when it may last by its TTL.
    pub(super) by_ttl: Nanos,
    /// When it was known to be over: released, forced, lost, succeeded by another one.
    pub(super) over: Nanos,
    /// Whether it is known which question began it.
    pub(super) begun: bool,
    /// The question that was told of it first.
    pub(super) first: &'a Operation,
    /// The most units that it allows on its key, those that it has, and its number if it has one.
    pub(super) slots: u16,
    pub(super) units: u16,
    pub(super) slot: Option<u16>,
}

impl Evidence<'_> {
    /// Returns whether it tells of a lease that no stream keeps.
    pub(super) fn is_plain(&self) -> bool {
        matches!(self.of.kind, Kind::Acquire | Kind::Refresh)
    }
}

impl Lease<'_> {
    /// Returns when it is over at the latest, but for what [`Context::late`](crate::check::context::Context::late)
    /// allows.
    pub(super) fn latest(&self) -> Nanos {
        self.by_ttl.min(self.over)
    }

    /// Returns since when nothing keeps it: an acquire began or repeated it, or it was refreshed.
    pub(super) fn plain_since(&self) -> Nanos {
        let plain = self.evidence.iter().filter(|one| one.is_plain());
        plain.map(|one| one.to).min().unwrap_or(Nanos::MAX)
    }

    /// Returns whether it existed all through that time.
    pub(super) fn covers(&self, from: Nanos, until: Nanos) -> bool {
        self.hi <= from && until <= self.sure
    }
}

#[derive(Debug)]
pub(super) struct Leases<'a> {
    /// In the order of their fencing tokens.
    pub(super) all: Vec<Lease<'a>>,
    /// From when until when each of them was there for certain.
    sure: Spans<usize>,
}

impl<'a> Leases<'a> {
    pub(super) fn new(all: Vec<Lease<'a>>) -> Self {
        let sure = all.iter().enumerate();
        let sure = sure.map(|(of, lease)| Span { from: lease.hi, until: lease.sure, of });
        Self { sure: sure.collect(), all }
    }

    /// Returns the leases that existed all through that time.
    pub(super) fn during(&self, from: Nanos, until: Nanos) -> impl Iterator<Item = &Lease<'a>> {
        // They have begun at its beginning, and not ended at its end.
        self.sure.meeting(until, from).map(|span| &self.all[span.of])
    }

    /// Returns each lease with that one of the later ones, by their numbers, that was answered first.
    pub(super) fn followed(&self) -> impl Iterator<Item = (&Lease<'a>, &Lease<'a>)> {
        let mut next: Option<&Lease<'a>> = None;
        self.all.iter().rev().filter_map(move |lease| {
            let before = next;
            next = Some(before.filter(|next| next.hi <= lease.hi).unwrap_or(lease));
            Some((lease, before?))
        })
    }
}
