//! The readers' view of the table: a change is visible once it is on disk.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::lock::entry::Entry;
use crate::lock::key::LockKey;
use crate::lock::lease::LockStatus;
use crate::lock::store::Page;
use crate::lock::table::Table;
use crate::lock::time::Timestamp;
use crate::lock::token::LeaseToken;

/// Keys with the leases that were on disk before they changed.
pub(super) type Before = BTreeMap<LockKey, Option<Entry>>;

/// The table and its uncommitted changes, behind one lock.
pub(super) struct View(Mutex<ViewState>);

pub(super) struct ViewState {
    /// `None` while the content of the disk is unknown.
    pub(super) table: Option<Table>,
    /// The keys being written, with their leases on disk.
    pub(super) under_way: Before,
}

/// The result of a read.
pub(super) struct Seen<T> {
    pub(super) on_disk: T,
    /// True if nothing in it has expired: an end counts only once the committer has written it.
    pub(super) current: bool,
}

impl View {
    pub(super) fn new(table: Table) -> Self {
        Self(Mutex::new(ViewState { table: Some(table), under_way: Before::new() }))
    }

    /// Locks the state, for computations only; never across a wait for the disk.
    pub(super) fn state(&self) -> MutexGuard<'_, ViewState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The status of a key with the first `most` of its line; `None` while the content of the disk is unknown.
    pub(super) fn inspect(
        &self,
        key: &LockKey,
        token: Option<&LeaseToken>,
        most: usize,
        now: Timestamp,
    ) -> Option<Seen<LockStatus>> {
        let state = self.state();
        let table = state.table.as_ref()?;
        let entry = match state.under_way.get(key) {
            Some(before) => before.as_ref(),
            None => table.entry(key),
        };
        let current = !table.has_ended(key, entry, now);
        let line = table.first_in_line(key, most, now);
        let status = table.status(key, entry, token, now);
        Some(Seen { on_disk: LockStatus { line, ..status }, current })
    }

    /// A page of the held keys; `None` while the content of the disk is unknown.
    pub(super) fn list(&self, page: &Page, now: Timestamp) -> Option<Seen<Vec<LockStatus>>> {
        let state = self.state();
        let table = state.table.as_ref()?;
        let unchanged = table.page(page).filter(|(key, _)| !state.under_way.contains_key(*key));
        let before = state
            .under_way
            .iter()
            .filter(|(key, _)| page.covers(key))
            .filter(|(key, _)| page.after.as_deref().is_none_or(|after| key.as_str() > after))
            .filter_map(|(key, before)| before.as_ref().map(|entry| (key, entry)));
        let held: BTreeMap<_, _> = unchanged.take(page.limit).chain(before).collect();
        let held: Vec<_> = held.into_iter().take(page.limit).collect();
        let current = !held.iter().any(|(key, entry)| table.has_ended(key, Some(entry), now));
        let status = |(key, entry)| table.status(key, Some(entry), None, now);
        Some(Seen { on_disk: held.into_iter().map(status).collect(), current })
    }
}
