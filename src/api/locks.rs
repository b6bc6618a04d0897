//! The verbs over HTTP: check rights, read the options, call the verb, translate.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::header::LOCATION;
use axum::http::{HeaderMap, HeaderName, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use serde_json::Value;

use crate::api::error::ApiError;
use crate::api::extract::{KeyCall, Reader, accepted, header_token};
use crate::api::options::{Known, Options, find, query};
use crate::api::quotas::Kind;
use crate::api::record::Record;
use crate::api::{App, Waited, lists};
use crate::auth::{Caller, Permission};
use crate::lock::lease::{Acquired, Claim, Grant, Origin};
use crate::lock::permit::Permit;
use crate::lock::store::{Ended, Renewed, Target};
use crate::lock::time::Ttl;
use crate::lock::token::{FencingToken, LeaseToken};
use crate::metrics::Counted;
use crate::wire::{GrantBody, LOCK_TOKEN, StatusBody, key_path};

const ACQUIRE: Known = Known {
    query: &["ttl", "wait", "owner", "slots", "units", "shared", "fencing_token"],
    body: &["ttl_ms", "wait_ms", "token", "owner", "slots", "units", "shared", "fencing_token"],
};
const REFRESH: Known =
    Known { query: &["ttl", "fencing_token"], body: &["ttl_ms", "token", "fencing_token"] };
const RELEASE: Known = Known { query: &["fencing_token"], body: &["token", "fencing_token"] };
const LOOK: &[&str] = &["waiters"];
const LIST: &[&str] = &["prefix", "limit", "cursor"];

/// The `limit` of a list that names none.
const DEFAULT_LIMIT: usize = 100;
/// The highest `limit` of a list.
const MAX_LIMIT: usize = 1_000;
/// The most waiting requests that a look names.
const MAX_QUEUE: usize = 100;

/// `POST /locks/{key}`: acquires the key, and waits in line if asked to.
pub(super) async fn acquire(
    State(app): State<Arc<App>>,
    call: KeyCall,
    request: Request,
) -> Result<Response, ApiError> {
    call.allow(&[Permission::Acquire])?;
    let as_text = wants_text(request.headers());
    // Boxed, because a wait would keep the memory.
    let options = Box::pin(Options::read(request, &app.limits, ACQUIRE)).await?;
    let (patience, cut) = options.wait(app.limits.max_wait)?;
    let claim = options.claim(&app, &call)?;
    let waits = !patience.is_zero();
    let _permit = waits.then(|| permit(&app, &call, &claim, Kind::Waiter)).transpose()?;
    match claim_key(&app, &call, claim, patience).await? {
        Acquired::Granted(grant) => {
            let location = [(LOCATION, key_path(&call.key))];
            Ok((StatusCode::CREATED, location, granted(&grant, as_text)).into_response())
        }
        Acquired::Again(grant) => Ok(granted(&grant, as_text)),
        Acquired::Held(status, waited) => {
            let held = ApiError::held(&status, waited);
            Err(if cut { held.saying("; the wait was cut to the longest allowed") } else { held })
        }
        Acquired::Lost(number) => Err(names_no_lease(&app, &call, number)),
    }
}

/// `PUT /locks/{key}/refresh`: extends a lease.
pub(super) async fn refresh(
    State(app): State<Arc<App>>,
    call: KeyCall,
    request: Request,
) -> Result<Response, ApiError> {
    call.allow(&[Permission::Acquire])?;
    let options = Options::read(request, &app.limits, REFRESH).await?;
    let token = options.required_token()?;
    let (named, ttl) = (options.fencing_token()?, options.ttl(&app.ttl)?);
    extend(&app, &call, (&token, named), ttl).await.map(|grant| granted(&grant, false))
}

/// Extends the lease of this token, with its record.
pub(super) async fn extend(
    app: &App,
    call: &KeyCall,
    (token, named): (&LeaseToken, Option<FencingToken>),
    ttl: Option<Ttl>,
) -> Result<Grant, ApiError> {
    let record = Record::of(app, call, Counted::Refresh, "refresh");
    let refreshed = app.locks.refresh(Target::of(&call.key, token, named), ttl).await;
    match refreshed.map_err(|error| record.failed(error))? {
        Renewed::Lease(lease) => {
            record.quietly("ok");
            Ok(Grant { lease, token: token.clone(), waited: Duration::ZERO })
        }
        Renewed::Kept(number) => {
            record.end("held");
            Err(ApiError::kept(number))
        }
        Renewed::Lost(number) => {
            record.end("lost");
            Err(lost(app, call, number))
        }
    }
}

/// The error of a lease that the token does not have, but maybe the one of this number.
fn lost(app: &App, call: &KeyCall, number: Option<FencingToken>) -> ApiError {
    ApiError::lost(app.locks.leases().max_hold(&call.key), number)
}

/// `DELETE /locks/{key}`: releases a lease.
pub(super) async fn release(
    State(app): State<Arc<App>>,
    call: KeyCall,
    request: Request,
) -> Result<StatusCode, ApiError> {
    call.allow(&[Permission::Acquire])?;
    let options = Options::read(request, &app.limits, RELEASE).await?;
    let (token, named) = (options.required_token()?, options.fencing_token()?);
    give_up(&app, &call, token, named).await.map(|()| StatusCode::NO_CONTENT)
}

/// `GET /locks/{key}`: the state of a key.
pub(super) async fn inspect(
    State(app): State<Arc<App>>,
    call: KeyCall,
    uri: Uri,
    headers: HeaderMap,
) -> Result<Json<StatusBody>, ApiError> {
    call.allow(&[Permission::Acquire, Permission::Read])?;
    let query = query(uri.query(), LOOK)?;
    let most = find(&query, "waiters").and_then(Value::as_str).map(queue_length).transpose()?;
    let token = header_token(&headers)?;
    let status = app.locks.inspect(&call.key, token.as_ref(), most.unwrap_or_default()).await?;
    Ok(Json(if most.is_some() { StatusBody::with_queue(status) } else { status.into() }))
}

/// The number of waiting requests to name.
fn queue_length(text: &str) -> Result<usize, ApiError> {
    let bad = || ApiError::invalid("waiters", format!("`waiters` is a number up to {MAX_QUEUE}"));
    text.parse().ok().filter(|most| *most <= MAX_QUEUE).ok_or_else(bad)
}

/// `GET /locks`: the held keys that the caller may see.
pub(super) async fn list(
    State(app): State<Arc<App>>,
    Reader(caller): Reader,
    uri: Uri,
) -> Result<Response, ApiError> {
    let query = query(uri.query(), LIST)?;
    let text = |name| find(&query, name).and_then(Value::as_str);
    let limit = text("limit").map_or(Some(DEFAULT_LIMIT), |limit| limit.parse().ok());
    let limit = limit
        .filter(|limit| (1..=MAX_LIMIT).contains(limit))
        .ok_or_else(|| ApiError::invalid("limit", format!("a page has 1 to {MAX_LIMIT} keys")))?;
    let prefixes = caller.visible(text("prefix").unwrap_or_default());
    if prefixes.is_empty() {
        return Err(ApiError::forbidden(&caller, "this API key may not see keys with this prefix"));
    }
    let after = text("cursor").map(str::to_owned);
    let permit = app.quotas.permit(&caller, Kind::List)?;
    let (place, asking) = app.lists.enter(permit).await?;
    let listing = app.locks.list(prefixes, after, limit).await?;
    drop(asking);
    Ok(lists::page(listing, place))
}

/// The error of a claim that names a lease which its token does not have.
pub(super) fn names_no_lease(app: &App, call: &KeyCall, number: Option<FencingToken>) -> ApiError {
    let mut lost = lost(app, call, number);
    lost.problem.more.waited_ms = Some(0);
    lost
}

/// Makes a claim for the caller, with its quota and its record.
pub(super) async fn claim_key(
    app: &App,
    call: &KeyCall,
    claim: Claim,
    patience: Duration,
) -> Result<Acquired, ApiError> {
    let claim = counted(app, &call.caller, claim).await?;
    let mut record = Record::of(app, call, Counted::Acquire, "acquire");
    record.holder.owner = claim.owner.clone();
    let _answering = app.locks.answering(&claim);
    let in_line = (!patience.is_zero()).then(|| app.metrics.in_line());
    let acquired = app.locks.acquire(claim, patience).await;
    if let Some(in_line) = in_line {
        in_line.answered();
    }
    match &acquired {
        Ok(Acquired::Granted(Grant { lease, .. }) | Acquired::Again(Grant { lease, .. })) => {
            let is_new = matches!(acquired, Ok(Acquired::Granted(_)));
            record.lease(lease);
            record.end(if is_new { "granted" } else { "again" });
        }
        Ok(Acquired::Held(_, waited)) => {
            record.end(if waited.is_zero() { "held" } else { "timed_out" });
        }
        Ok(Acquired::Lost(_)) => record.end("lost"),
        Err(_) => (),
    }
    acquired.map_err(|error| record.failed(error))
}

/// Gives up the lease or the place in line of this token, with its record.
pub(super) async fn give_up(
    app: &App,
    call: &KeyCall,
    token: LeaseToken,
    named: Option<FencingToken>,
) -> Result<(), ApiError> {
    let mut record = Record::of(app, call, Counted::Release, "release");
    let released = app.locks.release(Target::of(&call.key, &token, named)).await;
    match released.map_err(|error| record.failed(error))? {
        Ended::Lease(holder) => {
            record.holder = holder;
            record.end("ok");
            Ok(())
        }
        Ended::Place => {
            record.end("place");
            Ok(())
        }
        Ended::Nothing(number) => {
            record.end("lost");
            Err(ApiError::lost(None, number))
        }
    }
}

/// A permit for a request of a claim: one more, or in place of the one that waits and ends.
pub(super) fn permit(
    app: &App,
    call: &KeyCall,
    claim: &Claim,
    kind: Kind,
) -> Result<Option<Permit>, ApiError> {
    match app.quotas.permit(&call.caller, kind) {
        Err(_) if app.locks.is_in_line(claim) => Ok(app.quotas.request_anyway(&call.caller, kind)),
        permit => permit,
    }
}

/// The claim with a permit for one more lease of its caller.
pub(super) async fn counted(app: &App, caller: &Caller, claim: Claim) -> Result<Claim, ApiError> {
    let Some(name) = caller.counted_as() else { return Ok(claim) };
    let leases = app.locks.leases();
    leases.expire(); // Those that are over count no more.
    let permit = match app.quotas.permit(caller, Kind::Lease) {
        Err(full) => {
            // Another instance may have granted it, or this one before it was started.
            let is_no_more = app.locks.is_in_line(&claim)
                || leases.one_makes_way(&claim, &app.quotas.leases(name))
                || claim.origin == Origin::Client && app.locks.has_lease(&claim).await?;
            if !is_no_more {
                return Err(full);
            }
            app.quotas.permit_anyway(name)
        }
        Ok(permit) => permit,
    };
    Ok(Claim { permit, ..claim })
}

/// The answer to a grant; the token is in a header too, for shells.
fn granted(grant: &Grant, as_text: bool) -> Response {
    answer(grant, as_text, GrantBody::of(grant))
}

/// The answer to a grant with this body, or as text only with its token.
pub(super) fn answer(grant: &Grant, as_text: bool, body: impl Serialize) -> Response {
    let token = grant.token.expose();
    let header = [(HeaderName::from_static(LOCK_TOKEN), token.to_owned())];
    let mut answer = if as_text {
        (header, format!("{token}\n")).into_response()
    } else {
        (header, Json(body)).into_response()
    };
    if !grant.waited.is_zero() {
        answer.extensions_mut().insert(Waited(grant.waited));
    }
    answer
}

/// Returns whether the client accepts text and neither JSON nor `*/*`.
pub(super) fn wants_text(headers: &HeaderMap) -> bool {
    let accept = accepted(headers);
    accept.contains("text/plain") && !accept.contains("json") && !accept.contains("*/*")
}
