//! Endpoints for operators and monitoring: about, liveness, readiness, metrics, contract.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header::{CONTENT_TYPE, LOCATION, VARY};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde_json::{Value, json};

use crate::api::error::ApiError;
use crate::api::extract::{Reader, accepted};
use crate::api::{App, Routes};
use crate::lock::leases::Living;
use crate::metrics::MetricsForm;
use crate::wire::{AboutBody, Code};

/// `GET /`: the name, the version and the guarantees; a browser is led to the dashboard.
pub(super) async fn about(
    State(app): State<Arc<App>>,
    Extension(routes): Extension<Routes>,
    headers: HeaderMap,
) -> Response {
    let for_operators = routes.have("/ui");
    if for_operators && accepted(&headers).contains("text/html") {
        // Relative: the service may be below another path.
        return (StatusCode::FOUND, [(LOCATION, "ui"), (VARY, "Accept")]).into_response();
    }
    let about = AboutBody::new(app.locks.guarantees(), for_operators);
    ([(VARY, "Accept")], Json(about)).into_response()
}

/// `GET /healthz`: 200 while the process lives. Does not ask the store: a probe that did would
/// restart every instance at once when the store is unreachable.
pub(super) async fn healthz() -> Json<Value> {
    Json(json!({ "status": "ok" }))
}

/// `GET /readyz`: whether to send requests here. A short outage of the store does not change it:
/// otherwise all instances would leave the load balancer together.
pub(super) async fn readyz(State(app): State<Arc<App>>) -> Result<Json<Value>, ApiError> {
    app.locks.ready().map_err(|reason| ApiError::new(Code::NotReady, reason))?;
    Ok(Json(json!({ "status": "ready" })))
}

/// `GET /metrics`: the metrics, as OpenMetrics for a client that asks for it, and else as the older
/// text, which every tool reads.
pub(super) async fn metrics(
    State(app): State<Arc<App>>,
    _reader: Reader,
    headers: HeaderMap,
) -> impl IntoResponse {
    app.metrics.waiters(app.locks.waiting());
    for (prefix, Living { count, oldest }) in app.locks.leases().living() {
        app.metrics.living(&prefix, count, oldest);
    }
    let newer = accepted(&headers).contains("openmetrics");
    let form = if newer { MetricsForm::OpenMetrics } else { MetricsForm::Plain };
    ([(CONTENT_TYPE, form.media_type()), (VARY, "Accept")], app.metrics.render(form))
}

const CONTRACT: &str = include_str!("../../openapi.yaml");

/// `GET /openapi.yaml`: the contract, for generators.
pub(super) async fn openapi() -> impl IntoResponse {
    ([(CONTENT_TYPE, "application/yaml")], CONTRACT)
}
