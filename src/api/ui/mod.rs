//! The dashboard `/ui`: the page for everybody, its data for callers that may `read`.
//!
//! The page lists locks and frees them by the public routes. Beside these it reads the state of the
//! instance and the last ends of leases, every two seconds.

mod activity;
mod body;

use std::sync::{Arc, LazyLock};

use axum::extract::State;
use axum::http::Uri;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use serde_json::{Value, json};

use crate::api::App;
use crate::api::error::ApiError;
use crate::api::extract::Reader;
use crate::api::options::{find, query};
use crate::api::page::Page;
use crate::api::ui::body::report;

pub use crate::api::ui::activity::Activity;

/// The page; its parts are files of kinds that editors know.
static PAGE: LazyLock<Page> = LazyLock::new(|| {
    Page::new(concat!(
        include_str!("head.html"),
        "<style>\n",
        include_str!("style.css"),
        "</style>\n",
        include_str!("body.html"),
        "<script>\n",
        include_str!("script.js"),
        "</script>\n</html>\n"
    ))
});

/// The routes of the dashboard.
pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/ui", Page::route(&PAGE))
        .route("/ui/access", get(access))
        .route("/ui/status", get(status))
}

/// `GET /ui/access`: whether an API key is needed, so that the page asks for one before it is
/// refused.
async fn access(State(app): State<Arc<App>>, uri: Uri) -> Result<Json<Value>, ApiError> {
    query(uri.query(), &[])?;
    Ok(Json(json!({ "api_keys": !app.keyring.is_open() })))
}

/// `GET /ui/status`: the state of the instance, and the ends `after` a number.
async fn status(
    State(app): State<Arc<App>>,
    Reader(caller): Reader,
    uri: Uri,
) -> Result<Response, ApiError> {
    let query = query(uri.query(), &["after"])?;
    let after = find(&query, "after").and_then(Value::as_str).unwrap_or("0");
    let after = after.parse().map_err(|_| ApiError::invalid("after", "`after` is a number"))?;
    let look = app.activity.look(&app.locks).await;
    let report = report(&app, &caller, look, after);
    Ok(([(CONTENT_TYPE, "application/json")], report).into_response())
}
