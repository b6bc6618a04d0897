//! What the tests of claims of several keys share.

use std::sync::Arc;
use std::time::Duration;

use lockkeeper::lock::error::LockError;
use lockkeeper::lock::key::LockKey;
use lockkeeper::lock::lease::{Claim, Grant, Origin};
use lockkeeper::lock::locks::Locks;
use lockkeeper::lock::several::AllAcquired;
use lockkeeper::lock::store::{Ended, Store, Target};
use tokio::task::JoinSet;

use crate::conformance::toy::Toy;
use crate::conformance::{LIMITS, Stage, claim, key, token};
use crate::support::{PATIENCE, eventually};

pub(crate) const LONG: u64 = 60_000;

pub(crate) const FOR_EVER: Duration = Duration::from_secs(600);

pub(crate) type Answer = Result<AllAcquired, (LockKey, LockError)>;

/// A claim of each of these keys by a token of the client.
pub(crate) fn all(keys: &[&str], name: &str) -> Vec<Claim> {
    keys.iter().map(|key| claim(key, name, LONG)).collect()
}

/// The same by one of the service.
pub(crate) fn made(keys: &[&str], name: &str) -> Vec<Claim> {
    all(keys, name).into_iter().map(|one| Claim { origin: Origin::Service, ..one }).collect()
}

pub(crate) fn locks(stage: &Stage) -> Locks {
    Locks::new(stage.store.clone(), LIMITS)
}

pub(crate) fn toy(stage: &Stage) -> (Locks, Arc<Toy>) {
    let toy = Toy::over(stage.store.clone());
    (Locks::new(toy.clone() as Arc<dyn Store>, LIMITS), toy)
}

/// A claim in a task of its own, which ends with this.
pub(crate) struct Waiting(JoinSet<Answer>);

impl Waiting {
    pub(crate) fn of(locks: &Locks, claims: Vec<Claim>) -> Self {
        let (locks, mut tasks) = (locks.clone(), JoinSet::new());
        tasks.spawn(async move { locks.acquire_all(claims, FOR_EVER).await });
        Self(tasks)
    }

    pub(crate) async fn answer(mut self) -> Answer {
        let answer = tokio::time::timeout(PATIENCE, self.0.join_next()).await;
        answer.expect("answered in time").unwrap().unwrap()
    }

    /// Its client is gone.
    pub(crate) async fn leave(mut self) {
        self.0.shutdown().await;
    }

    pub(crate) async fn granted(self) -> Vec<Grant> {
        granted(self.answer().await).into_iter().map(|(grant, _)| grant).collect()
    }
}

pub(crate) fn granted(answer: Answer) -> Vec<(Grant, bool)> {
    match answer {
        Ok(AllAcquired::Granted(grants)) => grants,
        other => panic!("not granted: {other:?}"),
    }
}

/// The key that is held.
pub(crate) fn held(answer: Answer) -> String {
    match answer {
        Ok(AllAcquired::Held(status, _)) => status.key.to_string(),
        other => panic!("not held: {other:?}"),
    }
}

/// The number of the lease that this token has of a key.
pub(crate) async fn number(store: &Arc<dyn Store>, on: &str, name: &str) -> Option<u64> {
    let status = store.look(&key(on), Some(&token(name)), 0).await.unwrap();
    let own = status.holder.filter(|_| status.mine == Some(true))?;
    own.fencing_token.map(|number| number.number())
}

pub(crate) async fn holds(store: &Arc<dyn Store>, on: &str, name: &str) -> u64 {
    eventually(PATIENCE, async || number(store, on, name).await).await
}

pub(crate) async fn is_free(store: &Arc<dyn Store>, on: &str) -> bool {
    let status = store.look(&key(on), None, 0).await.unwrap();
    status.holder.is_none() && status.waiters == 0
}

/// Waits until nobody has any of the keys or waits for it.
pub(crate) async fn free(store: &Arc<dyn Store>, keys: &[&str]) {
    for on in keys {
        eventually(PATIENCE, async || is_free(store, on).await.then_some(())).await;
    }
}

pub(crate) async fn in_line(store: &Arc<dyn Store>, on: &str) {
    let waiters = async || store.look(&key(on), None, 0).await.unwrap().waiters;
    eventually(PATIENCE, async || (waiters().await == 1).then_some(())).await;
}

pub(crate) async fn release(store: &Arc<dyn Store>, on: &str, name: &str) {
    let ended = store.end(&Target::of(&key(on), &token(name), None)).await.unwrap();
    assert!(matches!(ended, Ended::Lease(_)), "{on}: {ended:?}");
}
