//! The resources that the keys guard: each refuses a late writer by its number.

use std::sync::{Mutex, PoisonError};

use crate::drive::asker::Lease;
use crate::history::{Line, Token, Write};
use crate::record::Recorder;

/// The highest number that a resource has seen, and the token that came with it.
type Seen = (u64, Token);

/// One resource for each key.
#[derive(Debug)]
pub(super) struct Resources(Vec<Mutex<Seen>>);

impl Resources {
    pub(super) fn new(keys: u32) -> Self {
        Self((0..keys).map(|_| Mutex::default()).collect())
    }

    /// Writes, unless the resource has seen a higher number or an equal one with another token.
    pub(super) fn write(&self, recorder: &Recorder, lease: &Lease) {
        let Lease { key, ref token, fencing_token, until } = *lease;
        let token = token.number;
        let Some(resource) = self.0.get(key as usize) else { return };
        let mut seen = resource.lock().unwrap_or_else(PoisonError::into_inner);
        let taken = fencing_token > seen.0 || *seen == (fencing_token, token);
        if taken {
            *seen = (fencing_token, token);
        }
        // Within the lock, so that the order of the lines is the order of the writes.
        let at = recorder.now();
        let late = at >= until;
        recorder.write(Line::Write(Write { key, token, fencing_token, at, taken, late }));
    }
}
