//! A service whose store panics.

use std::sync::Arc;

use async_trait::async_trait;
use axum::Router;
use axum::extract::Request;
use lockkeeper::api::{Api, ApiLimits, App, Lists, Pulse, Quota, Quotas};
use lockkeeper::auth::{HostNames, Keyring, TrustedProxies};
use lockkeeper::lock::error::StoreError;
use lockkeeper::lock::key::LockKey;
use lockkeeper::lock::lease::{Claim, Holder, Holding, Lease, LockStatus, Receipt};
use lockkeeper::lock::locks::Locks;
use lockkeeper::lock::slots::Slots;
use lockkeeper::lock::store::{Attempt, Guarantees, Keep, Kept, Page, Released, Store, Turn};
use lockkeeper::lock::time::{Ttl, TtlBounds};
use lockkeeper::lock::token::{FencingToken, LeaseToken, TokenMaker};
use lockkeeper::lock::wakeup::Wakeup;
use lockkeeper::metrics::Metrics;
use tokio::net::TcpListener;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::conformance::LIMITS;
use crate::support::{Checked, Http};

/// A service whose every store call panics.
pub(super) async fn panicking() -> (JoinSet<()>, Checked) {
    let ttl = Ttl::from_millis(30_000);
    let metrics = Arc::new(Metrics::for_embedded());
    let app = App {
        locks: Locks::new(Arc::new(Panicking), LIMITS),
        keyring: Keyring::default(),
        hosts: HostNames::Any,
        proxies: TrustedProxies::default(),
        ttl: TtlBounds { min: ttl, default: ttl, max: Ttl::from_millis(86_400_000) },
        tokens: TokenMaker::new("").unwrap(),
        metrics,
        hold_streams: Arc::new(Semaphore::new(10)),
        lists: Lists::new(10),
        pulse: Pulse::new("here".to_owned()),
        quotas: Arc::new(Quotas::new(Quota::default())),
        limits: ApiLimits {
            body_bytes: 4_096,
            body_time: ttl.as_duration(),
            max_wait: ttl.as_duration(),
        },
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let api = Api::new(Arc::new(app));
    let peer = address.ip();
    let routes =
        Router::new().fallback(async move |request: Request| api.answer(request, peer).await);
    let mut serving = JoinSet::new();
    serving.spawn(async { axum::serve(listener, routes).await.unwrap() });
    (serving, Checked(Http::new(address)))
}

struct Panicking;

const PURPOSE: &str = "on purpose: a test wants to see what becomes of a panic";

#[async_trait]
impl Store for Panicking {
    async fn try_acquire(&self, _: &Claim) -> Result<Attempt, StoreError> {
        panic!("{PURPOSE}")
    }

    async fn wait_turn(&self, _: &Claim, _: Option<u64>) -> Result<Turn, StoreError> {
        panic!("{PURPOSE}")
    }

    async fn leave(&self, _: &LockKey, _: &[(LeaseToken, Keep)]) -> Result<(), StoreError> {
        panic!("{PURPOSE}")
    }

    async fn keep(&self, _: &Holding, _: Ttl) -> Result<Kept, StoreError> {
        panic!("{PURPOSE}")
    }

    async fn let_go(&self, _: &Holding, _: Option<Ttl>) -> Result<(), StoreError> {
        panic!("{PURPOSE}")
    }

    fn listen(&self, _: &LockKey) -> Wakeup {
        panic!("{PURPOSE}")
    }

    async fn refresh(
        &self,
        _: &LockKey,
        _: &LeaseToken,
        _: Option<FencingToken>,
        _: Option<Ttl>,
    ) -> Result<Option<Lease>, StoreError> {
        panic!("{PURPOSE}")
    }

    async fn release(
        &self,
        _: &LockKey,
        _: &LeaseToken,
        _: Option<FencingToken>,
    ) -> Result<Released, StoreError> {
        panic!("{PURPOSE}")
    }

    async fn undo(&self, _: &LockKey, _: &LeaseToken) -> Result<(), StoreError> {
        panic!("{PURPOSE}")
    }

    async fn take_back(&self, _: &Receipt) -> Result<(), StoreError> {
        panic!("{PURPOSE}")
    }

    async fn force_release(
        &self,
        _: &LockKey,
        _: Option<FencingToken>,
    ) -> Result<Vec<Holder>, StoreError> {
        panic!("{PURPOSE}")
    }

    async fn inspect_line(
        &self,
        _: &LockKey,
        _: Option<&LeaseToken>,
        _: usize,
    ) -> Result<LockStatus, StoreError> {
        panic!("{PURPOSE}")
    }

    async fn list(&self, _: &Page) -> Result<Vec<LockStatus>, StoreError> {
        panic!("{PURPOSE}")
    }

    fn contacted(&self) -> bool {
        true
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees {
            store: "panicking",
            order: "none",
            fencing: "none",
            survives: "nothing",
            sharing: "none",
            most_slots: Slots::MOST,
        }
    }
}
