//! The HTTP edge: all routes on one screen. Nothing else knows axum, but the server that runs it.

mod admin;
mod edge;
mod error;
mod extract;
mod health;
mod hold;
mod lists;
mod locks;
mod options;
mod pages;
mod quotas;
mod record;
mod refusals;

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::HeaderName;
use axum::response::Response;
use axum::routing::{delete, get, post};
use tokio::sync::Semaphore;
use tower::ServiceExt;
use tower_http::catch_panic::CatchPanic;

use crate::api::error::ApiError;
use crate::api::extract::{RequestId, refuse_method};
use crate::api::refusals::{Asked, Refusals};
use crate::auth::{HostNames, Keyring, TrustedProxies};
use crate::lock::locks::Locks;
use crate::lock::time::TtlBounds;
use crate::lock::token::TokenMaker;
use crate::metrics::Metrics;

pub use crate::api::lists::Lists;
pub use crate::api::quotas::{Quota, Quotas};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// What the handlers share.
#[derive(Debug)]
pub struct App {
    /// The verbs.
    pub locks: Locks,
    /// Who may call.
    pub keyring: Keyring,
    /// Under which names browsers may call, where there are no API keys.
    pub hosts: HostNames,
    /// Who says where a client is.
    pub proxies: TrustedProxies,
    /// How long leases may be.
    pub ttl: TtlBounds,
    /// Makes the tokens of clients that bring none.
    pub tokens: TokenMaker,
    /// The figures.
    pub metrics: Arc<Metrics>,
    /// What a request may cost.
    pub limits: ApiLimits,
    /// Room for streams of `POST /hold/{key}`.
    pub hold_streams: Arc<Semaphore>,
    /// Room for lists.
    pub lists: Lists,
    /// What each API key has.
    pub quotas: Arc<Quotas>,
}

/// How long the request behind an answer waited in line, where it did.
#[derive(Clone, Copy, Debug)]
struct Waited(Duration);

/// Whether the request under way on a connection waits in line, or is a stream: the connection makes
/// one and sends it along with each request. A client that sends no more has left the line or the
/// stream, as proxies say that their own client is gone; any other gets its answer.
#[derive(Clone, Debug, Default)]
pub struct InLine(Arc<AtomicBool>);

impl InLine {
    /// Says whether the request waits.
    pub fn set(&self, waits: bool) {
        self.0.store(waits, Ordering::Relaxed);
    }

    /// Whether the request waits.
    pub fn get(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// What a request may cost.
#[derive(Clone, Copy, Debug)]
pub struct ApiLimits {
    /// The longest body.
    pub body_bytes: usize,
    /// How long it may take to arrive.
    pub body_time: Duration,
    /// How long it may wait in line.
    pub max_wait: Duration,
}

/// The whole HTTP edge: the routes, and what every answer passes on its way out.
#[derive(Clone)]
pub struct Api {
    app: Arc<App>,
    routes: CatchPanic<Router, edge::Panicked>,
    refusals: Arc<Refusals>,
}

impl Api {
    /// The edge of `app`.
    pub fn new(app: Arc<App>) -> Self {
        let routes = CatchPanic::custom(routes(app.clone()), edge::Panicked);
        Self { app, routes, refusals: Arc::default() }
    }

    /// Answers a request that came from `peer`: named after it, counted, and a problem if it is not
    /// 2xx.
    ///
    /// # Cancel safety
    ///
    /// As the verbs: a store call that was begun is heard out.
    pub async fn answer(&self, mut request: Request, peer: IpAddr) -> Response {
        let id = RequestId::of(request.headers(), self.client(&request, peer));
        let (label, asked) = (edge::Label::of(&request), Asked::of(&request));
        request.extensions_mut().insert(id.clone());
        let Ok(answer) = self.routes.clone().oneshot(request).await;
        match answer.extensions().get::<ApiError>() {
            Some(error) => self.refusals.note(error, &asked, &id),
            None => self.refusals.catch_up(),
        }
        let answer = edge::complete(answer.map(Body::new), &id);
        let took = id.began.elapsed().as_secs_f64();
        // Waits are figures of their own: they say nothing of how fast the service is.
        match answer.extensions().get::<Waited>() {
            Some(Waited(waited)) => self.app.metrics.waited(waited.as_secs_f64()),
            None => self.app.metrics.took(took),
        }
        self.app.metrics.request(label.route, label.method, answer.status().as_u16());
        answer
    }

    /// The address of the client, which proxies may have stood before.
    fn client(&self, request: &Request, peer: IpAddr) -> IpAddr {
        let said = request.headers().get_all(X_FORWARDED_FOR).iter();
        let said: Vec<_> = said.map(|value| value.to_str().unwrap_or_default()).collect();
        self.app.proxies.client(peer, &said)
    }
}

/// All routes.
fn routes(app: Arc<App>) -> Router {
    let key = get(locks::inspect)
        .post(locks::acquire)
        .put(locks::refresh)
        .delete(locks::release)
        .fallback(refuse_method);
    let held = post(hold::hold).fallback(edge::only_post);
    let forced = delete(admin::force_release).fallback(edge::only_delete);
    Router::new()
        .route("/locks", get(locks::list).fallback(edge::only_get))
        .route("/locks/", key.clone()) // The empty key, which is none.
        .route("/locks/{*key}", key)
        .route("/hold/", held.clone())
        .route("/hold/{*key}", held)
        .route("/admin/locks/", forced.clone())
        .route("/admin/locks/{*key}", forced)
        .route("/", get(health::about).fallback(edge::only_get))
        .route("/healthz", get(health::healthz).fallback(edge::only_get))
        .route("/readyz", get(health::readyz).fallback(edge::only_get))
        .route("/metrics", get(health::metrics).fallback(edge::only_get))
        .route("/openapi.yaml", get(health::openapi).fallback(edge::only_get))
        .fallback(edge::no_such_route)
        .with_state(app)
}
