//! Hints that a key was handed on. A hint may be lost, so waiters also ask periodically.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

use crate::lock::key::LockKey;

/// The most ended claims noted and not yet asked for; further hints may be lost.
const MAX_ENDED: usize = 10_000;

/// The listeners of one instance, by key.
#[derive(Debug, Default)]
pub struct Wakeups {
    listeners: Mutex<HashMap<LockKey, Arc<Bell>>>,
}

/// The listener of one key, until it is dropped.
#[derive(Debug)]
pub struct Wakeup {
    bell: Arc<Bell>,
    key: LockKey,
    wakeups: Arc<Wakeups>,
}

/// The end of a claim's wait through another instance, or by a request that does not wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndElsewhere {
    /// Its place in line.
    pub place: u64,
    /// True if it was released; otherwise it was granted, or waits there by now.
    pub released: bool,
}

#[derive(Debug, Default)]
struct Bell {
    rung: Notify,
    ended: Mutex<Vec<EndElsewhere>>,
}

impl Bell {
    fn ended(&self) -> MutexGuard<'_, Vec<EndElsewhere>> {
        self.ended.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wakeups {
    /// Listens for `key`. A key has one listener: a new one replaces an old one.
    pub fn listen(self: &Arc<Self>, key: &LockKey) -> Wakeup {
        let bell = Arc::new(Bell::default());
        self.with(|listeners| listeners.insert(key.clone(), bell.clone()));
        Wakeup { bell, key: key.clone(), wakeups: self.clone() }
    }

    /// Rings for one key.
    pub fn ring(&self, key: &LockKey) {
        if let Some(bell) = self.bell(key) {
            bell.rung.notify_one();
        }
    }

    /// Rings for one key of which a claim no longer waits here.
    pub fn ended(&self, key: &LockKey, end: EndElsewhere) {
        let Some(bell) = self.bell(key) else { return };
        let mut ended = bell.ended();
        if ended.len() < MAX_ENDED {
            ended.push(end);
        }
        bell.rung.notify_one();
    }

    /// Rings for all: hints may have been lost.
    pub fn ring_all(&self) {
        self.with(|listeners| listeners.values().for_each(|bell| bell.rung.notify_one()));
    }

    fn bell(&self, key: &LockKey) -> Option<Arc<Bell>> {
        self.with(|listeners| listeners.get(key).cloned())
    }

    fn with<T>(&self, use_them: impl FnOnce(&mut HashMap<LockKey, Arc<Bell>>) -> T) -> T {
        use_them(&mut self.listeners.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Wakeup {
    /// Waits for a hint; an earlier one counts.
    ///
    /// # Cancel safety
    ///
    /// No hint is lost.
    pub async fn rung(&self) {
        self.bell.rung.notified().await;
    }

    /// Takes the claims that ended elsewhere since the last call.
    pub fn take_ended(&self) -> Vec<EndElsewhere> {
        std::mem::take(&mut *self.bell.ended())
    }
}

impl Drop for Wakeup {
    fn drop(&mut self) {
        self.wakeups.with(|listeners| {
            if listeners.get(&self.key).is_some_and(|bell| Arc::ptr_eq(bell, &self.bell)) {
                listeners.remove(&self.key);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::Wakeups;
    use crate::lock::key::LockKey;

    #[test]
    fn a_listener_that_is_gone_leaves_nothing_behind_and_takes_no_other_along() {
        let wakeups = Arc::new(Wakeups::default());
        let key = LockKey::parse("a").unwrap();
        let old = wakeups.listen(&key);
        let new = wakeups.listen(&key);
        drop(old);
        assert_eq!(wakeups.with(|listeners| listeners.len()), 1);
        drop(new);
        assert_eq!(wakeups.with(|listeners| listeners.len()), 0);
    }
}
