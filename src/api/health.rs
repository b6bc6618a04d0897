//! What operators and their machines ask: what this is, whether it lives, whether to send
//! requests here, and the figures.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;

use crate::api::App;
use crate::api::error::ApiError;
use crate::api::extract::Reader;
use crate::metrics::MEDIA_TYPE;
use crate::wire::{AboutBody, Code, HealthBody};

/// `GET /`: what this is, and what it promises.
pub(super) async fn about(State(app): State<Arc<App>>) -> Json<AboutBody> {
    Json(app.locks.guarantees().into())
}

/// `GET /healthz`: 200 while the process lives. Touches nothing: a probe that looked at the store
/// would restart every instance at once when the store is away.
pub(super) async fn healthz() -> Json<HealthBody> {
    Json(HealthBody { status: "ok" })
}

/// `GET /readyz`: whether to send requests here. Does not drop when the store blips: then all
/// instances would leave the balancer together.
pub(super) async fn readyz(State(app): State<Arc<App>>) -> Result<Json<HealthBody>, ApiError> {
    if app.locks.ready() {
        Ok(Json(HealthBody { status: "ready" }))
    } else {
        Err(ApiError::new(Code::NotReady, "the store was not reached yet, or the end has begun"))
    }
}

/// `GET /metrics`: the figures.
pub(super) async fn metrics(State(app): State<Arc<App>>, _reader: Reader) -> impl IntoResponse {
    app.metrics.waiters(app.locks.waiting());
    ([(CONTENT_TYPE, MEDIA_TYPE)], app.metrics.render())
}

/// `GET /openapi.yaml`: the contract, for generators.
pub(super) async fn openapi() -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/yaml")], include_str!("../../openapi.yaml"))
}
