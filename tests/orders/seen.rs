//! The line of a key, as far as what comes depends on it.

use crate::lock::line::Line;
use crate::lock::time::Timestamp;
use crate::lock::token::LeaseToken;

/// A claim in line.
pub(crate) struct Seen<'a> {
    pub(crate) token: &'a LeaseToken,
    pub(crate) place: u64,
    /// The moment until which its place is reserved, if it is absent.
    pub(crate) away_until: Option<Timestamp>,
}

impl Line {
    /// The claims of the line, by their places.
    pub(crate) fn seen(&self) -> Vec<Seen<'_>> {
        let mut all: Vec<_> = self
            .places
            .iter()
            .map(|(token, joined)| Seen {
                token,
                place: joined.place,
                away_until: joined.away_until,
            })
            .collect();
        all.sort_unstable_by_key(|one| one.place);
        all
    }
}
