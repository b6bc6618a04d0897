//! A store that can be made slow or made to fail, over one that does neither.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use lockkeeper::lock::error::{Effect, StoreError, Verb};
use lockkeeper::lock::key::LockKey;
use lockkeeper::lock::lease::{Claim, Holder, Holding, Lease, LockStatus, Receipt};
use lockkeeper::lock::store::{Attempt, Guarantees, Keep, Kept, Page, Released, Store, Turn};
use lockkeeper::lock::time::Ttl;
use lockkeeper::lock::token::{FencingToken, LeaseToken};
use lockkeeper::lock::wakeup::Wakeup;
use tokio::sync::watch;

use crate::support::PATIENCE;

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// It is done and answered.
    Straight,
    /// It stands still before it is done.
    Before,
    /// It is done, and its answer stands still.
    After,
    /// It is not done, and that is answered.
    Refused,
    /// It is done, and nobody knows.
    Lost,
}

/// See the module.
pub(crate) struct Toy {
    store: Arc<dyn Store>,
    ways: watch::Sender<HashMap<Verb, Way>>,
    begun: watch::Sender<HashMap<Verb, u64>>,
    calls: watch::Sender<HashMap<Verb, u64>>,
}

impl Toy {
    pub(crate) fn over(store: Arc<dyn Store>) -> Arc<Self> {
        let ways = watch::Sender::new(HashMap::new());
        let (begun, calls) = (watch::Sender::default(), watch::Sender::default());
        Arc::new(Self { store, ways, begun, calls })
    }

    /// From here on calls of this verb go this way.
    pub(crate) fn let_go(&self, verb: Verb, way: Way) {
        self.ways.send_modify(|ways| _ = ways.insert(verb, way));
    }

    /// How many calls of this verb have come to where their way leads.
    pub(crate) fn calls(&self, verb: Verb) -> u64 {
        self.calls.borrow().get(&verb).copied().unwrap_or_default()
    }

    /// Waits until there were more than `before` calls of this verb.
    pub(crate) async fn called(&self, verb: Verb, before: u64) {
        let mut calls = self.calls.subscribe();
        let more = calls.wait_for(|calls| calls.get(&verb).is_some_and(|count| *count > before));
        tokio::time::timeout(PATIENCE, more).await.unwrap().unwrap();
    }

    /// From here on calls of this verb go this way, and none goes another way any more. No call of
    /// this verb may stand still or be dropped meanwhile.
    pub(crate) async fn all_go(&self, verb: Verb, way: Way) {
        self.let_go(verb, way);
        let begun = self.begun.borrow().get(&verb).copied().unwrap_or_default();
        if begun > 0 {
            self.called(verb, begun - 1).await;
        }
    }

    async fn go<T>(
        &self,
        verb: Verb,
        call: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.begun.send_modify(|begun| *begun.entry(verb).or_default() += 1);
        let way = self.ways.borrow().get(&verb).copied().unwrap_or(Way::Straight);
        let come = || self.calls.send_modify(|calls| *calls.entry(verb).or_default() += 1);
        let stand_still = async || {
            let mut ways = self.ways.subscribe();
            ways.wait_for(|ways| ways.get(&verb) != Some(&way)).await.unwrap();
        };
        let failed = |effect| StoreError { verb, effect, reason: "on purpose".into() };
        match way {
            Way::Before => {
                come();
                stand_still().await;
                call.await
            }
            Way::Straight | Way::After | Way::Lost => {
                let answer = call.await;
                come();
                match way {
                    Way::After => stand_still().await,
                    Way::Lost => return Err(failed(Effect::Unknown)),
                    _ => (),
                }
                answer
            }
            Way::Refused => {
                come();
                Err(failed(Effect::None))
            }
        }
    }
}

#[async_trait]
impl Store for Toy {
    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, StoreError> {
        self.go(Verb::TryAcquire, self.store.try_acquire(claim)).await
    }

    async fn wait_turn(&self, claim: &Claim, stood: Option<u64>) -> Result<Turn, StoreError> {
        self.go(Verb::WaitTurn, self.store.wait_turn(claim, stood)).await
    }

    async fn leave(&self, key: &LockKey, claims: &[(LeaseToken, Keep)]) -> Result<(), StoreError> {
        self.go(Verb::Leave, self.store.leave(key, claims)).await
    }

    async fn keep(&self, holding: &Holding, ttl: Ttl) -> Result<Kept, StoreError> {
        self.go(Verb::Keep, self.store.keep(holding, ttl)).await
    }

    async fn let_go(&self, holding: &Holding, linger: Option<Ttl>) -> Result<(), StoreError> {
        self.go(Verb::LetGo, self.store.let_go(holding, linger)).await
    }

    fn listen(&self, key: &LockKey) -> Wakeup {
        self.store.listen(key)
    }

    async fn refresh(
        &self,
        key: &LockKey,
        token: &LeaseToken,
        named: Option<FencingToken>,
        ttl: Option<Ttl>,
    ) -> Result<Option<Lease>, StoreError> {
        self.go(Verb::Refresh, self.store.refresh(key, token, named, ttl)).await
    }

    async fn release(
        &self,
        key: &LockKey,
        token: &LeaseToken,
        named: Option<FencingToken>,
    ) -> Result<Released, StoreError> {
        self.go(Verb::Release, self.store.release(key, token, named)).await
    }

    async fn undo(&self, key: &LockKey, token: &LeaseToken) -> Result<(), StoreError> {
        self.go(Verb::Release, self.store.undo(key, token)).await
    }

    async fn take_back(&self, receipt: &Receipt) -> Result<(), StoreError> {
        self.go(Verb::Release, self.store.take_back(receipt)).await
    }

    async fn force_release(
        &self,
        key: &LockKey,
        named: Option<FencingToken>,
    ) -> Result<Vec<Holder>, StoreError> {
        self.go(Verb::ForceRelease, self.store.force_release(key, named)).await
    }

    async fn inspect_line(
        &self,
        key: &LockKey,
        token: Option<&LeaseToken>,
        most: usize,
    ) -> Result<LockStatus, StoreError> {
        self.go(Verb::Inspect, self.store.inspect_line(key, token, most)).await
    }

    async fn list(&self, page: &Page) -> Result<Vec<LockStatus>, StoreError> {
        self.go(Verb::List, self.store.list(page)).await
    }

    fn contacted(&self) -> bool {
        self.store.contacted()
    }

    fn guarantees(&self) -> Guarantees {
        self.store.guarantees()
    }
}
