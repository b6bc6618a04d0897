//! The lock of Terraform's and OpenTofu's `http` backend. The state itself is kept elsewhere.
//!
//! That protocol has no lease token. The `ID` of a lock is known to its holder alone, so the token
//! is made of it, and no answer shows it; what is shown instead is good for a forced release. No
//! request renews such a lease: it lasts for the longest TTL.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{FromRequestParts, Request, State};
use axum::http::header::AUTHORIZATION;
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::api::error::ApiError;
use crate::api::extract::KeyCall;
use crate::api::options::{find, members};
use crate::api::{App, Routes, admin, locks};
use crate::auth::Permission;
use crate::lock::lease::{Acquired, Claim, Origin};
use crate::lock::time::Ttl;
use crate::lock::token::{FencingToken, LeaseToken};
use crate::wire::{Code, LockInfo};

/// Those of the backend's defaults, and the ones for proxies and clients that know no others.
const METHODS: &str = "DELETE, LOCK, POST, UNLOCK";

/// An apply may take minutes. A lease that ended before would admit a second one unnoticed.
const LEAST_TTL: Ttl = Ttl::from_millis(600_000);

/// The reason in the audit.
const FORCED: &str = "terraform force-unlock";

/// For a run whose lease is lost, and for a person who wants to force an unlock.
const UNKNOWN_ID: &str =
    "the lease of this ID is over; to force an unlock, send the ID that a refused lock shows";

/// Any method of `/terraform/{key}`.
pub(super) async fn answer(
    State(app): State<Arc<App>>,
    Backend(call): Backend,
    request: Request,
) -> Result<StatusCode, ApiError> {
    match request.method().as_str() {
        "LOCK" | "POST" => acquire(&app, &call, request).await,
        _ => release(&app, &call, request).await,
    }
    .map(|()| StatusCode::OK)
}

/// Acquires the key for the lock that the body describes.
async fn acquire(app: &App, call: &KeyCall, request: Request) -> Result<(), ApiError> {
    call.allow(&[Permission::Acquire])?;
    let members = members(request, &app.limits).await?.unwrap_or_default();
    let token = token(app, &members)?;
    if LockInfo::number(text(&members, "ID")?).is_some() {
        let detail = "the ID of a lock is its secret and begins with no number: send a random one";
        return Err(ApiError::invalid("ID", detail));
    }
    if app.ttl.max < LEAST_TTL {
        let detail = "leases here are too short for Terraform: use `lockkeeper exec`";
        return Err(ApiError::new(Code::InvalidRequest, detail));
    }
    let owner = LockInfo::owner(text(&members, "Who")?, text(&members, "Operation")?);
    let owner = owner.or_else(|| call.default_owner(app));
    let (key, ttl) = (call.key.clone(), app.ttl.max);
    let (origin, slots, units, named) = (Origin::Client, None, None, None);
    let (kept, permit) = (false, None);
    let claim = Claim { key, token, origin, ttl, owner, slots, units, kept, named, permit };
    match locks::claim_key(app, call, claim, Duration::ZERO).await? {
        Acquired::Granted(_) | Acquired::Again(_) => Ok(()),
        Acquired::Held(status, waited) => {
            let mut held = ApiError::held(&status, waited);
            let holder = status.holder.unwrap_or_default();
            let info = LockInfo::of(&status.key, &holder, &held.problem.detail);
            held.problem.more.lock_info = Some(Box::new(info));
            Err(held)
        }
        Acquired::Lost(number) => Err(locks::names_no_lease(app, call, number)),
    }
}

/// The number of the lease that a look at the key shows; none if a direct client has it.
async fn shown(app: &App, call: &KeyCall) -> Result<Option<FencingToken>, ApiError> {
    let status = app.locks.inspect(&call.key, None, 0).await?;
    let holder = status.holder.ok_or_else(|| ApiError::new(Code::LockLost, admin::NOT_HELD))?;
    Ok(holder.fencing_token)
}

/// Releases the lock that the body describes. `force-unlock` sends the ID that it was given
/// (OpenTofu), which ends the lease that was shown so, or no body (Terraform), which ends that of
/// any holder; both are for administrators. Some proxies drop the body of a DELETE.
async fn release(app: &App, call: &KeyCall, request: Request) -> Result<(), ApiError> {
    call.allow(&[Permission::Acquire, Permission::Admin])?;
    let routes = request.extensions().get::<Routes>().copied().unwrap_or(Routes::Clients);
    let force = async |named: Option<FencingToken>| {
        call.allow(&[Permission::Admin])?;
        if !routes.have("/admin") {
            let detail = "`force-unlock` is served on `admin_listen` only";
            return Err(ApiError::new(Code::Forbidden, detail));
        }
        let named = match named {
            None if app.locks.guarantees().forced_by_number => shown(app, call).await?,
            named => named,
        };
        admin::end(app, call, Some(FORCED.to_owned()), named).await.map(drop)
    };
    let has_lost_it = request.method() == Method::DELETE;
    let Some(members) = members(request, &app.limits).await? else {
        call.allow(&[Permission::Admin])?;
        if has_lost_it {
            let detail = "a DELETE without a body may have lost it: use the method UNLOCK, or \
                          `lockkeeper force-release`";
            return Err(ApiError::new(Code::InvalidRequest, detail));
        }
        return force(None).await;
    };
    if let Some(number) = LockInfo::number(text(&members, "ID")?) {
        return force(Some(number)).await;
    }
    call.allow(&[Permission::Acquire])?;
    let released = locks::give_up(app, call, token(app, &members)?, None).await;
    released.map_err(|mut error| {
        if error.problem.code == Code::LockLost {
            error.problem.detail = UNKNOWN_ID.to_owned();
        }
        error
    })
}

/// The lease token of the lock with the body's `ID`.
fn token(app: &App, members: &[(String, Value)]) -> Result<LeaseToken, ApiError> {
    let id = text(members, "ID")?;
    if id.is_empty() {
        let detail = "send the LockInfo of Terraform or OpenTofu, a JSON object with an `ID`";
        return Err(ApiError::invalid("ID", detail));
    }
    let digest = Sha256::digest(format!("lockkeeper/terraform/{id}"));
    let half = digest[..16].try_into().expect("a SHA-256 has 32 bytes");
    Ok(app.tokens.of_digest(u128::from_be_bytes(half)))
}

/// A text of the body; empty if it is absent.
fn text<'a>(members: &'a [(String, Value)], name: &str) -> Result<&'a str, ApiError> {
    let value = find(members, name).map_or(Some(""), Value::as_str);
    value.ok_or_else(|| ApiError::invalid(name, format!("`{name}` has to be a string")))
}

/// A call of the backend, which sends an API key as the password of any user, by `Basic`.
pub(super) struct Backend(KeyCall);

impl FromRequestParts<Arc<App>> for Backend {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, ApiError> {
        if !METHODS.split(", ").any(|method| method == parts.method.as_str()) {
            return Err(ApiError::method(METHODS));
        }
        if let Some(bearer) = bearer(&parts.headers) {
            parts.headers.insert(AUTHORIZATION, bearer);
        }
        let call = KeyCall::from_request_parts(parts, app).await;
        call.map(Self).map_err(|error| match error.problem.code {
            Code::Unauthenticated => {
                ApiError::unauthenticated("send the API key as the password, with any username")
            }
            _ => error,
        })
    }
}

/// The only `Authorization` header, if it is `Basic`, in the form that others send.
fn bearer(headers: &HeaderMap) -> Option<HeaderValue> {
    let mut all = headers.get_all(AUTHORIZATION).iter();
    let (Some(only), None) = (all.next(), all.next()) else { return None };
    let (scheme, encoded) = only.as_bytes().split_at_checked(6)?;
    let login = STANDARD.decode(encoded.trim_ascii()).ok()?;
    let colon = login.iter().position(|byte| *byte == b':')?;
    let bearer = HeaderValue::from_bytes(&[b"Bearer ", &login[colon + 1..]].concat()).ok()?;
    scheme.eq_ignore_ascii_case(b"Basic ").then_some(bearer)
}
