//! What every store has to do, written once and run on each.

mod aside;
mod crossing;
mod gone;
pub(crate) mod line;
mod listing;
pub(crate) mod toy;
mod verbs;
pub(crate) mod waiting;

use std::sync::Arc;

use lockkeeper::lock::key::LockKey;
use lockkeeper::lock::lease::Claim;
use lockkeeper::lock::lease::Lease;
use lockkeeper::lock::lease::Origin;
use lockkeeper::lock::lease::Owner;
use lockkeeper::lock::store::Attempt;
use lockkeeper::lock::store::Store;
use lockkeeper::lock::time::Ttl;
use lockkeeper::lock::token::LeaseToken;
use lockkeeper::lock::waiting::WaitLimits;
use lockkeeper::metrics::Metrics;
use lockkeeper::store::StoreSettings;
use lockkeeper::store::open;
use lockkeeper::store::redis::RedisSettings;
use tempfile::TempDir;

use crate::support::PATIENCE;
use crate::support::Redis;
use crate::support::eventually;

/// How long a claim that is away keeps its place.
pub(crate) const KEPT: Ttl = Ttl::from_millis(5_000);

/// More than any test needs.
pub(crate) const LIMITS: WaitLimits = WaitLimits { per_key: 1_000, per_instance: 2_000, keys: 100 };

/// A store, and what it stands on.
pub(crate) struct Stage {
    pub(crate) store: Arc<dyn Store>,
    _directory: Option<TempDir>,
    redis: Option<Redis>,
}

impl Stage {
    /// An embedded store in a directory of its own.
    pub(crate) async fn embedded() -> Self {
        Self::embedded_keeping(KEPT)
    }

    /// A store on a Redis of its own, once it is connected.
    pub(crate) async fn redis() -> Self {
        let redis = Redis::start();
        let store = on(&redis, KEPT).await;
        Self { store, _directory: None, redis: Some(redis) }
    }

    /// One of the same kind in which a claim that is away keeps its place so long.
    pub(crate) async fn keeping(self, kept: Ttl) -> Self {
        let Some(redis) = self.redis else { return Self::embedded_keeping(kept) };
        let store = on(&redis, kept).await;
        Self { store, _directory: None, redis: Some(redis) }
    }

    fn embedded_keeping(kept: Ttl) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let settings = StoreSettings::Embedded(directory.path().to_owned(), kept);
        let store = open(settings, Arc::new(Metrics::new("embedded"))).unwrap();
        Self { store, _directory: Some(directory), redis: None }
    }

    /// The Redis that it stands on, if it does.
    pub(crate) fn server(&self) -> Option<&Redis> {
        self.redis.as_ref()
    }

    /// Another instance on the same Redis.
    pub(crate) async fn another(&self) -> Arc<dyn Store> {
        on(self.redis.as_ref().unwrap(), KEPT).await
    }

    /// The lease that a claim is granted; anything else fails the test.
    pub(crate) async fn granted(&self, claim: &Claim) -> Lease {
        match self.store.try_acquire(claim).await.unwrap() {
            Attempt::Granted(lease) => lease,
            other => panic!("not granted: {other:?}"),
        }
    }
}

/// A store on this Redis, once it is connected.
async fn on(redis: &Redis, kept: Ttl) -> Arc<dyn Store> {
    let settings = StoreSettings::Redis(RedisSettings {
        url: redis.url(),
        key_prefix: "lock:".to_owned(),
        command_timeout: PATIENCE,
        connect_timeout: PATIENCE,
        default_ttl: Ttl::from_millis(30_000),
        position_kept: kept,
    });
    let store = open(settings, Arc::new(Metrics::new("redis"))).unwrap();
    eventually(PATIENCE, async || store.contacted().then_some(())).await;
    store
}

/// A key.
pub(crate) fn key(text: &str) -> LockKey {
    LockKey::parse(text).unwrap()
}

/// A token that tests can tell from others.
pub(crate) fn token(name: &str) -> LeaseToken {
    LeaseToken::parse(&format!("{name:-<16}")).unwrap()
}

/// A claim of a client with a token of its own.
pub(crate) fn claim(key_text: &str, name: &str, ttl_ms: u64) -> Claim {
    Claim {
        key: key(key_text),
        token: token(name),
        origin: Origin::Client,
        ttl: Ttl::from_millis(ttl_ms),
        owner: Owner::parse(&format!("{name}@host")).unwrap(),
    }
}

/// Runs each test on each store: the one list of both.
macro_rules! on_every_store {
    ($module:ident: $($test:ident),* $(,)?) => {
        mod embedded {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                super::$module::$test(crate::conformance::Stage::embedded().await).await;
            })*
        }
        mod redis {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                super::$module::$test(crate::conformance::Stage::redis().await).await;
            })*
        }
    };
}
use on_every_store;
