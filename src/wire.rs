//! Paths, bodies and error codes on the wire. The order of the members is part of the contract:
//! some clients show only the beginning of a body.

mod several;
mod status;
mod terraform;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde::{Deserialize, Serialize, Serializer};

use crate::lock::error::Effect;
use crate::lock::hold::HoldEvent;
use crate::lock::key::LockKey;
use crate::lock::lease::{Grant, Holder};
use crate::lock::slots::{Share, Slots};
use crate::lock::store::Guarantees;
use crate::lock::time::millis_down;
use crate::lock::token::FencingToken;

pub(crate) use crate::wire::several::{LeasesBody, LostBody};
pub(crate) use crate::wire::status::{LeaseBody, ListBody, StatusBody, WaiterBody};
pub(crate) use crate::wire::terraform::LockInfo;

/// The header that carries a lease token, in both directions.
pub(crate) const LOCK_TOKEN: &str = "lock-token";

/// The header that names a request, in both directions.
pub(crate) const REQUEST_ID: &str = "x-request-id";

/// The characters of a key that are not encoded in a path; some proxies refuse `%2F`.
const IN_PATH: &AsciiSet =
    &NON_ALPHANUMERIC.remove(b'/').remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// The path of a key.
pub(crate) fn key_path(key: &LockKey) -> String {
    format!("/locks/{}", utf8_percent_encode(key.as_str(), IN_PATH))
}

/// The body of a grant, of a refresh, and of the event `acquired`.
#[derive(Debug, Serialize)]
pub(crate) struct GrantBody<'a> {
    token: &'a str,
    key: &'a str,
    fencing_token: u64,
    ttl_ms: u64,
    waited_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    capped: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    slots: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    units: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    slot: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<&'a str>,
}

impl<'a> GrantBody<'a> {
    /// The body of `grant`.
    pub(crate) fn of(grant: &'a Grant) -> Self {
        Self {
            token: grant.token.expose(),
            key: grant.lease.key.as_str(),
            fencing_token: grant.lease.fencing_token.number(),
            ttl_ms: grant.lease.ttl.as_millis(),
            waited_ms: millis_down(grant.waited),
            capped: grant.lease.capped.then_some(true),
            slots: shared_by(grant.lease.share.slots),
            units: several(grant.lease.share),
            slot: grant.lease.share.slot,
            owner: grant.lease.owner.as_ref().map(|owner| owner.as_str()),
        }
    }
}

/// A line of a hold's stream.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(crate) enum EventBody<'a> {
    /// The request waits in line.
    Waiting { ahead: u64 },
    /// The lease was granted.
    Acquired(GrantBody<'a>),
    /// The lease was refreshed.
    Alive { ttl_ms: u64 },
    /// The lease is lost.
    Lost {
        /// `expired`, `max_hold`, `released`, `forced`, `replaced` or `revoked`.
        reason: &'static str,
    },
    /// The wait timed out.
    Timeout,
    /// The instance is shutting down.
    Draining,
    /// The wait failed.
    Failed {
        code: Code,
        #[serde(skip_serializing_if = "Option::is_none")]
        outcome: Option<&'static str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        fencing_token: Option<u64>,
    },
}

impl<'a> EventBody<'a> {
    /// The line of an event.
    pub(crate) fn of(event: &'a HoldEvent) -> Self {
        match event {
            HoldEvent::Waiting(ahead) => Self::Waiting { ahead: *ahead },
            HoldEvent::Acquired(grant) => Self::Acquired(GrantBody::of(grant)),
            HoldEvent::Alive(left) => Self::Alive { ttl_ms: millis_down(*left) },
            HoldEvent::Lost(why) => Self::Lost { reason: why.name() },
            HoldEvent::TimedOut => Self::Timeout,
            HoldEvent::Draining => Self::Draining,
            HoldEvent::Cancelled => Self::failed(Code::WaitCancelled),
            HoldEvent::Superseded => Self::failed(Code::Superseded),
            HoldEvent::Mine(number) => Self::Failed {
                code: Code::LockHeld,
                outcome: None,
                fencing_token: number.map(FencingToken::number),
            },
            HoldEvent::Failed(error) => Self::Failed {
                code: Code::StoreUnavailable,
                outcome: Some(match error.effect {
                    Effect::None => "not_acquired",
                    Effect::Earlier | Effect::Unknown => "unknown",
                }),
                fencing_token: None,
            },
        }
    }

    fn failed(code: Code) -> Self {
        Self::Failed { code, outcome: None, fencing_token: None }
    }
}

/// The lease that a forced release ended; of several the first.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct TakenBody {
    pub(crate) key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) owner: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fencing_token: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) holders: Option<usize>,
}

impl TakenBody {
    /// The body for the leases of `holders`; their number is told if they shared the key.
    pub(crate) fn of(key: &str, holders: &[Holder]) -> Self {
        let first = holders.first();
        Self {
            key: key.to_owned(),
            owner: first.and_then(owner_text),
            fencing_token: first.and_then(|one| one.fencing_token).map(|token| token.number()),
            holders: first.filter(|one| one.share != Share::ALONE).map(|_| holders.len()),
        }
    }
}

/// The name, the version and the guarantees of the service.
#[derive(Debug, Serialize)]
pub(crate) struct AboutBody {
    name: &'static str,
    version: &'static str,
    store: StoreBody,
    links: LinksBody,
}

#[derive(Debug, Serialize)]
struct StoreBody {
    name: &'static str,
    order: &'static str,
    fencing: &'static str,
    survives: &'static str,
    sharing: &'static str,
}

#[derive(Debug, Serialize)]
struct LinksBody {
    openapi: &'static str,
    docs: &'static str,
    locks: &'static str,
    health: &'static str,
    ready: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    metrics: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ui: Option<&'static str>,
}

impl AboutBody {
    /// Those of a service with these guarantees, for a listener with or without what is
    /// for operators.
    pub(crate) fn new(guarantees: Guarantees, for_operators: bool) -> Self {
        let Guarantees { store, order, fencing, survives, sharing, .. } = guarantees;
        Self {
            name: env!("CARGO_PKG_NAME"),
            version: env!("CARGO_PKG_VERSION"),
            store: StoreBody { name: store, order, fencing, survives, sharing },
            links: LinksBody {
                openapi: "/openapi.yaml",
                docs: "/docs",
                locks: "/locks",
                health: "/healthz",
                ready: "/readyz",
                metrics: for_operators.then_some("/metrics"),
                ui: for_operators.then_some("/ui"),
            },
        }
    }
}

/// The error codes of the contract. New ones may be added; none changes its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Code {
    InvalidKey,
    InvalidRequest,
    UnknownField,
    TokenRequired,
    LockHeld,
    LockLost,
    WaitCancelled,
    Superseded,
    TooManyWaiters,
    QuotaExceeded,
    StoreUnavailable,
    Draining,
    NotReady,
    Unauthenticated,
    Forbidden,
    ForbiddenOrigin,
    NoSuchRoute,
    MethodNotAllowed,
    BodyTooLarge,
    Internal,
}

impl Code {
    /// The name on the wire, the status, and the title.
    pub(crate) const fn row(self) -> (&'static str, u16, &'static str) {
        match self {
            Self::InvalidKey => ("invalid_key", 400, "Invalid lock key"),
            Self::InvalidRequest => ("invalid_request", 400, "Invalid option"),
            Self::UnknownField => ("unknown_field", 400, "Unknown option"),
            Self::TokenRequired => ("token_required", 400, "The lease token is missing"),
            Self::LockHeld => ("lock_held", 409, "The lock is held"),
            Self::LockLost => ("lock_lost", 409, "The lease is lost"),
            Self::WaitCancelled => ("wait_cancelled", 409, "The claim was released"),
            Self::Superseded => ("superseded", 409, "A newer request waits"),
            Self::TooManyWaiters => ("too_many_waiters", 429, "Too many waiting requests"),
            Self::QuotaExceeded => ("quota_exceeded", 429, "The API key's quota is used up"),
            Self::StoreUnavailable => ("store_unavailable", 503, "The store is unavailable"),
            Self::Draining => ("draining", 503, "This instance is shutting down"),
            Self::NotReady => ("not_ready", 503, "This instance is not ready"),
            Self::Unauthenticated => ("unauthenticated", 401, "A valid API key is required"),
            Self::Forbidden => ("forbidden", 403, "Permission denied"),
            Self::ForbiddenOrigin => ("forbidden_origin", 403, "Web pages are not allowed"),
            Self::NoSuchRoute => ("no_such_route", 404, "Unknown route"),
            Self::MethodNotAllowed => ("method_not_allowed", 405, "Method not allowed"),
            Self::BodyTooLarge => ("body_too_large", 413, "The body is too large"),
            Self::Internal => ("internal", 500, "Internal error"),
        }
    }
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.row().0)
    }
}

/// An answer that is not 2xx, as `application/problem+json` (RFC 9457).
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Problem {
    pub(crate) code: Code,
    pub(crate) detail: String,
    #[serde(flatten)]
    pub(crate) more: More,
    title: &'static str,
    status: u16,
    #[serde(rename = "type")]
    urn: String,
    /// The id of the request; filled in at the edge.
    pub(crate) request_id: String,
}

/// Members that some codes add; `openapi.yaml` says what each is.
#[derive(Clone, Debug, Default, Serialize)]
pub(crate) struct More {
    /// Of several keys the one that the problem is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) lost: Vec<LostBody>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) field: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) known: Option<&'static [&'static str]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) min_ttl_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) max_ttl_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) retry_after_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) owner: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) held_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) waited_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) waiters: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) holders: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) slots: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) units: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fencing_token: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mine: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) outcome: Option<&'static str>,
    #[serde(flatten)]
    pub(crate) lock_info: Option<Box<LockInfo>>,
}

impl Problem {
    /// A problem with this code.
    pub(crate) fn new(code: Code, detail: impl Into<String>, more: More) -> Self {
        let (name, status, title) = code.row();
        let (detail, urn) = (detail.into(), urn(name));
        Self { code, detail, more, title, status, urn, request_id: String::new() }
    }
}

/// The type of the problems with a code of this name.
pub(crate) fn urn(name: &str) -> String {
    format!("urn:lockkeeper:{name}")
}

/// The slots of a lease that shares its key.
pub(crate) fn shared_by(slots: Slots) -> Option<u16> {
    (!slots.is_alone()).then(|| slots.limit())
}

/// The units of a lease that has several.
pub(crate) fn several(share: Share) -> Option<u16> {
    (share.units > 1).then_some(share.units)
}

fn owner_text(holder: &Holder) -> Option<String> {
    holder.owner.as_ref().map(|owner| owner.as_str().to_owned())
}

#[cfg(test)]
mod tests {
    use super::{Code, More, Problem, key_path};
    use crate::lock::key::LockKey;

    #[test]
    fn the_code_and_the_detail_come_first() {
        let more = More { owner: Some("web-1".into()), waiters: Some(0), ..More::default() };
        let body = serde_json::to_string(&Problem::new(Code::LockHeld, "held", more)).unwrap();
        assert_eq!(
            body,
            r#"{"code":"lock_held","detail":"held","owner":"web-1","waiters":0,"title":"The lock is held","status":409,"type":"urn:lockkeeper:lock_held","request_id":""}"#
        );
    }

    #[test]
    fn a_key_goes_into_the_path_as_the_service_reads_it() {
        let path = |key: &str| key_path(&LockKey::parse(key).unwrap());
        assert_eq!(path("a/b"), "/locks/a/b");
        assert_eq!(path("a b?c#d%e+f"), "/locks/a%20b%3Fc%23d%25e%2Bf");
    }
}
