//! Audit lines of requests refused by API key, rights or origin: a few a second, so that an attack
//! is seen and does not fill the disk.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::http::Method;

use crate::api::error::ApiError;
use crate::api::extract::RequestId;
use crate::wire::Code;

/// Enough to identify the callers; a few megabytes a day at most.
const LINES_A_SECOND: u32 = 10;

const SECOND: Duration = Duration::from_secs(1);

/// The most characters of a path in a log line.
const SHOWN_PATH_CHARS: usize = 200;

/// The lines about known callers, and about all others, who must not crowd those out.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    known: Mutex<Lines>,
    unknown: Mutex<Lines>,
}

/// The lines of the current second.
#[derive(Debug, Default)]
struct Lines {
    began: Option<Instant>,
    written: u32,
    left_out: u64,
}

impl Refusals {
    /// Logs the error if it is a refusal.
    pub(super) fn note(&self, error: &ApiError, method: &Method, path: &str, id: &RequestId) {
        let (code, ..) = match error.problem.code {
            code @ (Code::Unauthenticated | Code::Forbidden | Code::ForbiddenOrigin) => code.row(),
            _ => return,
        };
        let lines = if error.caller.is_some() { &self.known } else { &self.unknown };
        let admitted = lines.lock().unwrap_or_else(PoisonError::into_inner).admit(Instant::now());
        let Some(left_out) = admitted else { return };
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
            left_out = (left_out > 0).then_some(left_out),
            "request refused"
        );
    }
}

impl Lines {
    /// Admits a line, and returns the number of refusals left out before it.
    fn admit(&mut self, now: Instant) -> Option<u64> {
        if self.began.is_none_or(|began| now.duration_since(began) >= SECOND) {
            (self.began, self.written) = (Some(now), 0);
        }
        if self.written >= LINES_A_SECOND {
            self.left_out += 1;
            return None;
        }
        self.written += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}
