//! A store that can be made slow or made to fail, over one that does neither.

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use lockkeeper::lock::error::{Effect, StoreError, Verb};
use lockkeeper::lock::key::LockKey;
use lockkeeper::lock::lease::{Claim, Holder, LockStatus};
use lockkeeper::lock::store::{
    About, Answer, Ask, Condition, Ended, Keep, Listing, Page, Renewed, Store, Target,
};
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

    /// How many calls of this verb have begun.
    pub(crate) fn begun(&self, verb: Verb) -> u64 {
        self.begun.borrow().get(&verb).copied().unwrap_or_default()
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
        let fault = "the store failed";
        let failed = |effect| StoreError { verb, effect, fault, reason: "on purpose".into() };
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
    async fn ask(&self, claim: &Claim, ask: Ask) -> Result<Answer, StoreError> {
        let verb = match ask {
            Ask::Once(_) => Verb::TryAcquire,
            Ask::InLine(_) => Verb::WaitTurn,
        };
        self.go(verb, self.store.ask(claim, ask)).await
    }

    async fn renew(&self, of: &Target, ttl: Option<Ttl>) -> Result<Renewed, StoreError> {
        let verb = match of.only {
            Condition::Any => Verb::Refresh,
            Condition::Kept => Verb::Keep,
            _ => Verb::LetGo,
        };
        self.go(verb, self.store.renew(of, ttl)).await
    }

    async fn end(&self, of: &Target) -> Result<Ended, StoreError> {
        let verb = match of.only {
            Condition::LetGo { .. } => Verb::LetGo,
            _ => Verb::Release,
        };
        self.go(verb, self.store.end(of)).await
    }

    async fn leave(&self, key: &LockKey, claims: &[(LeaseToken, Keep)]) -> Result<(), StoreError> {
        self.go(Verb::Leave, self.store.leave(key, claims)).await
    }

    fn listen(&self, key: &LockKey) -> Wakeup {
        self.store.listen(key)
    }

    async fn force_release(
        &self,
        key: &LockKey,
        named: Option<FencingToken>,
    ) -> Result<Vec<Holder>, StoreError> {
        self.go(Verb::ForceRelease, self.store.force_release(key, named)).await
    }

    async fn look(
        &self,
        key: &LockKey,
        token: Option<&LeaseToken>,
        most: usize,
    ) -> Result<LockStatus, StoreError> {
        self.go(Verb::Inspect, self.store.look(key, token, most)).await
    }

    async fn list(&self, page: &Page) -> Result<Listing, StoreError> {
        self.go(Verb::List, self.store.list(page)).await
    }

    fn contacted(&self) -> Result<(), String> {
        self.store.contacted()
    }

    fn about(&self) -> About {
        self.store.about()
    }
}
