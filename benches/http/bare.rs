//! The ceiling over any service on axum: a route that answers the JSON of a grant without a store.

use std::sync::atomic::{AtomicU64, Ordering};

use axum::extract::Path;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde::Serialize;
use tokio::net::TcpListener;
use uuid::Uuid;

/// The members of the service's grant, in their order.
#[derive(Serialize)]
struct Grant {
    token: String,
    key: String,
    fencing_token: u64,
    ttl_ms: u64,
    waited_ms: u64,
}

/// A number of the length of the service's fencing tokens.
static LAST_FENCING_TOKEN: AtomicU64 = AtomicU64::new(1_800_000_000_000_000);

/// Serves on this port until the process is ended.
pub(crate) fn serve(port: u16) {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
        let routes = Router::new()
            .route("/readyz", get(async || StatusCode::OK))
            .route("/locks/{*key}", post(acquire));
        axum::serve(listener, routes).await.unwrap();
    });
}

async fn acquire(Path(key): Path<String>) -> Response {
    let token = Uuid::new_v4().to_string();
    let fencing_token = LAST_FENCING_TOKEN.fetch_add(1, Ordering::Relaxed) + 1;
    let headers = [(LOCATION.as_str(), format!("/locks/{key}")), ("lock-token", token.clone())];
    let grant = Grant { token, key, fencing_token, ttl_ms: 60_000, waited_ms: 0 };
    (StatusCode::CREATED, headers, Json(grant)).into_response()
}
