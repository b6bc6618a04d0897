//! The table as others may see it: the committer changes it, and whoever looks at a key while a
//! change is on its way to the disk sees what was there before.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::lock::entry::Entry;
use crate::lock::key::LockKey;
use crate::lock::lease::LockStatus;
use crate::lock::store::Page;
use crate::lock::table::Table;
use crate::lock::time::Timestamp;
use crate::lock::token::LeaseToken;

/// Keys and what was on disk of them before they changed.
pub(super) type Before = BTreeMap<LockKey, Option<Entry>>;

/// See the module.
pub(super) struct View(Mutex<State>);

/// What the committer works on.
pub(super) struct State {
    /// Nothing while it is unknown what is on disk.
    pub(super) table: Option<Table>,
    /// What is on its way to the disk.
    pub(super) under_way: Before,
}

/// What a look has found.
pub(super) struct Seen<T> {
    /// What is on disk.
    pub(super) on_disk: T,
    /// Whether nothing of it has ended meanwhile: an end counts once it is on disk as well, which
    /// is for the committer to see to.
    pub(super) current: bool,
}

impl View {
    pub(super) fn new(table: Table) -> Self {
        Self(Mutex::new(State { table: Some(table), under_way: Before::new() }))
    }

    /// For the committer, for as long as it computes; never while it waits for the disk.
    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks at a key. `None` while it is unknown what is on disk.
    pub(super) fn inspect(
        &self,
        key: &LockKey,
        token: Option<&LeaseToken>,
        now: Timestamp,
    ) -> Option<Seen<LockStatus>> {
        let state = self.state();
        let table = state.table.as_ref()?;
        let entry = match state.under_way.get(key) {
            Some(before) => before.as_ref(),
            None => table.entry(key),
        };
        let current = !table.has_ended(key, entry, now);
        Some(Seen { on_disk: table.status(key, entry, token, now), current })
    }

    /// Looks at a page of the held keys. `None` while it is unknown what is on disk.
    pub(super) fn list(&self, page: &Page, now: Timestamp) -> Option<Seen<Vec<LockStatus>>> {
        let state = self.state();
        let table = state.table.as_ref()?;
        let settled = table.page(page).filter(|(key, _)| !state.under_way.contains_key(*key));
        let before = state
            .under_way
            .iter()
            .filter(|(key, _)| page.covers(key))
            .filter(|(key, _)| page.after.as_deref().is_none_or(|after| key.as_str() > after))
            .filter_map(|(key, before)| before.as_ref().map(|entry| (key, entry)));
        let held: BTreeMap<_, _> = settled.take(page.limit).chain(before).collect();
        let held: Vec<_> = held.into_iter().take(page.limit).collect();
        let current = !held.iter().any(|(key, entry)| table.has_ended(key, Some(entry), now));
        let status = |(key, entry)| table.status(key, Some(entry), None, now);
        Some(Seen { on_disk: held.into_iter().map(status).collect(), current })
    }
}
