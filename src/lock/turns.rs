//! Turns of the requests of one claim: rule 9. On one instance a claim has one question under way,
//! and the next one is asked once the answer to that was handed over or taken back. So requests that
//! their client gave up, however many, leave nothing.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Mutex as Lock, OwnedMutexGuard};

use crate::lock::key::LockKey;
use crate::lock::lease::{Claim, Origin};
use crate::lock::token::LeaseToken;

/// The turns of all claims with a token of their client; one of the service has one request.
#[derive(Debug, Default)]
pub(crate) struct Turns(Mutex<HashMap<Id, Arc<Lock<()>>>>);

type Id = (LockKey, LeaseToken);

/// The turn of a request, or its wait for it, until dropped.
#[derive(Debug)]
pub(crate) struct Turn {
    turns: Arc<Turns>,
    id: Id,
    /// Held once it is this request's turn.
    held: Option<OwnedMutexGuard<()>>,
}

impl Turns {
    /// Waits until no other question of a client's claim is under way. Calls of one claim are served
    /// in their order.
    ///
    /// # Cancel safety
    ///
    /// The request loses its place.
    pub(crate) async fn take(self: &Arc<Self>, claim: &Claim) -> Option<Turn> {
        if claim.origin == Origin::Service {
            return None;
        }
        let id = (claim.key.clone(), claim.token.clone());
        let lock = self.with(|turns| turns.entry(id.clone()).or_default().clone());
        let mut turn = Turn { turns: self.clone(), id, held: None };
        turn.held = Some(lock.lock_owned().await);
        Some(turn)
    }

    fn with<T>(&self, use_them: impl FnOnce(&mut HashMap<Id, Arc<Lock<()>>>) -> T) -> T {
        use_them(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for Turn {
    /// Ends the turn, and forgets the claim with its last request.
    fn drop(&mut self) {
        self.held = None;
        self.turns.with(|turns| {
            if turns.get(&self.id).is_some_and(|lock| Arc::strong_count(lock) == 1) {
                turns.remove(&self.id);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use futures_util::FutureExt;

    use super::Turns;
    use crate::lock::sample::claim;

    #[tokio::test]
    async fn requests_of_one_claim_take_turns_and_leave_nothing() {
        let turns = Arc::new(Turns::default());
        let claim = claim("key", "one", 1_000);
        let first = turns.take(&claim).await;
        let mut second = Box::pin(turns.take(&claim));
        let mut gone = Box::pin(turns.take(&claim));
        assert!((&mut second).now_or_never().is_none() && (&mut gone).now_or_never().is_none());
        drop(first);
        let second = second.await;
        drop(second);
        drop(gone);
        assert_eq!(turns.with(|turns| turns.len()), 0);
    }
}
