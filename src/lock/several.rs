//! Several keys in one claim: a lease of each, or none.
//!
//! The keys are claimed one after another in the order of their bytes, each in its line, so no two
//! claims wait for each other. A claim keeps what it has got, as a stream does, so no other request is
//! told of it, and it can be taken back however long a later key is awaited. At the end it lets its
//! leases go, each with its full TTL. Nothing here is known to the store.

use std::pin::pin;
use std::time::Duration;

use futures_util::future::{join_all, select_all};
use tokio::time::{Instant, sleep_until, timeout};

use crate::lock::error::{Effect, LockError, StoreError};
use crate::lock::key::LockKey;
use crate::lock::lease::{Claim, Grant, Lease, LockStatus};
use crate::lock::leases::Registered;
use crate::lock::locks::{Locks, may_wait};
use crate::lock::store::{Answer, Condition, Renewed, Target};
use crate::lock::undo_queue::Delivery;

/// The pause before asking again for a key of which the token has a lease that is kept: mostly that
/// of an earlier request, whose end this instance does not see.
const PAUSE: Duration = Duration::from_millis(250);

/// The longest wait for the store to take leases back. Then a refusal is not definite.
const TAKE_BACK: Duration = Duration::from_secs(1);

/// The answer to a claim of several keys.
#[derive(Debug)]
pub enum AllAcquired {
    /// A lease of each key, in the order of the claims; true for a new one.
    Granted(Vec<(Grant, bool)>),
    /// This key is held, after waiting this long.
    Held(LockStatus, Duration),
    /// The lease of this key was lost before the claim had all of them.
    Lost(LockKey, Duration),
}

/// The reason why a claim did not get all keys.
enum Refused {
    Held(LockStatus),
    Lost(LockKey),
    Failed(LockKey, LockError),
}

impl Refused {
    /// The same where leases are still being taken back, so that no refusal is definite.
    fn into_unknown(self) -> Self {
        let key = match self {
            Self::Failed(_, LockError::Store(StoreError { effect: Effect::Unknown, .. })) => {
                return self;
            }
            Self::Held(LockStatus { key, .. }) | Self::Lost(key) | Self::Failed(key, _) => key,
        };
        Self::Failed(key, StoreError::not_taken_back().into())
    }
}

/// A lease that the claim has got. Dropped, it is taken back if it is new and kept.
struct Got {
    /// The place of its key among the claims.
    place: usize,
    claim: Claim,
    lease: Lease,
    delivery: Delivery,
    fresh: bool,
    /// Hears of an end that this instance sees.
    registered: Registered,
}

impl Got {
    /// The lease by its number.
    fn target(&self, only: Condition) -> Target {
        let number = Some(self.lease.fencing_token);
        Target::of(&self.claim.key, &self.claim.token, number).only(only)
    }
}

/// Waits until one of the leases has ended.
async fn any_ended(got: &[Got]) -> LockKey {
    let ended = async |one: &Got| {
        one.registered.told().await;
        one.claim.key.clone()
    };
    select_all(got.iter().map(|one| Box::pin(ended(one)))).await.0
}

/// Undoes all claims with a token of the service, unless it is defused: nobody else knows of leases
/// that were let go.
struct LettingGo<'a> {
    locks: &'a Locks,
    claims: Vec<Claim>,
}

impl Drop for LettingGo<'_> {
    fn drop(&mut self) {
        self.claims.iter().for_each(|claim| self.locks.undo(claim));
    }
}

impl Locks {
    /// Acquires a lease for each of the claims, which have one token and different keys, waiting in
    /// line for at most `patience` in all. Leases that the token had before stay in any case.
    ///
    /// # Errors
    ///
    /// As [`Locks::acquire`], with the key. Of the other keys nothing is left then, unless the
    /// outcome is unknown and the client made the token.
    ///
    /// # Cancel safety
    ///
    /// As [`Locks::acquire`]. If the client made the token, the leases count as handed over once they
    /// are about to be let go.
    pub async fn acquire_all(
        &self,
        claims: Vec<Claim>,
        patience: Duration,
    ) -> Result<AllAcquired, (LockKey, LockError)> {
        let began = Instant::now();
        let until = began.checked_add(patience).filter(|_| !patience.is_zero());
        let mut got = Vec::new();
        let refused = match self.get_all(claims, (began, until), &mut got).await {
            Err(refused) => refused,
            Ok(has_waited) => {
                let waited = if has_waited { began.elapsed() } else { Duration::ZERO };
                match self.let_all_go(&mut got).await {
                    Err(refused) => refused,
                    Ok(()) => return Ok(self.hand_over(got, waited)),
                }
            }
        };
        let waited = until.map_or(Duration::ZERO, |_| began.elapsed());
        let is_definite = take_back(got).await;
        match if is_definite { refused } else { refused.into_unknown() } {
            Refused::Held(status) => Ok(AllAcquired::Held(status, waited)),
            Refused::Lost(key) => Ok(AllAcquired::Lost(key, waited)),
            Refused::Failed(key, error) => Err((key, error)),
        }
    }

    /// Gets the keys one after another, and keeps those that it has. Returns whether it has waited.
    async fn get_all(
        &self,
        claims: Vec<Claim>,
        (began, until): (Instant, Option<Instant>),
        got: &mut Vec<Got>,
    ) -> Result<bool, Refused> {
        let mut in_order: Vec<_> = claims.into_iter().enumerate().collect();
        in_order.sort_unstable_by(|(_, one), (_, other)| one.key.cmp(&other.key));
        let keys: Vec<_> = in_order.iter().map(|(_, claim)| claim.key.clone()).collect();
        let mut has_waited = false;
        let mut beat = began;
        for (place, claim) in in_order {
            let claim = Claim { kept: true, ..claim };
            let interval = claim.ttl.as_duration() / 3;
            let mut asking = pin!(self.get(&claim, &keys, until, &mut has_waited));
            let delivery = loop {
                tokio::select! {
                    biased;
                    delivery = &mut asking => break delivery,
                    key = any_ended(got), if !got.is_empty() => {
                        return Err(Refused::Lost(key));
                    }
                    // To its end, also if the answer comes: no later call is overtaken by it.
                    () = sleep_until(beat), if !got.is_empty() => {
                        self.keep(got).await?;
                        beat = Instant::now() + interval;
                    }
                }
            };
            let mut delivery =
                delivery.map_err(|error| Refused::Failed(claim.key.clone(), error))?;
            let Ok(Answer::Won(win)) = delivery.answer() else {
                return Err(refused(&claim, delivery, began));
            };
            if got.is_empty() {
                beat = Instant::now() + interval;
            }
            let lease = win.lease.clone();
            let fresh = win.fresh;
            let claim = claim.clone();
            delivery.end_turn();
            let registered = Registered::new(self.leases().clone(), claim.key.clone());
            let _ = registered.has(&lease);
            got.push(Got { place, claim, lease, delivery, fresh, registered });
        }
        Ok(has_waited)
    }

    /// The answer to one of the claims. A lease that the token had before is repeated. If it is kept,
    /// an older request of the same claim may wait for one of the keys, and is superseded: rule 9.
    async fn get(
        &self,
        claim: &Claim,
        keys: &[LockKey],
        until: Option<Instant>,
        has_waited: &mut bool,
    ) -> Result<Delivery, LockError> {
        let mut supersedes = until.is_some();
        loop {
            let asked = self.ask_in_line(claim, until, has_waited).await?;
            match asked.answer() {
                Ok(Answer::Held(status)) if status.mine == Some(true) => (),
                _ => return Ok(asked),
            }
            // Once: what waits later is newer.
            if std::mem::take(&mut supersedes) {
                keys.iter().for_each(|key| self.waiters.supersede(key, &claim.token));
            }
            let again = self.ask(Claim { kept: false, ..claim.clone() }).await?;
            match again.answer() {
                // That lease has ended meanwhile: this one is taken back, and begun as a kept one.
                Ok(Answer::Won(win)) if win.fresh => (),
                Ok(Answer::Held(status))
                    if until.is_some_and(|until| Instant::now() < until)
                        && !has_another_share(claim, status)
                        && !self.drains() =>
                {
                    *has_waited = true;
                    let _ = timeout(PAUSE, self.drained()).await;
                }
                _ => return Ok(again),
            }
        }
    }

    /// Asks for a key, and if it is held by others, in its line.
    async fn ask_in_line(
        &self,
        claim: &Claim,
        until: Option<Instant>,
        has_waited: &mut bool,
    ) -> Result<Delivery, LockError> {
        let first = Box::pin(self.ask(claim.clone())).await?;
        match first.answer() {
            Ok(Answer::Held(status)) if until.is_some() && may_wait(claim, status) => (),
            _ => return Ok(first),
        }
        *has_waited = true;
        match self.enter(claim.clone(), until)?.outcome().await {
            Some(delivery) => Ok(delivery),
            // The instance shuts down; another one may have granted it.
            None => Box::pin(self.ask(claim.clone())).await,
        }
    }

    /// Renews the leases while a later key is awaited. Without an answer the last renewal decides.
    async fn keep(&self, got: &mut [Got]) -> Result<(), Refused> {
        got.iter_mut().for_each(|one| one.delivery.kept());
        let renew = |one: &Got| {
            let only = if one.fresh { Condition::Kept } else { Condition::Any };
            self.renew(one.target(only), Some(one.claim.ttl))
        };
        let renewed = join_all(got.iter().map(renew)).await;
        match got.iter().zip(&renewed).find(|(_, renewed)| is_lost(renewed)) {
            Some((lost, _)) => Err(Refused::Lost(lost.claim.key.clone())),
            None => Ok(()),
        }
    }

    /// Lets the leases go, each with its full TTL. Nothing is taken back from here on: as soon as a
    /// lease is plain, another request of the token may be told of it.
    async fn let_all_go(&self, got: &mut [Got]) -> Result<(), Refused> {
        let claims = got.iter().map(|one| one.claim.clone()).collect();
        let mut letting_go = LettingGo { locks: self, claims };
        got.iter_mut().for_each(|one| one.delivery.count_as_told());
        let renew = async |one: &Got| {
            let only = if one.fresh { Condition::LetGo { grants: true } } else { Condition::Any };
            let renewed = self.renew(one.target(only), Some(one.claim.ttl)).await;
            (renewed, Instant::now())
        };
        let renewed = join_all(got.iter().map(renew)).await;
        for (one, (renewed, at)) in got.iter_mut().zip(renewed) {
            let failed = |error: StoreError| Refused::Failed(one.claim.key.clone(), error.into());
            let lease = match renewed.map_err(failed)? {
                Renewed::Lease(mut lease) => {
                    lease.count_down_since(at); // The answer of another one may have taken long.
                    Some(lease).filter(|lease| !lease.is_over())
                }
                Renewed::Kept(_) | Renewed::Lost(_) => None,
            };
            one.lease = lease.ok_or_else(|| failed(StoreError::lost_at_last()))?;
        }
        letting_go.claims.clear();
        Ok(())
    }

    /// The grants, in the order of the claims.
    fn hand_over(&self, mut got: Vec<Got>, waited: Duration) -> AllAcquired {
        got.sort_unstable_by_key(|one| one.place);
        let grant = |one: Got| {
            if let Ok(Answer::Won(win)) = one.delivery.answer() {
                self.leases().waited(win, waited);
            }
            (Grant { lease: one.lease, token: one.claim.token, waited }, one.fresh)
        };
        AllAcquired::Granted(got.into_iter().map(grant).collect())
    }
}

/// Takes the new leases back that do not count as told. Returns true if that was done in a moment.
async fn take_back(got: Vec<Got>) -> bool {
    let undone = got.into_iter().rev().filter_map(|one| one.delivery.take_back());
    timeout(TAKE_BACK, join_all(undone)).await.is_ok()
}

fn is_lost(renewed: &Result<Renewed, StoreError>) -> bool {
    match renewed {
        Ok(Renewed::Lease(lease)) => lease.is_over(),
        Ok(Renewed::Kept(_) | Renewed::Lost(_)) => true,
        Err(_) => false,
    }
}

/// Returns true if a claim is refused for another share than that of its token's lease, which is not
/// awaited.
fn has_another_share(claim: &Claim, refusal: &LockStatus) -> bool {
    let own = refusal.holder.as_ref().filter(|_| refusal.mine == Some(true));
    own.is_some_and(|own| !claim.keeps(own.share))
}

/// The refusal of a claim by an answer that is no grant.
fn refused(claim: &Claim, delivery: Delivery, began: Instant) -> Refused {
    let key = claim.key.clone();
    let waited = began.elapsed();
    match delivery.hand_over() {
        Ok(Answer::Held(status)) => Refused::Held(status),
        Ok(Answer::Won(_) | Answer::Lost(_)) => Refused::Lost(key),
        Ok(Answer::Cancelled) => Refused::Failed(key, LockError::WaitCancelled(waited)),
        Ok(Answer::Superseded | Answer::Waiting(_)) => {
            Refused::Failed(key, LockError::Superseded(waited))
        }
        Err(error) => Refused::Failed(key, error.into()),
    }
}
