//! The readers' view of the table: a change is visible once it is on disk.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::lock::key::LockKey;
use crate::lock::lease::LockStatus;
use crate::lock::store::Page;
use crate::lock::table::{Entry, LeaseId, Table};
use crate::lock::time::Timestamp;
use crate::lock::token::{FencingToken, LeaseToken};

/// Leases that changed, as they were on disk before.
pub(super) type Before = BTreeMap<LeaseId, Option<Entry>>;

/// The table and its uncommitted changes, behind one lock.
pub(super) struct View(Mutex<ViewState>);

pub(super) struct ViewState {
    /// `None` while the content of the disk is unknown.
    pub(super) table: Option<Table>,
    /// The leases being written, as they are on disk.
    pub(super) under_way: Before,
    /// The store's clock on disk: what ended before it is over for good, written or not.
    pub(super) clock: Timestamp,
}

/// The result of a read.
pub(super) struct Seen<T> {
    pub(super) on_disk: T,
    /// True if nothing in it has expired: an end counts only once the committer has written it.
    pub(super) current: bool,
}

impl View {
    pub(super) fn new(table: Table, clock: Timestamp) -> Self {
        Self(Mutex::new(ViewState { table: Some(table), under_way: Before::new(), clock }))
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
        let leases = state.on_disk(key, table.entries(key));
        let current = !table.has_ended(key, leases.iter().copied(), now);
        let lasting = leases.iter().copied().filter(|entry| state.lasts(entry));
        let on_disk = table.status_and_line(key, lasting, (token, most), now);
        Some(Seen { on_disk, current })
    }

    /// A page of the held keys; `None` while the content of the disk is unknown.
    pub(super) fn list(&self, page: &Page, now: Timestamp) -> Option<Seen<Vec<LockStatus>>> {
        let state = self.state();
        let table = state.table.as_ref()?;
        let changed: BTreeSet<_> = state.under_way.keys().map(|(key, _)| key).collect();
        let unchanged = table.page(page).filter(|(key, _)| !changed.contains(key));
        let before = changed
            .iter()
            .filter(|key| page.covers(key))
            .filter(|key| page.after.as_deref().is_none_or(|after| key.as_str() > after))
            .map(|key| (*key, table.entries(key)))
            .filter_map(|of_key| state.lasting(of_key));
        let unchanged = unchanged.map(|(key, leases)| (key, leases.as_slice()));
        let unchanged = unchanged.filter_map(|of_key| state.lasting(of_key)).take(page.limit);
        let held: BTreeMap<_, Vec<_>> = unchanged.chain(before).collect();
        let held: Vec<_> = held.into_iter().take(page.limit).collect();
        let mut held_now = held.iter();
        let current =
            !held_now.any(|(key, leases)| table.has_ended(key, leases.iter().copied(), now));
        let status =
            |(key, leases): (_, Vec<_>)| table.status(key, leases.iter().copied(), None, now);
        Some(Seen { on_disk: held.into_iter().map(status).collect(), current })
    }
}

impl ViewState {
    /// Changes the table, and notes what was on disk before: readers see that until `under_way` is
    /// cleared. `None` while the content of the disk is unknown.
    pub(super) fn change<T>(&mut self, change: impl FnOnce(&mut Table) -> T) -> Option<T> {
        let table = self.table.as_mut()?;
        let changed = change(table);
        self.under_way = table.take_changes();
        Some(changed)
    }

    fn lasts(&self, entry: &Entry) -> bool {
        entry.ends_at > self.clock
    }

    /// The key with those that last of its leases on disk; `None` without any.
    fn lasting<'a>(
        &'a self,
        (key, leases): (&'a LockKey, &'a [Entry]),
    ) -> Option<(&'a LockKey, Vec<&'a Entry>)> {
        let mut leases = self.on_disk(key, leases);
        leases.retain(|entry| self.lasts(entry));
        (!leases.is_empty()).then_some((key, leases))
    }

    /// The leases of a key that are on disk, of which the table now has `leases`.
    fn on_disk<'a>(&'a self, key: &LockKey, leases: &'a [Entry]) -> Vec<&'a Entry> {
        let of_key = (key.clone(), FencingToken::LEAST)..=(key.clone(), FencingToken::MOST);
        let before = self.under_way.range(of_key).filter_map(|(_, before)| before.as_ref());
        let is_changed =
            |entry: &Entry| self.under_way.contains_key(&(key.clone(), entry.fencing_token));
        leases.iter().filter(|entry| !is_changed(entry)).chain(before).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::View;
    use crate::lock::sample::{claim, key};
    use crate::lock::store::{Ask, Page};
    use crate::lock::table::Table;
    use crate::lock::time::Timestamp;

    #[test]
    fn a_change_is_visible_once_it_is_on_disk() {
        let now = Timestamp::from_micros(0);
        let view = View::new(Table::restore([], 0), now);
        let grant =
            |table: &mut Table| table.ask(&claim("a", "one", 1_000), Ask::Once(None), now, 5);
        assert!(view.state().change(grant).flatten().is_some());
        let is_held = || view.inspect(&key("a"), None, 0, now).unwrap().on_disk.holder.is_some();
        assert!(!is_held());
        view.state().under_way.clear();
        assert!(is_held());
        // Its end is on disk with the clock, before it is written itself.
        view.state().clock = now.plus(Duration::from_secs(1));
        assert!(!is_held());
        let all = Page { prefixes: [String::new()].into(), after: None, limit: 10 };
        assert_eq!(view.list(&all, now).unwrap().on_disk, []);
    }
}
