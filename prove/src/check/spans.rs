//! Times that overlap, by their beginnings.

use crate::history::Nanos;

/// A time, and what it is of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span<T> {
    pub(super) from: Nanos,
    pub(super) until: Nanos,
    pub(super) of: T,
}

/// Times in the order in which they begin, each with the latest end so far.
#[derive(Debug)]
pub(super) struct Spans<T>(Vec<(Nanos, Span<T>)>);

impl<T> FromIterator<Span<T>> for Spans<T> {
    fn from_iter<I: IntoIterator<Item = Span<T>>>(spans: I) -> Self {
        let mut spans: Vec<_> = spans.into_iter().collect();
        spans.sort_by_key(|span| span.from);
        let mut latest = 0;
        let reach = spans.into_iter().map(|span| {
            latest = span.until.max(latest);
            (latest, span)
        });
        Self(reach.collect())
    }
}

impl<T: Copy> Spans<T> {
    pub(super) fn all(&self) -> impl Iterator<Item = Span<T>> {
        self.0.iter().map(|entry| entry.1)
    }

    /// Returns those that have begun at `until` and not ended at `from`, the last one that began first.
    pub(super) fn meeting(&self, from: Nanos, until: Nanos) -> impl Iterator<Item = Span<T>> {
        let end = self.0.partition_point(|entry| entry.1.from <= until);
        let near = self.0[..end].iter().rev().take_while(move |entry| entry.0 >= from);
        near.map(|entry| entry.1).filter(move |span| span.until >= from)
    }

    /// Returns those that begin in a time, but not with it.
    pub(super) fn after(&self, from: Nanos, until: Nanos) -> impl Iterator<Item = Span<T>> {
        let start = self.0.partition_point(|entry| entry.1.from <= from);
        let later = self.0[start..].iter().map(|entry| entry.1);
        later.take_while(move |span| span.from <= until)
    }
}
