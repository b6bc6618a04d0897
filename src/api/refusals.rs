//! Audit lines of requests refused by API key, rights or origin: a few a second, so that an attack
//! is seen and does not fill the disk.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use axum::extract::Request;
use axum::http::Method;

use crate::api::error::ApiError;
use crate::api::extract::RequestId;
use crate::wire::Code;

/// Enough to identify the callers; a few megabytes a day at most.
const LINES_A_SECOND: u32 = 10;

const SECOND: Duration = Duration::from_secs(1);

/// The most characters of a path in a log line.
const SHOWN_PATH_CHARS: usize = 200;

/// The refusals of known callers, and of all others, who must not crowd those out.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    known: Lines,
    unknown: Lines,
}

/// The lines of the current second.
#[derive(Debug, Default)]
struct Lines {
    second: Mutex<Option<Second>>,
    left_out: AtomicU64,
}

#[derive(Debug)]
struct Second {
    began: Instant,
    lines: u32,
}

/// Method and path of a request, noted before it is answered.
pub(super) struct Asked {
    method: Method,
    path: String,
}

impl Asked {
    pub(super) fn of(request: &Request) -> Self {
        let path = request.uri().path();
        let path = path.char_indices().nth(SHOWN_PATH_CHARS).map_or(path, |(end, _)| &path[..end]);
        Self { method: request.method().clone(), path: path.to_owned() }
    }
}

impl Refusals {
    /// Logs the error if it is a refusal.
    pub(super) fn note(&self, error: &ApiError, asked: &Asked, id: &RequestId) {
        let (code, ..) = match error.problem.code {
            code @ (Code::Unauthenticated | Code::Forbidden | Code::ForbiddenOrigin) => code.row(),
            _ => return,
        };
        let lines = if error.caller.is_some() { &self.known } else { &self.unknown };
        let Some(left_out) = lines.admit(Instant::now()) else { return };
        tracing::warn!(
            target: "audit",
            audit = "refused",
            code,
            method = asked.method.as_str(),
            path = asked.path,
            client.address = %id.client,
            caller = error.caller.as_deref(),
            request_id = &*id.text,
            trace_id = id.trace.as_deref(),
            left_out = (left_out > 0).then_some(left_out),
            "request refused"
        );
    }

    /// Logs the number of refusals left out, once their second is over.
    pub(super) fn catch_up(&self) {
        self.known.catch_up();
        self.unknown.catch_up();
    }
}

impl Lines {
    fn catch_up(&self) {
        if self.left_out.load(Ordering::Relaxed) == 0 {
            return;
        }
        let over = self.with_second(|second| second.began.elapsed() >= SECOND);
        if over && let Some(left_out @ 1..) = self.admit(Instant::now()) {
            tracing::warn!(target: "audit", audit = "refused", left_out, "more requests refused");
        }
    }

    /// Admits a line, and returns the number of refusals left out before it.
    fn admit(&self, now: Instant) -> Option<u64> {
        self.with_second(|second| {
            if now.duration_since(second.began) >= SECOND {
                *second = Second { began: now, lines: 0 };
            }
            if second.lines >= LINES_A_SECOND {
                self.left_out.fetch_add(1, Ordering::Relaxed);
                return None;
            }
            second.lines += 1;
            Some(self.left_out.swap(0, Ordering::Relaxed))
        })
    }

    fn with_second<T>(&self, use_it: impl FnOnce(&mut Second) -> T) -> T {
        let mut second = self.second.lock().unwrap_or_else(PoisonError::into_inner);
        use_it(second.get_or_insert_with(|| Second { began: Instant::now(), lines: 0 }))
    }
}
