//! The table's read-only view.

use crate::lock::key::LockKey;
use crate::lock::lease::{Holder, LockStatus};
use crate::lock::line::Line;
use crate::lock::store::Page;
use crate::lock::table::holders::Holders;
use crate::lock::table::{Entry, Table, holders};
use crate::lock::time::Timestamp;
use crate::lock::token::{FencingToken, LeaseToken};

/// The most leases of a key that a look names.
const MOST_NAMED: usize = 100;

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

    /// The leases of a key, in the form that is stored.
    pub(crate) fn entries(&self, key: &LockKey) -> &[Entry] {
        self.leases.get(key).map_or(&[], |holders| holders.as_slice())
    }

    /// The lease with this fencing token.
    pub(crate) fn entry(&self, key: &LockKey, number: FencingToken) -> Option<&Entry> {
        self.entries(key).iter().find(|entry| entry.fencing_token == number)
    }

    /// The lease of a token.
    pub(crate) fn entry_of(&self, key: &LockKey, token: &LeaseToken) -> Option<&Entry> {
        self.entries(key).iter().find(|entry| entry.token == *token)
    }

    /// The leases from the start of a page, without its limit and regardless of the time.
    pub(crate) fn page(&self, page: &Page) -> impl Iterator<Item = (&LockKey, &Holders)> {
        page.widest_prefixes().into_iter().flat_map(|prefix| {
            let leases = self.leases.range::<str, _>(page.range(prefix));
            leases.take_while(move |(key, _)| key.as_str().starts_with(prefix))
        })
    }

    /// The status of a key with these leases.
    pub(crate) fn status<'a>(
        &self,
        key: &LockKey,
        leases: impl Iterator<Item = &'a Entry> + Clone,
        token: Option<&LeaseToken>,
        now: Timestamp,
    ) -> LockStatus {
        let line = self.lines.get(key);
        let handed = line.and_then(|line| line.handed_for(now));
        let own = token.and_then(|token| leases.clone().find(|entry| entry.token == *token));
        LockStatus {
            key: key.clone(),
            holder: holders::seen(leases.clone(), own, now)
                .or_else(|| handed.map(|left| Holder { left: Some(left), ..Holder::default() })),
            sharers: holders::sharers(leases),
            waiters: line.map_or(0, Line::len),
            line: Vec::new(),
            mine: token.map(|_| own.is_some()),
        }
    }

    /// The status of a key with these leases, the first `most` claims of its line, and the first of
    /// the leases if they share it.
    pub(crate) fn status_and_line<'a>(
        &self,
        key: &LockKey,
        leases: impl Iterator<Item = &'a Entry> + Clone,
        (token, most): (Option<&LeaseToken>, usize),
        now: Timestamp,
    ) -> LockStatus {
        let mut status = self.status(key, leases.clone(), token, now);
        status.line = self.lines.get(key).map_or_else(Vec::new, |line| line.first(most, now));
        if let Some(sharers) = &mut status.sharers {
            let mut leases: Vec<_> = leases.collect();
            leases.sort_unstable_by_key(|entry| (entry.ends_at, entry.fencing_token));
            let first = leases.iter().take(MOST_NAMED);
            sharers.leases = first.map(|entry| entry.holder(now)).collect();
        }
        status
    }

    /// Returns true if one of these leases, or the key's hand-off, has expired but was not removed
    /// yet.
    pub(crate) fn has_ended<'a>(
        &self,
        key: &LockKey,
        mut leases: impl Iterator<Item = &'a Entry>,
        now: Timestamp,
    ) -> bool {
        let handed = self.lines.get(key).and_then(Line::handed);
        leases.any(|entry| entry.ends_at <= now) || handed.is_some_and(|(_, until)| *until <= now)
    }
}
