//! Audit lines of requests refused by API key, rights or origin: a few a second, so that an attack
//! is seen and does not fill the disk.

use std::time::Instant;

use axum::http::Method;

use crate::api::error::ApiError;
use crate::api::extract::RequestId;
use crate::api::lines::Lines;
use crate::wire::Code;

/// The most characters of a path in a log line.
const SHOWN_PATH_CHARS: usize = 200;

/// The lines about known callers, and about all others, who must not crowd those out.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    known: Lines,
    unknown: Lines,
}

impl Refusals {
    /// Logs the error if it is a refusal.
    pub(super) fn note(&self, error: &ApiError, method: &Method, path: &str, id: &RequestId) {
        let (code, ..) = match error.problem.code {
            code @ (Code::Unauthenticated | Code::Forbidden | Code::ForbiddenOrigin) => code.row(),
            _ => return,
        };
        let lines = if error.caller.is_some() { &self.known } else { &self.unknown };
        let Some(admitted) = lines.admit(Instant::now()) else { return };
        tracing::warn!(
            target: "audit",
            audit = "refused",
            code,
            method = method.as_str(),
            path = path.char_indices().nth(SHOWN_PATH_CHARS).map_or(path, |(end, _)| &path[..end]),
            client.address = %id.client,
            caller = error.caller.as_deref(),
            request_id = &*id.text,
            trace_id = id.trace.as_deref(),
            left_out = admitted.left_out,
            "request refused"
        );
    }
}
