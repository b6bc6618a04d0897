//! The outcome of a request: a grant, a refusal, or no answer.

use std::time::Duration;

use serde::Deserialize;

use crate::lock::key::LockKey;
use crate::lock::token::{FencingToken, LeaseToken};
use crate::wire::{Code, urn};

/// The words with which servers that speak TLS answer HTTP: this service, nginx, Go and Apache.
const TLS_ONLY: [&str; 4] = [
    "this address speaks TLS",
    "HTTP request was sent to HTTPS port",
    "HTTP request to an HTTPS server",
    "plain HTTP to an SSL-enabled server",
];

#[derive(Clone, Debug)]
pub(crate) struct Granted {
    pub(crate) fencing_token: FencingToken,
    /// The TTL, counted from `waited` after the request arrived.
    pub(crate) ttl: Duration,
    /// The time that the request waited in line.
    pub(crate) waited: Duration,
    /// The `max_hold` of the key has shortened the TTL: no refresh makes the lease last longer.
    pub(crate) capped: bool,
    /// The number of its slot, if it shares the key and has one.
    pub(crate) slot: Option<u16>,
    pub(crate) body: String,
}

/// The reason why a request failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ClientError {
    #[error("{}", .0.detail)]
    Refused(Box<Refusal>),
    /// The outcome is unknown: the request may have taken effect.
    #[error("{why}")]
    NoAnswer {
        why: String,
        /// The request was sent, so somebody was there.
        sent: bool,
    },
}

/// A refusal by the service, or by a proxy in front of it.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(crate) struct Refusal {
    #[serde(skip)]
    pub(crate) status: u16,
    /// The code of the problem; empty if the service has sent none.
    code: String,
    #[serde(rename = "type")]
    urn: String,
    pub(crate) detail: String,
    /// Of several keys the one that it is about.
    pub(crate) key: Option<String>,
    /// The token has a lease that the request does not repeat.
    pub(crate) mine: bool,
    /// The number of the lease that the token has.
    pub(crate) fencing_token: Option<u64>,
    /// The longest TTL that the service allows, if it refused a longer one.
    pub(crate) max_ttl_ms: Option<u64>,
    /// The option that is wrong or missing.
    field: Option<String>,
    /// The holder of the key, or the number of its holders, its slots and, if some have several, the
    /// units of all.
    pub(crate) owner: Option<String>,
    pub(crate) holders: Option<u64>,
    pub(crate) slots: Option<u16>,
    pub(crate) units: Option<u64>,
    pub(crate) held_ms: Option<u64>,
    /// The time left of the holder's lease.
    pub(crate) retry_after_ms: Option<u64>,
    /// The requests in line.
    pub(crate) waiters: Option<u64>,
}

impl Granted {
    /// Parses a grant, which has to be for this claim: a cache may answer with another one.
    pub(super) fn of(body: String, key: &LockKey, token: &LeaseToken) -> Result<Self, ClientError> {
        #[derive(Deserialize)]
        struct Body {
            key: String,
            token: String,
            fencing_token: u64,
            ttl_ms: u64,
            waited_ms: u64,
            #[serde(default)]
            capped: bool,
            slot: Option<u16>,
        }
        let read: Body = serde_json::from_str(&body).map_err(|_| ClientError::strange())?;
        if read.key != key.as_str() || LeaseToken::parse(&read.token).as_ref() != Ok(token) {
            let why = "the answer is for another claim".to_owned();
            return Err(ClientError::NoAnswer { why, sent: true });
        }
        let fencing_token = FencingToken::from_number(read.fencing_token);
        Ok(Self {
            fencing_token: fencing_token.ok_or_else(ClientError::strange)?,
            ttl: Duration::from_millis(read.ttl_ms),
            waited: Duration::from_millis(read.waited_ms),
            capped: read.capped,
            slot: read.slot,
            body,
        })
    }
}

impl ClientError {
    /// Returns whether a retry may be answered differently.
    pub(crate) fn may_pass(&self) -> bool {
        match self {
            Self::NoAnswer { .. } => true,
            Self::Refused(refusal) => refusal.may_pass(),
        }
    }

    /// An answer that is not from lockkeeper; it proves nothing.
    pub(crate) fn strange() -> Self {
        Self::NoAnswer { why: "the answer is not from lockkeeper".to_owned(), sent: true }
    }
}

impl Refusal {
    /// Returns whether the service has refused with this code.
    pub(crate) fn is(&self, code: Code) -> bool {
        self.code == code.row().0
    }

    /// Returns whether the service asks for the number of the lease that is to end.
    pub(crate) fn asks_for_number(&self) -> bool {
        self.is(Code::InvalidRequest) && self.field.as_deref() == Some("fencing_token")
    }

    /// Returns whether another client holds the key, or there is no room to wait for it.
    pub(crate) fn is_busy(&self) -> bool {
        self.is(Code::LockHeld) || self.is(Code::TooManyWaiters)
    }

    /// Returns whether it is lockkeeper's, not a gateway's.
    pub(crate) fn is_ours(&self) -> bool {
        !self.code.is_empty()
    }

    /// Returns whether a retry may be answered differently.
    pub(crate) fn may_pass(&self) -> bool {
        let of_a_gateway = !self.is_ours() && self.status == 409;
        self.status >= 500 || self.status == 408 || self.status == 429 || of_a_gateway
    }

    /// The same, where an API key is missing or wrong with what to do on a command line.
    pub(super) fn for_people(self, has_key: bool) -> Self {
        if !self.is(Code::Unauthenticated) {
            return self;
        }
        let detail = match has_key {
            true => "unknown API key: look at LOCKKEEPER_API_KEY, or the file of --api-key-file",
            false => {
                "the service asks for an API key: set LOCKKEEPER_API_KEY, or name a file by \
                 --api-key-file"
            }
        };
        Self { detail: detail.to_owned(), ..self }
    }

    /// Parses the refusal in an answer. Gateways have a `code` too, but not this type.
    pub(super) fn of(status: u16, body: &str) -> Self {
        let read: Self = serde_json::from_str(body).unwrap_or_default();
        if read.urn == urn(&read.code) {
            return Self { status, ..read };
        }
        let detail = match TLS_ONLY.iter().any(|words| body.contains(words)) {
            true => "TLS is spoken there: is it https://?".to_owned(),
            false => format!("the answer is {status} and not from lockkeeper"),
        };
        Self { status, detail, ..Self::default() }
    }
}
