//! The last steps of every answer: request id, problem body, metrics labels.

use std::any::Any;

use axum::body::Body;
use axum::extract::Request;
use axum::http::header::{CACHE_CONTROL, CONTENT_LENGTH, CONTENT_TYPE, X_CONTENT_TYPE_OPTIONS};
use axum::http::{HeaderName, HeaderValue};
use axum::response::{IntoResponse, Response};
use tower_http::catch_panic::ResponseForPanic;

use crate::api::error::ApiError;
use crate::api::extract::RequestId;
use crate::wire::{Code, REQUEST_ID};

/// Adds the request id to an answer, and the body to a problem.
pub(super) fn complete(mut answer: Response, id: &RequestId) -> Response {
    if let Some(mut error) = answer.extensions_mut().remove::<ApiError>() {
        error.problem.request_id = id.text.to_string();
        let body =
            serde_json::to_vec(&error.problem).expect("a problem has only texts and numbers");
        *answer.body_mut() = Body::from(body);
        answer.headers_mut().remove(CONTENT_LENGTH); // The router set it for the empty body.
        let problem = HeaderValue::from_static("application/problem+json");
        answer.headers_mut().insert(CONTENT_TYPE, problem);
    }
    let headers = answer.headers_mut();
    // A stream has set its own.
    headers.entry(CACHE_CONTROL).or_insert(HeaderValue::from_static("no-store"));
    // A browser takes no answer for a page or a script because of a text of a client in it.
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    let named = HeaderValue::from_str(&id.text).expect("a request id is visible ASCII");
    headers.insert(HeaderName::from_static(REQUEST_ID), named);
    answer
}

/// The media type of server-sent events.
pub(super) const SERVER_SENT: &str = "text/event-stream";

/// A stream whose parts have to go out at once: proxies must neither buffer nor compress it.
pub(super) fn streamed(media_type: &'static str, parts: Body) -> Response {
    let headers = [
        (CONTENT_TYPE, media_type),
        (CACHE_CONTROL, "no-store, no-transform"),
        (HeaderName::from_static("x-accel-buffering"), "no"),
    ];
    (headers, parts).into_response()
}

/// The methods and the routes without a key, as labels in the metrics.
const METHODS: [&str; 7] = ["GET", "HEAD", "POST", "PUT", "DELETE", "LOCK", "UNLOCK"];
const ROUTES: [&str; 12] = [
    "/",
    "/healthz",
    "/readyz",
    "/metrics",
    "/openapi.yaml",
    "/docs",
    "/docs/scalar.js",
    "/locks",
    SEVERAL_REFRESHED,
    "/ui",
    "/ui/access",
    "/ui/status",
];

/// The route of a refresh of several keys: no key is `refresh`.
pub(super) const SEVERAL_REFRESHED: &str = "/locks/refresh";

pub(super) struct Label {
    pub(super) route: &'static str,
    pub(super) method: &'static str,
}

impl Label {
    /// The labels of a request, from a small fixed set.
    pub(super) fn of(request: &Request) -> Self {
        let method = METHODS.into_iter().find(|known| request.method() == known);
        let route = match request.uri().path() {
            SEVERAL_REFRESHED => SEVERAL_REFRESHED,
            path if path.starts_with("/locks/") && method == Some("PUT") => "/locks/{key}/refresh",
            path if path.starts_with("/locks/") => "/locks/{key}",
            path if path.starts_with("/hold/") => "/hold/{key}",
            path if path.starts_with("/admin/locks/") => "/admin/locks/{key}",
            path if path.starts_with("/terraform/") => "/terraform/{key}",
            path => ROUTES.into_iter().find(|known| path == *known).unwrap_or("none"),
        };
        Self { route, method: method.unwrap_or("other") }
    }
}

pub(super) async fn no_such_route() -> ApiError {
    ApiError::new(Code::NoSuchRoute, "unknown path; /docs and /openapi.yaml list the routes")
}

/// Answers for a handler that panicked.
#[derive(Clone, Copy)]
pub(super) struct Panicked;

impl ResponseForPanic for Panicked {
    type ResponseBody = Body;

    fn response_for_panic(&mut self, panic: Box<dyn Any + Send + 'static>) -> Response {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
        tracing::error!(panic = text, "a handler panicked; answered with 500");
        let detail = "a bug in the service; details are in its log";
        ApiError::new(Code::Internal, detail).into_response()
    }
}
