//! The HTTP edge: all routes on one screen. Only this module and the server know axum.

mod admin;
mod docs;
mod edge;
mod error;
mod extract;
mod failures;
mod fields;
mod health;
mod hold;
mod lines;
mod lists;
mod locks;
mod options;
mod page;
mod pages;
mod quotas;
mod record;
mod refusals;
mod routes;
mod several;
mod terraform;
mod trace;
mod ui;

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::Request;
use axum::http::HeaderName;
use axum::response::{IntoResponse, Response};
use axum::routing::{any, delete, get, post, put};
use tokio::sync::Semaphore;
use tower::ServiceExt;
use tower_http::catch_panic::CatchPanic;

use crate::api::error::ApiError;
use crate::api::extract::{RequestId, key_of, refuse_method};
use crate::api::refusals::Refusals;
use crate::auth::{AllowedHosts, DefaultOwner, Keyring, TrustedProxies};
use crate::lock::locks::Locks;
use crate::lock::time::TtlBounds;
use crate::lock::token::TokenMaker;
use crate::metrics::Metrics;

pub use crate::api::lists::Lists;
pub use crate::api::quotas::{Quota, Quotas};
pub use crate::api::routes::Routes;
pub use crate::api::ui::Activity;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// The state that handlers share.
#[derive(Debug)]
pub struct App {
    /// The verbs.
    pub locks: Locks,
    /// The API keys.
    pub keyring: Keyring,
    /// The host names that browsers may use where there are no API keys.
    pub hosts: AllowedHosts,
    /// The proxies whose `X-Forwarded-For` is believed.
    pub proxies: TrustedProxies,
    /// The owner of a claim that names none.
    pub default_owner: DefaultOwner,
    /// The bounds of TTLs.
    pub ttl: TtlBounds,
    /// Makes tokens for clients that send none.
    pub tokens: TokenMaker,
    /// The metrics.
    pub metrics: Arc<Metrics>,
    /// The limits of a request.
    pub limits: ApiLimits,
    /// Room for streams of `POST /hold/{key}`.
    pub hold_streams: Arc<Semaphore>,
    /// Room for lists.
    pub lists: Lists,
    /// The use of each API key.
    pub quotas: Arc<Quotas>,
    /// The state of this instance, for the dashboard.
    pub activity: Activity,
}

/// The time that the request waited in line; an extension of its answer.
#[derive(Clone, Copy, Debug)]
struct Waited(Duration);

/// The limits of a request.
#[derive(Clone, Copy, Debug)]
pub struct ApiLimits {
    /// The longest body.
    pub body_bytes: usize,
    /// The time limit for the body.
    pub body_time: Duration,
    /// The longest wait in line.
    pub max_wait: Duration,
}

/// The whole HTTP edge: the routes, and the layers around them.
#[derive(Clone)]
pub struct Api {
    app: Arc<App>,
    routes: CatchPanic<Router, edge::Panicked>,
    served: Routes,
    refusals: Arc<Refusals>,
}

impl Api {
    /// Makes the edge of `app`, with all routes.
    pub fn new(app: Arc<App>) -> Self {
        let routes = CatchPanic::custom(routes(app.clone()), edge::Panicked);
        Self { app, routes, served: Routes::All, refusals: Arc::default() }
    }

    /// The same with the routes of this listener.
    pub fn serving(self, served: Routes) -> Self {
        Self { served, ..self }
    }

    /// Answers a request from `peer`: adds its id, counts it, and renders errors as problems.
    ///
    /// # Cancel safety
    ///
    /// As the verbs: a store call that was begun runs to its end.
    pub async fn answer(&self, mut request: Request, peer: IpAddr) -> Response {
        let id = RequestId::of(request.headers(), self.client(&request, peer));
        let label = edge::Label::of(&request);
        // A copy: the URI itself would keep the memory of the whole head during a wait.
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        request.extensions_mut().insert(id.clone());
        request.extensions_mut().insert(self.served);
        let answer = match self.served.have(request.uri().path()) {
            true => {
                let Ok(answer) = self.routes.clone().oneshot(request).await;
                answer.map(Body::new)
            }
            false => edge::no_such_route().await.into_response(),
        };
        if let Some(error) = answer.extensions().get::<ApiError>() {
            self.refusals.note(error, &method, &path, &id);
            if let Some(failure) = &error.failure {
                failures::note(failure, key_of(&path).as_ref(), &id);
            }
        }
        let answer = edge::complete(answer, &id);
        let took = id.began.elapsed().as_secs_f64();
        // Waits have a metric of their own: they say nothing about the service's speed.
        match answer.extensions().get::<Waited>() {
            Some(Waited(waited)) => self.app.metrics.waited(waited.as_secs_f64()),
            None => self.app.metrics.took(took),
        }
        self.app.metrics.request(label.route, label.method, answer.status().as_u16());
        answer
    }

    /// The address of the client, also behind trusted proxies.
    fn client(&self, request: &Request, peer: IpAddr) -> IpAddr {
        let said = request.headers().get_all(X_FORWARDED_FOR).iter();
        let said: Vec<_> = said.map(|value| value.to_str().unwrap_or_default()).collect();
        self.app.proxies.client(peer, &said)
    }
}

fn routes(app: Arc<App>) -> Router {
    let key = get(locks::inspect).post(locks::acquire).put(locks::refresh).delete(locks::release);
    let several = get(locks::list).post(several::acquire).delete(several::release);
    let state = any(terraform::answer); // Its methods have names that the router does not know.
    Router::new()
        .route("/locks", several)
        .route(edge::SEVERAL_REFRESHED, put(several::refresh))
        .route("/locks/", key.clone()) // The empty key is invalid.
        .route("/locks/{*key}", key)
        .route("/hold/", post(hold::hold))
        .route("/hold/{*key}", post(hold::hold))
        .route("/admin/locks/", delete(admin::force_release))
        .route("/admin/locks/{*key}", delete(admin::force_release))
        .route("/terraform/", state.clone())
        .route("/terraform/{*key}", state)
        .route("/", get(health::about))
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .route("/metrics", get(health::metrics))
        .route("/openapi.yaml", get(health::openapi))
        .merge(docs::routes())
        .merge(ui::routes())
        .method_not_allowed_fallback(refuse_method)
        .fallback(edge::no_such_route)
        .with_state(app)
}
