//! The span of a request.
//!
//! Spans are of the level `trace`, so they cost nothing unless a build with the feature `otel`
//! exports them (`cli/traces.rs`).

use axum::http::{HeaderMap, StatusCode};
use tracing::Span;

use crate::api::edge::Label;
use crate::api::extract::RequestId;

/// Begins the span of a request. With exported spans the request gets the trace id of its span.
pub(super) fn begin(id: &mut RequestId, label: &Label, headers: &HeaderMap) -> Span {
    let span = tracing::trace_span!(
        "request",
        otel.name = format!("{} {}", label.method, label.route),
        otel.kind = "server",
        otel.status_code = tracing::field::Empty,
        http.request.method = label.method,
        http.route = label.route,
        http.response.status_code = tracing::field::Empty,
        client.address = %id.client,
        request_id = &*id.text,
        lock.key = tracing::field::Empty,
        outcome = tracing::field::Empty,
    );
    exported::join(id, &span, headers);
    span
}

/// Notes the outcome of a verb in the span of its request.
pub(super) fn outcome(key: &str, outcome: &'static str) {
    Span::current().record("lock.key", key).record("outcome", outcome);
}

/// Notes the status of an answer.
pub(super) fn answered(span: &Span, status: StatusCode) {
    span.record("http.response.status_code", status.as_u16());
    if status.is_server_error() {
        span.record("otel.status_code", "ERROR");
    }
}

#[cfg(not(feature = "otel"))]
mod exported {
    use axum::http::HeaderMap;
    use tracing::Span;

    use crate::api::extract::RequestId;

    /// Nothing is exported.
    pub(super) fn join(_: &mut RequestId, _: &Span, _: &HeaderMap) {}
}

#[cfg(feature = "otel")]
mod exported {
    use axum::http::HeaderMap;
    use opentelemetry::propagation::{Extractor, TextMapPropagator};
    use opentelemetry::trace::TraceContextExt;
    use opentelemetry_sdk::propagation::TraceContextPropagator;
    use tracing::Span;
    use tracing_opentelemetry::OpenTelemetrySpanExt;

    use crate::api::extract::RequestId;

    struct Headers<'a>(&'a HeaderMap);

    impl Extractor for Headers<'_> {
        fn get(&self, name: &str) -> Option<&str> {
            self.0.get(name).and_then(|value| value.to_str().ok())
        }

        fn keys(&self) -> Vec<&str> {
            self.0.keys().map(|name| name.as_str()).collect()
        }
    }

    /// Makes the span a part of its client's trace.
    pub(super) fn join(id: &mut RequestId, span: &Span, headers: &HeaderMap) {
        if span.is_disabled() {
            return;
        }
        if id.trace.is_some() {
            let parent = TraceContextPropagator::new().extract(&Headers(headers));
            // It fails only for a span that has begun elsewhere.
            let _ = span.set_parent(parent);
        }
        let context = span.context();
        let context = context.span().span_context().clone();
        if context.is_valid() {
            id.trace = Some(context.trace_id().to_string().into());
        }
    }
}
