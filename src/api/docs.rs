//! `GET /docs`: the contract for people. Scalar, in `vendor/scalar/`, shows `openapi.yaml`.

use std::sync::LazyLock;

use axum::Router;

use crate::api::page::Page;

static PAGE: LazyLock<Page> = LazyLock::new(|| Page::with_library(include_str!("docs.html")));

static LIBRARY: LazyLock<Page> =
    LazyLock::new(|| Page::script(include_bytes!("../../vendor/scalar/standalone.js.gz")));

/// The routes of the page and of its library.
pub(super) fn routes<S: Clone + Send + Sync + 'static>() -> Router<S> {
    Router::new().route("/docs", Page::route(&PAGE)).route("/docs/scalar.js", Page::route(&LIBRARY))
}
