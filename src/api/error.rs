//! Errors as problems with a status and headers. The edge renders the body, which names the
//! request.

use std::sync::Arc;
use std::time::Duration;

use axum::http::header::{ALLOW, RETRY_AFTER, WWW_AUTHENTICATE};
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

use crate::api::Waited;
use crate::auth::Caller;
use crate::lock::error::{Effect, LockError, StoreError, Verb};
use crate::lock::key::{InvalidKey, LockKey};
use crate::lock::lease::{LockStatus, Sharers};
use crate::lock::slots::Slots;
use crate::lock::time::{TtlBounds, millis_down, millis_up, shortest};
use crate::lock::token::FencingToken;
use crate::wire::{Code, LostBody, More, Problem};

/// The most characters of a key in a detail, to keep it readable in narrow logs.
const SHOWN_KEY_CHARS: usize = 60;

/// The longest fault with which code and detail of every failure are within the first 120 characters
/// of a body, which is what some clients show of it.
const MAX_FAULT: usize = 21;

/// An answer that is not 2xx.
#[derive(Clone, Debug)]
pub(super) struct ApiError {
    pub(super) problem: Box<Problem>,
    /// The name of the API key that was refused.
    pub(super) caller: Option<String>,
    /// The store call that failed, for the log.
    pub(super) failure: Option<Arc<StoreError>>,
    header: Option<(HeaderName, HeaderValue)>,
}

/// The end of a detail about leases of several that are lost: some of them, or every one.
pub(super) struct Told {
    pub(super) some: &'static str,
    pub(super) every: &'static str,
}

/// The beginning of a text of the client's, for a detail.
pub(super) fn shown(text: &str) -> String {
    text.chars().take(SHOWN_KEY_CHARS).collect()
}

impl ApiError {
    pub(super) fn new(code: Code, detail: impl Into<String>) -> Self {
        Self::with(code, detail, More::default())
    }

    pub(super) fn invalid(field: &str, detail: impl Into<String>) -> Self {
        let more = More { field: Some(field.to_owned()), ..More::default() };
        Self::with(Code::InvalidRequest, detail, more)
    }

    pub(super) fn unknown_field(field: &str, known: &'static [&'static str]) -> Self {
        let shown = shown(field);
        let knows = |name: &str| known.contains(&name);
        let hint = match (field, field.strip_suffix("_ms"), known) {
            (_, Some(short), _) if knows(short) => format!("; in a query it is `{short}=30s`"),
            _ if knows(&format!("{field}_ms")) => {
                format!("; in a body it is `{field}_ms`, in milliseconds")
            }
            ("fencing_token", ..) if knows("wait") || knows("wait_ms") || knows("slots") => {
                "; a claim of several keys replaces no lease".to_owned()
            }
            ("fencing_token", ..) if knows("key") || knows("keys") => {
                "; name it beside its key in `leases`, in a body".to_owned()
            }
            ("key", ..) if knows("keys") => {
                "; several keys are a JSON list `keys`, or `?key=a&key=b`".to_owned()
            }
            ("ttl" | "ttl_ms" | "wait" | "wait_ms", ..) => "; did you mean POST?".to_owned(),
            (.., []) => "; this request takes no options".to_owned(),
            (.., known) => format!("; the options are {}", known.join(", ")),
        };
        let detail = format!("unknown option {shown:?}{hint}");
        let more = More { field: Some(shown), known: Some(known), ..More::default() };
        Self::with(Code::UnknownField, detail, more)
    }

    pub(super) fn method(allow: &'static str) -> Self {
        Self::new(Code::MethodNotAllowed, format!("this path supports only {allow}"))
            .header(ALLOW, HeaderValue::from_static(allow))
    }

    pub(super) fn unauthenticated(detail: &str) -> Self {
        Self::new(Code::Unauthenticated, detail)
            .header(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"))
    }

    pub(super) fn forbidden(caller: &Caller, detail: impl Into<String>) -> Self {
        Self { caller: Some(caller.name().to_owned()), ..Self::new(Code::Forbidden, detail) }
    }

    pub(super) fn ttl(field: &str, bounds: &TtlBounds) -> Self {
        let (min, max) = (bounds.min.as_millis(), bounds.max.as_millis());
        let more = More {
            field: Some(field.to_owned()),
            min_ttl_ms: Some(min),
            max_ttl_ms: Some(max),
            ..More::default()
        };
        let [from, to] = [bounds.min, bounds.max].map(|ttl| shortest(ttl.as_duration()));
        Self::with(Code::InvalidRequest, format!("a TTL has to be {from} to {to}"), more)
    }

    /// An API key whose quota is used up.
    pub(super) fn quota(what: &str, most: usize) -> Self {
        let detail = format!("this API key has reached its limit of {most} {what}; retry later");
        Self::new(Code::QuotaExceeded, detail).header(RETRY_AFTER, HeaderValue::from_static("1"))
    }

    /// A key with another holder, or a lease of the token's own that the request does not repeat.
    pub(super) fn held(status: &LockStatus, waited: Duration) -> Self {
        let state = state(status);
        let holder = status.holder.clone().unwrap_or_default();
        let (shown, is_mine) = (shown(status.key.as_str()), status.mine == Some(true));
        let more = More {
            retry_after_ms: holder.left.filter(|_| !is_mine).map(millis_up),
            owner: holder.owner.map(|owner| owner.to_string()),
            held_ms: holder.held.map(millis_down),
            waited_ms: Some(millis_down(waited)),
            waiters: Some(status.waiters),
            holders: status.sharers.as_ref().map(|all| all.holders),
            slots: status.sharers.as_ref().map(|all| all.slots.limit()),
            units: status.sharers.as_ref().and_then(Sharers::several),
            fencing_token: holder.fencing_token.filter(|_| is_mine).map(FencingToken::number),
            mine: is_mine.then_some(true),
            ..More::default()
        };
        let left = holder.left.filter(|_| !is_mine);
        let seconds = left.map_or(1, |left| millis_up(left).div_ceil(1_000).max(1));
        Self::with(Code::LockHeld, format!("'{shown}' is {state}"), more)
            .header(RETRY_AFTER, seconds.into())
    }

    /// A lease that a stream keeps, and alone refreshes.
    pub(super) fn kept(number: FencingToken) -> Self {
        let (mine, fencing_token) = (Some(true), Some(number.number()));
        let detail = "a stream keeps this lease, and refreshes it alone";
        Self::with(Code::LockHeld, detail, More { mine, fencing_token, ..More::default() })
    }

    /// A lease that the token no longer holds, of a key that may have a `max_hold`. The token may
    /// have the one of this number.
    pub(super) fn lost(max_hold: Option<Duration>, number: Option<FencingToken>) -> Self {
        let detail = match max_hold {
            _ if number.is_some() => {
                "the named lease is lost; this token has the lease of another `fencing_token`"
                    .to_owned()
            }
            None => "the lease is lost; work done under it may have overlapped with another holder"
                .to_owned(),
            Some(most) => format!(
                "the lease is lost, maybe by max_hold ({most:?}); your work may overlap with \
                 another's"
            ),
        };
        let fencing_token = number.map(FencingToken::number);
        Self::with(Code::LockLost, detail, More { fencing_token, ..More::default() })
    }

    /// So many of several leases are lost.
    pub(super) fn lost_of(lost: Vec<LostBody>, of: usize, told: &Told) -> Self {
        let detail = match lost.len() {
            lost if lost == of => format!("every lease of the request {}", told.every),
            lost => format!("{lost} of {of} leases {}", told.some),
        };
        Self::with(Code::LockLost, detail, More { lost, ..More::default() })
    }

    /// The same error about this one of several keys.
    pub(super) fn about(mut self, key: &LockKey) -> Self {
        self.problem.more.key = Some(key.to_string());
        self
    }

    /// The same error with more in its detail.
    pub(super) fn saying(mut self, more: &str) -> Self {
        self.problem.detail.push_str(more);
        self
    }

    fn with(code: Code, detail: impl Into<String>, more: More) -> Self {
        let problem = Box::new(Problem::new(code, detail, more));
        Self { problem, caller: None, failure: None, header: None }
    }

    fn header(self, name: HeaderName, value: HeaderValue) -> Self {
        Self { header: Some((name, value)), ..self }
    }
}

/// Why nobody else gets a key, for people.
fn state(status: &LockStatus) -> String {
    if status.mine == Some(true) {
        let number = status.holder.as_ref().and_then(|own| own.fencing_token);
        let named = number.map_or_else(String::new, |number| {
            format!(": send fencing_token={number} to replace it")
        });
        return format!("held by your own lease{named}");
    }
    let Some(holder) = &status.holder else {
        let free = if status.waiters > 0 { "free, but others come first" } else { "free by now" };
        return free.to_owned();
    };
    let owner = |before: &str| {
        holder.owner.as_ref().map_or_else(String::new, |owner| format!("{before}{owner}"))
    };
    let left = holder.left.map(|left| left.as_secs_f64());
    match (&status.sharers, left) {
        (None, None) => format!("held{}, without an expiry", owner(" by ")),
        (None, Some(left)) => format!("held{} for another {left:.1} s", owner(" by ")),
        (Some(all @ Sharers { holders, slots, .. }), left) => {
            let many = if *holders == 1 { "lease" } else { "leases" };
            let of = match (*slots, all.several()) {
                (Slots::SHARED, _) => String::new(),
                (slots, None) => format!(" of at most {}", slots.limit()),
                (slots, Some(units)) => format!(" with {units} of {} units", slots.limit()),
            };
            let (left, after) = (left.unwrap_or_default(), owner(", after "));
            format!("held by {holders} {many}{of}; there may be room in {left:.1} s{after}")
        }
    }
}

impl From<InvalidKey> for ApiError {
    fn from(error: InvalidKey) -> Self {
        Self::new(Code::InvalidKey, error.to_string())
    }
}

impl From<LockError> for ApiError {
    /// The edge logs the failure of a store, with the request that it belongs to.
    fn from(error: LockError) -> Self {
        let error = match error {
            LockError::Draining => {
                return Self::new(Code::Draining, "nothing was acquired; use another instance")
                    .header(RETRY_AFTER, HeaderValue::from_static("0"));
            }
            LockError::TooManyWaiters(what) => {
                return Self::new(Code::TooManyWaiters, format!("{what}; retry later"))
                    .header(RETRY_AFTER, HeaderValue::from_static("1"));
            }
            LockError::WaitCancelled(waited) => {
                let more = More { waited_ms: Some(millis_down(waited)), ..More::default() };
                let detail = "the claim was released while it waited; nothing is held";
                return Self::with(Code::WaitCancelled, detail, more)
                    .header(RETRY_AFTER, HeaderValue::from_static("0"));
            }
            LockError::Superseded(waited) => {
                let more = More { waited_ms: Some(millis_down(waited)), ..More::default() };
                let detail =
                    "a newer request with this token waits now; retry if none of yours is open";
                return Self::with(Code::Superseded, detail, more)
                    .header(RETRY_AFTER, HeaderValue::from_static("1"));
            }
            LockError::Store(error) => error,
        };
        let (outcome, detail) = match (error.verb, error.effect) {
            (Verb::TryAcquire | Verb::WaitTurn, Effect::None) => {
                (Some("not_acquired"), "nothing was acquired")
            }
            (Verb::Inspect | Verb::List, _) => (None, "the state is unknown; retry"),
            (_, Effect::None) => (Some("unknown"), "nothing was changed; retry"),
            (_, Effect::Earlier) => {
                (Some("unknown"), "this did nothing; an earlier request of its token may have")
            }
            (_, Effect::Unknown) => {
                (Some("unknown"), "it may have taken effect; retry with the same token")
            }
        };
        let more = More { outcome, ..More::default() };
        debug_assert!(error.fault.len() <= MAX_FAULT, "{}", error.fault);
        let failed = Self::with(Code::StoreUnavailable, format!("{}: {detail}", error.fault), more);
        Self { failure: Some(Arc::new(error)), ..failed }
            .header(RETRY_AFTER, HeaderValue::from_static("1"))
    }
}

impl IntoResponse for ApiError {
    /// Status and headers; the edge adds the body.
    fn into_response(self) -> Response {
        let (_, status, _) = self.problem.code.row();
        let mut response = StatusCode::from_u16(status).unwrap_or_default().into_response();
        if let Some((name, value)) = self.header.clone() {
            response.headers_mut().insert(name, value);
        }
        if let Some(waited @ 1..) = self.problem.more.waited_ms {
            response.extensions_mut().insert(Waited(Duration::from_millis(waited)));
        }
        response.extensions_mut().insert(self);
        response
    }
}
