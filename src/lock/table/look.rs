//! The table's read-only view.

use crate::lock::entry::Entry;
use crate::lock::key::LockKey;
use crate::lock::lease::{Holder, LockStatus, Waiter};
use crate::lock::line::Line;
use crate::lock::store::Page;
use crate::lock::table::Table;
use crate::lock::time::Timestamp;
use crate::lock::token::LeaseToken;

impl Table {
    /// The number of held keys.
    pub fn len(&self) -> usize {
        self.leases.len()
    }

    /// Returns true if no key is held.
    pub fn is_empty(&self) -> bool {
        self.leases.is_empty()
    }

    /// The highest fencing token so far; 0 before the first.
    pub fn last_fencing_token(&self) -> u64 {
        self.last_fencing_token
    }

    /// The lease of a key, in the form that is stored.
    pub fn entry(&self, key: &LockKey) -> Option<&Entry> {
        self.leases.get(key)
    }

    /// The leases from the start of a page, without its limit and regardless of the time.
    pub fn page(&self, page: &Page) -> impl Iterator<Item = (&LockKey, &Entry)> {
        page.widest_prefixes().into_iter().flat_map(|prefix| {
            let leases = self.leases.range::<str, _>(page.range(prefix));
            leases.take_while(move |(key, _)| key.as_str().starts_with(prefix))
        })
    }

    /// The status of a key whose lease is `entry`.
    pub fn status(
        &self,
        key: &LockKey,
        entry: Option<&Entry>,
        token: Option<&LeaseToken>,
        now: Timestamp,
    ) -> LockStatus {
        let line = self.lines.get(key);
        let handed = line
            .and_then(Line::handed)
            .map(|(_, until)| Holder { left: Some(until.left(now)), ..Holder::default() });
        LockStatus {
            key: key.clone(),
            holder: entry.map(|entry| entry.holder(now)).or(handed),
            waiters: line.map_or(0, Line::len),
            line: Vec::new(),
            mine: token.map(|token| entry.is_some_and(|entry| entry.token == *token)),
        }
    }

    /// The first `most` claims in the line of a key.
    pub fn first_in_line(&self, key: &LockKey, most: usize, now: Timestamp) -> Vec<Waiter> {
        self.lines.get(key).map_or_else(Vec::new, |line| line.first(most, now))
    }

    /// Returns true if the lease `entry`, or the key's hand-off, has expired but was not removed
    /// yet.
    pub fn has_ended(&self, key: &LockKey, entry: Option<&Entry>, now: Timestamp) -> bool {
        let handed = self.lines.get(key).and_then(Line::handed);
        entry.is_some_and(|entry| entry.ends_at <= now)
            || handed.is_some_and(|(_, until)| *until <= now)
    }
}
