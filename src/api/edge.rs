//! What every answer passes: it is named after its request, its problem gets a body, and it is
//! counted.

use std::any::Any;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::MatchedPath;
use axum::extract::Request;
use axum::extract::State;
use axum::http::HeaderName;
use axum::http::HeaderValue;
use axum::http::Method;
use axum::http::header::CACHE_CONTROL;
use axum::http::header::CONTENT_TYPE;
use axum::middleware::Next;
use axum::response::IntoResponse;
use axum::response::Response;

use crate::api::App;
use crate::api::error::ApiError;
use crate::api::extract::RequestId;
use crate::wire::Code;
use crate::wire::REQUEST_ID;

/// Runs a request and completes its answer.
pub(super) async fn answer(
    State(app): State<Arc<App>>,
    mut request: Request,
    next: Next,
) -> Response {
    let id = RequestId::of(request.headers());
    let (route, method) = (route(&request), method(request.method()));
    request.extensions_mut().insert(id.clone());
    let mut response = next.run(request).await;
    if let Some(mut error) = response.extensions_mut().remove::<ApiError>() {
        error.problem.request_id = id.text.to_string();
        let body =
            serde_json::to_vec(&error.problem).expect("a problem has only texts and numbers");
        *response.body_mut() = Body::from(body);
        let problem = HeaderValue::from_static("application/problem+json");
        response.headers_mut().insert(CONTENT_TYPE, problem);
    }
    let headers = response.headers_mut();
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    let named = HeaderValue::from_str(&id.text).expect("a request id is visible ASCII");
    headers.insert(HeaderName::from_static(REQUEST_ID), named);
    app.metrics.request(
        route,
        method,
        response.status().as_u16(),
        id.began.elapsed().as_secs_f64(),
    );
    response
}

/// Answers a path that there is not.
pub(super) async fn no_such_route() -> ApiError {
    ApiError::new(Code::NoSuchRoute, "the routes are in /openapi.yaml")
}

/// Answers another method than GET.
pub(super) async fn only_get() -> ApiError {
    ApiError::method("GET, HEAD")
}

/// Answers another method than DELETE.
pub(super) async fn only_delete() -> ApiError {
    ApiError::method("DELETE")
}

/// Answers for a handler that panicked.
pub(super) fn panicked(panic: Box<dyn Any + Send + 'static>) -> Response {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no message");
    tracing::error!(panic = text, "a handler panicked");
    ApiError::new(Code::Internal, "this is a fault of the service; the log has more")
        .into_response()
}

/// The route as a label, of which there are few whatever clients send.
fn route(request: &Request) -> &'static str {
    match request.extensions().get::<MatchedPath>().map(MatchedPath::as_str) {
        Some("/locks/{*key}") if request.method() == Method::PUT => "/locks/{key}/refresh",
        Some("/locks/{*key}" | "/locks/") => "/locks/{key}",
        Some("/admin/locks/{*key}" | "/admin/locks/") => "/admin/locks/{key}",
        Some("/locks") => "/locks",
        Some("/") => "/",
        Some("/healthz") => "/healthz",
        Some("/readyz") => "/readyz",
        Some("/metrics") => "/metrics",
        Some("/openapi.yaml") => "/openapi.yaml",
        _ => "none",
    }
}

fn method(method: &Method) -> &'static str {
    match *method {
        Method::GET => "GET",
        Method::HEAD => "HEAD",
        Method::POST => "POST",
        Method::PUT => "PUT",
        Method::DELETE => "DELETE",
        _ => "other",
    }
}
