//! A service whose store panics.

use std::sync::Arc;

use async_trait::async_trait;
use axum::Router;
use axum::extract::Request;
use lockkeeper::api::{Activity, Api, ApiLimits, App, Lists, Quota, Quotas};
use lockkeeper::auth::{AllowedHosts, DefaultOwner, Keyring, TrustedProxies};
use lockkeeper::lock::error::StoreError;
use lockkeeper::lock::key::LockKey;
use lockkeeper::lock::lease::{Claim, Holder, LockStatus};
use lockkeeper::lock::locks::Locks;
use lockkeeper::lock::slots::Slots;
use lockkeeper::lock::store::{
    About, Answer, Ask, Ended, Guarantees, Keep, Listing, Page, Renewed, Store, Target,
};
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
        hosts: AllowedHosts::default(),
        proxies: TrustedProxies::default(),
        default_owner: DefaultOwner::Client,
        ttl: TtlBounds { min: ttl, default: ttl, max: Ttl::from_millis(86_400_000) },
        tokens: TokenMaker::new("").unwrap(),
        metrics,
        hold_streams: Arc::new(Semaphore::new(10)),
        lists: Lists::new(10),
        activity: Activity::new("here".to_owned()),
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
    async fn ask(&self, _: &Claim, _: Ask) -> Result<Answer, StoreError> {
        panic!("{PURPOSE}")
    }

    async fn renew(&self, _: &Target, _: Option<Ttl>) -> Result<Renewed, StoreError> {
        panic!("{PURPOSE}")
    }

    async fn end(&self, _: &Target) -> Result<Ended, StoreError> {
        panic!("{PURPOSE}")
    }

    async fn leave(&self, _: &LockKey, _: &[(LeaseToken, Keep)]) -> Result<(), StoreError> {
        panic!("{PURPOSE}")
    }

    fn listen(&self, _: &LockKey) -> Wakeup {
        panic!("{PURPOSE}")
    }

    async fn force_release(
        &self,
        _: &LockKey,
        _: Option<FencingToken>,
    ) -> Result<Vec<Holder>, StoreError> {
        panic!("{PURPOSE}")
    }

    async fn look(
        &self,
        _: &LockKey,
        _: Option<&LeaseToken>,
        _: usize,
    ) -> Result<LockStatus, StoreError> {
        panic!("{PURPOSE}")
    }

    async fn list(&self, _: &Page) -> Result<Listing, StoreError> {
        panic!("{PURPOSE}")
    }

    fn contacted(&self) -> Result<(), String> {
        Ok(())
    }

    fn about(&self) -> About {
        let guarantees = Guarantees {
            store: "panicking",
            order: "none",
            fencing: "none",
            survives: "nothing",
            sharing: "none",
            most_slots: Slots::MOST,
            forced_by_number: false,
        };
        About { guarantees, shared: true, nodes: Vec::new(), began_empty: None }
    }
}
