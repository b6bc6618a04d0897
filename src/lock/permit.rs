//! Counts of what one API key has at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A count of permits.
#[derive(Clone, Debug, Default)]
pub struct Count(Arc<AtomicUsize>);

/// One of a count, until its last clone is dropped.
#[derive(Clone, Debug)]
pub struct Permit(Arc<Taken>);

#[derive(Debug)]
struct Taken(Count);

impl Count {
    /// A permit, if there are fewer than `most`.
    pub(crate) fn permit(&self, most: usize) -> Option<Permit> {
        let more = |count: usize| (count < most).then_some(count + 1);
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).ok()?;
        Some(Permit(Arc::new(Taken(self.clone()))))
    }
}

impl Permit {
    /// Returns whether this is one of that count.
    pub(crate) fn is_of(&self, count: &Count) -> bool {
        Arc::ptr_eq(&self.0.0.0, &count.0)
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}
