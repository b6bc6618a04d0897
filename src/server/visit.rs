//! What the requests of one connection have in common, whatever their version of HTTP.

use std::sync::Arc;

use axum::body::Body;
use axum::extract::Request;
use hyper::{Response, StatusCode};
use tokio::sync::watch;

use crate::api::Api;
use crate::server::house::Guest;

/// Health checks, which are answered in the hall too.
const HEALTH: [&str; 2] = ["/healthz", "/readyz"];

/// A connection that was turned away while its request waited for a place.
#[derive(Debug, thiserror::Error)]
#[error("no room for one more connection")]
pub(super) struct TurnedAway;

/// A connection, for its requests.
#[derive(Clone)]
pub(super) struct Visit {
    pub(super) api: Api,
    pub(super) guest: Arc<Guest>,
    /// Whether the connection has its place in the house; `None` if it began with one.
    pub(super) entry: Option<watch::Receiver<bool>>,
}

impl Visit {
    /// Waits until the connection has a place, except for health checks.
    pub(super) async fn entered(&mut self, path: &str) -> Result<(), TurnedAway> {
        match &mut self.entry {
            Some(entry) if !HEALTH.contains(&path) => {
                entry.wait_for(|entered| *entered).await.map(drop).map_err(|_| TurnedAway)
            }
            _ => Ok(()),
        }
    }

    /// The answer of the API.
    pub(super) async fn answer(&self, request: Request) -> Response<Body> {
        self.api.answer(request, self.guest.peer()).await
    }
}

/// The answer to a malformed request.
pub(super) fn malformed() -> Response<Body> {
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = StatusCode::BAD_REQUEST;
    answer
}
