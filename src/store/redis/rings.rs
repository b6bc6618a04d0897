//! Hints from Redis, for the waiters of this instance.

use std::sync::Arc;

use crate::lock::key::LockKey;
use crate::lock::wakeup::Wakeups;
use crate::store::redis::link::Hints;

/// The delimiter around the place of a claim that ended elsewhere; no lock's name begins with it.
const ENDED: char = '\u{1}';

/// Rings for the locks that are handed to this instance.
pub(in crate::store) struct Rings {
    pub(in crate::store) key_prefix: String,
    pub(in crate::store) wakeups: Arc<Wakeups>,
}

impl Hints for Rings {
    fn handed(&self, hint: &str) {
        let ended = hint.strip_prefix(ENDED).and_then(|hint| hint.split_once(ENDED));
        let (place, lock) = ended.map_or((None, hint), |(place, lock)| (place.parse().ok(), lock));
        let key = lock.strip_prefix(&self.key_prefix).and_then(|key| LockKey::parse(key).ok());
        match (key, place) {
            (Some(key), Some(place)) => self.wakeups.ended(&key, place),
            (Some(key), None) => self.wakeups.ring(&key),
            (None, _) => (),
        }
    }

    fn lost(&self) {
        self.wakeups.ring_all();
    }
}
