//! Hints from Redis, for the waiters of this instance.

use std::sync::Arc;

use crate::lock::key::LockKey;
use crate::lock::wakeup::Wakeups;
use crate::store::redis::link::Hints;

/// Rings for the locks that are handed to this instance.
pub(in crate::store) struct Rings {
    pub(in crate::store) key_prefix: String,
    pub(in crate::store) wakeups: Arc<Wakeups>,
}

impl Hints for Rings {
    fn handed(&self, lock: &str) {
        let key = lock.strip_prefix(&self.key_prefix).and_then(|key| LockKey::parse(key).ok());
        if let Some(key) = key {
            self.wakeups.ring(&key);
        }
    }

    fn lost(&self) {
        self.wakeups.ring_all();
    }
}
