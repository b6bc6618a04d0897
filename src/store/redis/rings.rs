//! Hints from Redis, for the waiters of this instance.

use std::sync::Arc;

use crate::lock::key::LockKey;
use crate::lock::wakeup::{EndElsewhere, Wakeups};
use crate::store::redis::link::Hints;

/// The delimiter around a claim that ended elsewhere: its place, and [`RELEASED`] if it was. No
/// lock's name begins with it.
const ENDED: char = '\u{1}';

const RELEASED: &str = " released";

/// Rings for the locks that are handed to this instance.
pub(in crate::store) struct Rings {
    pub(in crate::store) key_prefix: String,
    pub(in crate::store) wakeups: Arc<Wakeups>,
}

impl Hints for Rings {
    fn handed(&self, hint: &str) {
        let ended = hint.strip_prefix(ENDED).and_then(|hint| hint.split_once(ENDED));
        let (end, lock) = ended.map_or((None, hint), |(end, lock)| (parse(end), lock));
        let key = lock.strip_prefix(&self.key_prefix).and_then(|key| LockKey::parse(key).ok());
        match (key, end) {
            (Some(key), Some(end)) => self.wakeups.ended(&key, end),
            (Some(key), None) => self.wakeups.ring(&key),
            (None, _) => (),
        }
    }

    fn lost(&self) {
        self.wakeups.ring_all();
    }
}

fn parse(end: &str) -> Option<EndElsewhere> {
    let released = end.strip_suffix(RELEASED);
    let place = released.unwrap_or(end).parse().ok()?;
    Some(EndElsewhere { place, released: released.is_some() })
}
