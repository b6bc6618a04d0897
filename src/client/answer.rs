//! What came back: a grant, a refusal, or nothing.

use std::time::Duration;

use serde::Deserialize;

use crate::lock::key::LockKey;
use crate::lock::time::Ttl;
use crate::lock::token::{FencingToken, LeaseToken};
use crate::wire::Code;

/// A lease, as the service told it.
#[derive(Clone, Debug)]
pub struct Granted {
    /// Its number.
    pub fencing_token: FencingToken,
    /// How long it lasts, from `waited` after the request arrived.
    pub ttl: Duration,
    /// How long the request waited in line.
    pub waited: Duration,
    /// All that the service said.
    pub body: String,
}

/// Why a request did not do what it was to.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The service said no.
    #[error("{0}")]
    Refused(Refusal),
    /// Nothing is known: it may have happened.
    #[error("{0}")]
    NoAnswer(String),
}

/// A no of the service, or of a proxy before it.
#[derive(Debug)]
pub struct Refusal {
    /// The status.
    pub status: u16,
    /// The code of the problem; empty if there was none.
    pub code: String,
    /// What people read.
    pub detail: String,
    /// All that was said.
    pub body: String,
}

impl Granted {
    /// The grant in this body, which has to be for this claim: a cache may answer with another's.
    pub(super) fn of(body: String, key: &LockKey, token: &LeaseToken) -> Result<Self, ClientError> {
        #[derive(Deserialize)]
        struct Body {
            key: String,
            token: String,
            fencing_token: u64,
            ttl_ms: u64,
            waited_ms: u64,
        }
        let read: Body = serde_json::from_str(&body).map_err(|_| ClientError::strange())?;
        if read.key != key.as_str() || LeaseToken::parse(&read.token).as_ref() != Ok(token) {
            return Err(ClientError::NoAnswer("the answer is for another claim".to_owned()));
        }
        let fencing_token = FencingToken::from_number(read.fencing_token);
        Ok(Self {
            fencing_token: fencing_token.ok_or_else(ClientError::strange)?,
            ttl: Duration::from_millis(read.ttl_ms),
            waited: Duration::from_millis(read.waited_ms),
            body,
        })
    }
}

impl ClientError {
    /// An answer that a lockkeeper does not give; it proves nothing.
    pub(super) fn strange() -> Self {
        Self::NoAnswer("the answer is not from lockkeeper".to_owned())
    }
}

impl Refusal {
    /// Whether somebody else has the key, or there is no room to wait for it.
    pub fn is_busy(&self) -> bool {
        [Code::LockHeld, Code::TooManyWaiters].iter().any(|code| self.code == code.row().0)
    }

    /// Whether the lease is not there any more.
    pub fn is_lost(&self) -> bool {
        self.code == Code::LockLost.row().0
    }

    /// Whether the claim was released while it waited.
    pub fn is_cancelled(&self) -> bool {
        self.code == Code::WaitCancelled.row().0
    }

    /// The longest lease that the service allows, if it refuses a longer one.
    pub fn max_ttl(&self) -> Option<Ttl> {
        #[derive(Deserialize)]
        struct Bounds {
            max_ttl_ms: u64,
        }
        let bounds: Bounds = serde_json::from_str(&self.body).ok()?;
        Some(Ttl::from_millis(bounds.max_ttl_ms))
    }

    /// Whether the same request may be answered differently in a moment.
    pub fn may_pass(&self) -> bool {
        self.status >= 500 || self.status == 408 || self.status == 429
    }

    /// The refusal in this answer.
    pub(super) fn of(status: u16, body: String) -> Self {
        #[derive(Deserialize)]
        struct ProblemBody {
            code: String,
            detail: String,
        }
        match serde_json::from_str(&body) {
            Ok(ProblemBody { code, detail }) => Self { status, code, detail, body },
            Err(_) => {
                let detail = format!("the answer is {status}, and not from lockkeeper");
                Self { status, code: String::new(), detail, body }
            }
        }
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.detail)
    }
}
