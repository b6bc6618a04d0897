//! What every store has to do, written once and run on each.

mod aside;
mod crossing;
mod definite;
mod gone;
mod identity;
pub(crate) mod keys;
pub(crate) mod line;
mod listing;
mod max_hold;
pub(crate) mod nodes;
mod rules;
mod several;
mod several_waiting;
pub(crate) mod sharing;
mod sharing_line;
mod since;
pub(crate) mod toy;
mod units;
mod verbs;
pub(crate) mod waiting;

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use lockkeeper::lock::hold::{HoldWish, TimedOut};
use lockkeeper::lock::key::LockKey;
use lockkeeper::lock::lease::{Claim, Holder, Lease, Origin, Owner};
use lockkeeper::lock::prefixes::{Prefix, Prefixes};
use lockkeeper::lock::store::{Answer, Ask, Page, Store, Target};
use lockkeeper::lock::time::Ttl;
use lockkeeper::lock::token::{FencingToken, LeaseToken};
use lockkeeper::lock::waiting::WaitLimits;
use lockkeeper::metrics::Metrics;
use lockkeeper::store::embedded::EmbeddedSettings;
use lockkeeper::store::redis::{NodeTls, RedisSettings};
use lockkeeper::store::{OpenError, StoreSettings, open};
use tempfile::TempDir;

use crate::conformance::nodes::Nodes;
use crate::support::{PATIENCE, Redis, eventually, fleet, in_memory};

/// How long a claim that is away keeps its place.
pub(crate) const KEPT: Ttl = Ttl::from_millis(5_000);

/// The keys whose leases are limited.
pub(crate) const CAPPED: &str = "capped/";

/// The longest that one of these leases lasts.
pub(crate) const MAX_HOLD: Ttl = Ttl::from_millis(1_500);

/// More than any test needs.
pub(crate) const LIMITS: WaitLimits = WaitLimits { per_key: 1_000, per_instance: 2_000, keys: 100 };

/// A store, and what it stands on.
pub(crate) struct Stage {
    pub(crate) store: Arc<dyn Store>,
    ground: Ground,
}

/// What a store stands on.
enum Ground {
    Directory(TempDir),
    Redis(Redis),
    /// Several independent ones.
    Nodes(Nodes),
    /// Servers that all tests share, by their URL, under a prefix of this test's own.
    Shared(&'static str, String),
}

impl Stage {
    /// An embedded store in a directory of its own.
    pub(crate) async fn embedded() -> Self {
        Self::embedded_keeping(KEPT)
    }

    /// A store on a Redis of its own, once it is connected.
    pub(crate) async fn redis() -> Self {
        Self::on(Ground::Redis(Redis::start()), KEPT).await
    }

    /// A store on so many independent nodes, once they vote.
    pub(crate) async fn redlock(nodes: usize) -> Self {
        Self::on(Ground::Nodes(Nodes::of(nodes)), KEPT).await
    }

    /// A store on the master of sentinels.
    pub(crate) async fn sentinel() -> Self {
        Self::on(Ground::Shared(fleet::sentinel(), fleet::prefix()), KEPT).await
    }

    /// A store on a Cluster.
    pub(crate) async fn cluster() -> Self {
        Self::on(Ground::Shared(fleet::cluster(), fleet::prefix()), KEPT).await
    }

    /// One of the same kind in which a claim that is away keeps its place so long.
    pub(crate) async fn keeping(self, kept: Ttl) -> Self {
        match self.ground {
            Ground::Directory(_) => Self::embedded_keeping(kept),
            other => Self::on(other, kept).await,
        }
    }

    fn embedded_keeping(kept: Ttl) -> Self {
        let directory = in_memory();
        let store = store_in(&directory, kept, limits(CAPPED)).unwrap();
        Self { store, ground: Ground::Directory(directory) }
    }

    /// The same locks after a restart with a limit for keys below `text`.
    pub(crate) async fn restarted_limiting(self, text: &str) -> Self {
        let Self { store, ground } = self;
        drop(store);
        let store = match &ground {
            Ground::Directory(directory) => {
                let open = async || store_in(directory, KEPT, limits(text)).ok();
                eventually(PATIENCE, open).await
            }
            other => store_on(other, KEPT, limits(text)).await,
        };
        Self { store, ground }
    }

    async fn on(ground: Ground, kept: Ttl) -> Self {
        Self { store: store_on(&ground, kept, limits(CAPPED)).await, ground }
    }

    /// The Redis that it stands on alone, if it does.
    pub(crate) fn server(&self) -> Option<&Redis> {
        match &self.ground {
            Ground::Redis(redis) => Some(redis),
            _ => None,
        }
    }

    /// Another instance on the same Redis.
    pub(crate) async fn another(&self) -> Arc<dyn Store> {
        store_on(&self.ground, KEPT, limits(CAPPED)).await
    }

    /// Whether a lease lasts what was asked for, less the time of the answer: a half at least, and
    /// never more.
    pub(crate) fn lasts(&self, ttl: Ttl, asked_ms: u64) -> bool {
        let left = ttl.as_millis();
        match &self.ground {
            Ground::Nodes(_) => (asked_ms / 2..asked_ms - asked_ms / 100).contains(&left),
            _ => (asked_ms / 2..=asked_ms).contains(&left),
        }
    }

    /// A TTL in milliseconds that is soon over, and not before the answer. Each of several nodes has
    /// to vote within a twentieth of it, on a machine that is busy.
    pub(crate) fn soon_over(&self) -> u64 {
        match self.ground {
            Ground::Nodes(_) => 4_000,
            _ => 150,
        }
    }

    /// Whether a release hands the key to the next in line. On several nodes it is free until the
    /// next has asked for it.
    pub(crate) fn hands_over(&self) -> bool {
        !matches!(self.ground, Ground::Nodes(_))
    }

    /// Whether it counts votes: there a call in the last milliseconds of a lease may be unknown.
    pub(crate) fn counts_votes(&self) -> bool {
        matches!(self.ground, Ground::Nodes(_))
    }

    /// Refreshes whatever lease the token of this name has of a key.
    pub(crate) async fn refresh(&self, on: &str, name: &str, ttl: Option<Ttl>) -> Option<Lease> {
        let of = Target::of(&key(on), &token(name), None);
        self.store.renew(&of, ttl).await.unwrap().lease()
    }

    /// The lease that a claim is granted; anything else fails the test.
    pub(crate) async fn granted(&self, claim: &Claim) -> Lease {
        match self.store.ask(claim, Ask::Once(None)).await.unwrap() {
            Answer::Won(win) if win.fresh => win.lease,
            other => panic!("not granted: {other:?}"),
        }
    }

    /// Ends the leases of a key by force, by its number where the store asks for that. Returns the
    /// first holder.
    pub(crate) async fn forced(&self, key_text: &str) -> Option<Holder> {
        let (key, by_number) = (key(key_text), self.store.about().guarantees.forced_by_number);
        let named = match by_number {
            true => Some(self.store.look(&key, None, 0).await.unwrap().holder?.fencing_token?),
            false => None,
        };
        self.store.force_release(&key, named).await.unwrap().into_iter().next()
    }
}

fn store_in(
    directory: &TempDir,
    position_kept: Ttl,
    prefixes: Prefixes,
) -> Result<Arc<dyn Store>, OpenError> {
    let command_timeout = Duration::from_secs(5);
    let settings = EmbeddedSettings { position_kept, command_timeout, prefixes };
    let settings = StoreSettings::Embedded(directory.path().to_owned(), settings);
    open(settings, Arc::new(Metrics::for_embedded()))
}

/// A store on some Redis, once it is connected.
async fn store_on(ground: &Ground, kept: Ttl, prefixes: Prefixes) -> Arc<dyn Store> {
    let (url, key_prefix) = match ground {
        Ground::Directory(_) => unreachable!("no Redis"),
        Ground::Nodes(nodes) => return nodes.store(kept, prefixes).await,
        Ground::Redis(redis) => (redis.url(), "lock:".to_owned()),
        Ground::Shared(url, prefix) => ((*url).to_owned(), prefix.clone()),
    };
    let settings = StoreSettings::Redis(RedisSettings {
        url,
        key_prefix,
        command_timeout: PATIENCE,
        connect_timeout: PATIENCE,
        tls: NodeTls::default(),
        min_replicas: 0,
        default_ttl: Ttl::from_millis(30_000),
        position_kept: kept,
        prefixes,
    });
    let store = open(settings, Arc::new(Metrics::for_redis())).unwrap();
    eventually(PATIENCE, async || store.contacted().ok()).await;
    // A list asks all of its nodes.
    let page = Page { prefixes: [String::new()].into(), after: None, limit: 1 };
    eventually(PATIENCE, async || store.list(&page).await.ok()).await;
    store
}

/// A limit for the leases of keys below `text`.
fn limits(text: &str) -> Prefixes {
    Prefixes::new(vec![Prefix { text: text.to_owned(), max_hold: Some(MAX_HOLD) }]).unwrap()
}

/// A key.
pub(crate) fn key(text: &str) -> LockKey {
    LockKey::parse(text).unwrap()
}

/// A token that tests can tell from others.
pub(crate) fn token(name: &str) -> LeaseToken {
    LeaseToken::parse(&format!("{name:-<16}")).unwrap()
}

/// A number that no lease has yet.
pub(crate) fn next_number(last: FencingToken) -> FencingToken {
    FencingToken::from_number(last.number() + 1).unwrap()
}

/// A claim of a client with a token of its own.
pub(crate) fn claim(key_text: &str, name: &str, ttl_ms: u64) -> Claim {
    Claim {
        key: key(key_text),
        token: token(name),
        origin: Origin::Client,
        ttl: Ttl::from_millis(ttl_ms),
        owner: Owner::parse(&format!("{name}@host")).unwrap(),
        slots: None,
        units: None,
        kept: false,
        named: None,
        permit: None,
    }
}

/// A wish for a stream, which waits for as long as it takes.
pub(crate) fn wish(claim: Claim) -> HoldWish {
    let (claim, timed_out) = (Claim { kept: true, ..claim }, TimedOut::default());
    HoldWish { claim, patience: None, linger: None, timed_out }
}

/// Polls a call so many times, and drops it; returns its answer if it came before.
pub(crate) async fn polled_and_gone<F: Future>(call: F, polls: usize) -> Option<F::Output> {
    let (mut call, mut left) = (pin!(call), polls);
    std::future::poll_fn(|context| {
        left -= 1;
        match call.as_mut().poll(context) {
            Poll::Ready(answer) => Poll::Ready(Some(answer)),
            Poll::Pending if left == 0 => Poll::Ready(None),
            Poll::Pending => Poll::Pending,
        }
    })
    .await
}

/// Runs each test on a stage of one store, or of several numbers of nodes.
macro_rules! on_store {
    ($store:ident $nodes:tt $module:ident: $($test:ident),*) => {
        mod $store {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $test() {
                crate::conformance::on_stages!($store $nodes super::$module::$test);
            })*
        }
    };
}
use on_store;

macro_rules! on_stages {
    ($store:ident () $test:path) => {
        $test(crate::conformance::Stage::$store().await).await
    };
    ($store:ident ($($nodes:literal),*) $test:path) => {
        $($test(crate::conformance::Stage::$store($nodes).await).await;)*
    };
}
use on_stages;

/// Runs each test on each store; on Sentinel and Cluster, which run the code and the scripts of one
/// Redis, only those of [`on_routed_stores`].
macro_rules! on_every_store {
    ($module:ident: $($test:ident),* $(,)?) => {
        crate::conformance::on_store!(embedded () $module: $($test),*);
        crate::conformance::on_store!(redis () $module: $($test),*);
        crate::conformance::on_store!(redlock (1, 3) $module: $($test),*);
    };
}
use on_every_store;

/// Runs each test on each store whose keys can be shared.
macro_rules! on_every_store_that_shares {
    ($module:ident: $($test:ident),* $(,)?) => {
        crate::conformance::on_store!(embedded () $module: $($test),*);
        crate::conformance::on_store!(redis () $module: $($test),*);
    };
}
use on_every_store_that_shares;

/// Runs each test where a call is routed to one of several Redis: one test at least for each script,
/// whose keys have to be of one slot, and for what is published.
macro_rules! on_routed_stores {
    ($module:ident: $($test:ident),* $(,)?) => {
        crate::conformance::on_store!(sentinel () $module: $($test),*);
        crate::conformance::on_store!(cluster () $module: $($test),*);
    };
}
use on_routed_stores;
