//! The verbs for several keys at once. `extract` and `options` read them, and the domain does the
//! rest.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use futures_util::future::join_all;

use crate::api::App;
use crate::api::error::{ApiError, Told};
use crate::api::extract::{KeyCall, SeveralCall};
use crate::api::locks::{answer, counted, extend, give_up, permit, wants_text};
use crate::api::options::{KEY, KEYS, Known, Options};
use crate::api::quotas::Kind;
use crate::api::record::Record;
use crate::lock::key::LockKey;
use crate::lock::lease::{Claim, Grant};
use crate::lock::several::AllAcquired;
use crate::lock::time::millis_down;
use crate::lock::token::FencingToken;
use crate::metrics::Counted;
use crate::wire::{Code, LeasesBody, LostBody};

const ACQUIRE: Known = Known {
    query: &[KEY, "ttl", "wait", "owner"],
    body: &[KEYS, "ttl_ms", "wait_ms", "token", "owner"],
};
const REFRESH: Known = Known { query: &[KEY, "ttl"], body: &[KEYS, LEASES, "ttl_ms", "token"] };
const RELEASE: Known = Known { query: &[KEY], body: &[KEYS, LEASES, "token"] };

const LEASES: &str = "leases";

/// The lists of keys, with the options of each key.
const CLAIMED: &[(&str, &[&str])] = &[(KEYS, &[KEY, "slots", "units", "shared"])];
const HELD: &[(&str, &[&str])] = &[(KEYS, &[KEY]), (LEASES, &[KEY, "fencing_token"])];

/// Losses at a refresh.
const LOST: Told = Told {
    some: "are lost; the others were refreshed; your work may overlap with another's",
    every: "is lost; your work may overlap with another's",
};

/// Losses at a release.
const ENDED: Told =
    Told { some: "had ended before; the others are released", every: "had ended before" };

/// `POST /locks`: acquires all of the keys, or none.
pub(super) async fn acquire(
    State(app): State<Arc<App>>,
    call: SeveralCall,
    request: Request,
) -> Result<Response, ApiError> {
    let as_text = wants_text(request.headers());
    // Boxed, because a wait would keep the memory.
    let options = Box::pin(Options::read(request, &app.limits, ACQUIRE)).await?;
    let (mut calls, mut claims) = (Vec::new(), Vec::new());
    for (key, its) in options.keys(CLAIMED)? {
        calls.push(call.about(key)?);
        claims.push(its);
    }
    let (patience, cut) = options.wait(app.limits.max_wait)?;
    let claim = options.claim(&app, &calls[0])?;
    let claims = calls.iter().zip(claims).map(|(call, its)| {
        let slots = its.slots(app.locks.guarantees().most_slots)?;
        let units = its.units(slots)?;
        Ok(Claim { key: call.key.clone(), slots, units, ..claim.clone() })
    });
    let claims = claims.collect::<Result<Vec<_>, ApiError>>()?;
    let waits = !patience.is_zero();
    let _permit = waits.then(|| permit(&app, &calls[0], &claims[0], Kind::Waiter)).transpose()?;
    match claim_keys(&app, &calls, claims, patience).await? {
        AllAcquired::Granted(grants) => {
            let is_new = grants.iter().any(|(_, is_new)| *is_new);
            let status = if is_new { StatusCode::CREATED } else { StatusCode::OK };
            let grants: Vec<_> = grants.into_iter().map(|(grant, _)| grant).collect();
            Ok((status, granted(&grants, as_text)).into_response())
        }
        AllAcquired::Held(status, waited) => {
            let mut held = ApiError::held(&status, waited).about(&status.key);
            if status.mine == Some(true) {
                held.problem.detail =
                    "the token has a lease of `key` that this does not repeat; release it first"
                        .to_owned();
            }
            Err(if cut { held.saying("; the wait was cut to the longest allowed") } else { held })
        }
        AllAcquired::Lost(key, waited) => {
            let mut lost = ApiError::lost(app.locks.leases().max_hold(&key), None).about(&key);
            lost.problem.detail =
                "the lease of `key` ended while another key was awaited; retry".to_owned();
            lost.problem.more.waited_ms = Some(millis_down(waited));
            Err(lost)
        }
    }
}

/// Makes a claim of all keys for the caller, with its quota and the records.
async fn claim_keys(
    app: &App,
    calls: &[KeyCall],
    claims: Vec<Claim>,
    patience: Duration,
) -> Result<AllAcquired, ApiError> {
    let mut all = Vec::new();
    for claim in claims {
        all.push(counted(app, &calls[0].caller, claim).await?);
    }
    let owner = all[0].owner.clone();
    let record = |key: &LockKey| {
        let call = calls.iter().find(|call| call.key == *key).unwrap_or(&calls[0]);
        let mut record = Record::of(app, call, Counted::Acquire, "acquire");
        record.holder.owner.clone_from(&owner);
        record
    };
    let _answering: Vec<_> = all.iter().map(|claim| app.locks.answering(claim)).collect();
    let in_line = (!patience.is_zero()).then(|| app.metrics.in_line());
    let acquired = app.locks.acquire_all(all, patience).await;
    if let Some(in_line) = in_line {
        in_line.answered();
    }
    match &acquired {
        Ok(AllAcquired::Granted(grants)) => {
            for (Grant { lease, .. }, is_new) in grants {
                let mut record = record(&lease.key);
                record.lease(lease);
                record.end(if *is_new { "granted" } else { "again" });
            }
        }
        Ok(AllAcquired::Held(status, waited)) => {
            record(&status.key).end(if waited.is_zero() { "held" } else { "timed_out" });
        }
        Ok(AllAcquired::Lost(key, _)) => record(key).end("lost"),
        Err(_) => (),
    }
    acquired.map_err(|(key, error)| record(&key).failed(error).about(&key))
}

/// `PUT /locks/refresh`: extends all of the leases that the token still has.
pub(super) async fn refresh(
    State(app): State<Arc<App>>,
    call: SeveralCall,
    request: Request,
) -> Result<Response, ApiError> {
    let options = Options::read(request, &app.limits, REFRESH).await?;
    let calls = held(&call, &options)?;
    let (token, ttl) = (options.required_token()?, options.ttl(&app.ttl)?);
    let refreshed = calls.iter().map(|(call, named)| extend(&app, call, (&token, *named), ttl));
    let refreshed = join_all(refreshed).await;
    all(&calls, refreshed, &LOST).map(|grants| granted(&grants, false))
}

/// `DELETE /locks`: releases all of the leases that the token still has.
pub(super) async fn release(
    State(app): State<Arc<App>>,
    call: SeveralCall,
    request: Request,
) -> Result<StatusCode, ApiError> {
    let options = Options::read(request, &app.limits, RELEASE).await?;
    let calls = held(&call, &options)?;
    let token = options.required_token()?;
    let released = calls.iter().map(|(call, named)| give_up(&app, call, token.clone(), *named));
    let released = join_all(released).await;
    all(&calls, released, &ENDED).map(|_| StatusCode::NO_CONTENT)
}

/// A lease of the request: the call about its key, and its number if it is named.
type Held = (KeyCall, Option<FencingToken>);

/// The leases that a request names.
fn held(call: &SeveralCall, options: &Options) -> Result<Vec<Held>, ApiError> {
    let keys = options.keys(HELD)?.into_iter();
    keys.map(|(key, its)| Ok((call.about(key)?, its.fencing_token()?))).collect()
}

/// What every call has done, or a problem. A failure comes before the losses: a client that is told
/// of losses takes all other calls for done.
fn all<T>(
    calls: &[Held],
    answers: Vec<Result<T, ApiError>>,
    told: &Told,
) -> Result<Vec<T>, ApiError> {
    let (mut done, mut lost, mut others) = (Vec::new(), Vec::new(), Vec::new());
    for ((call, _), answer) in calls.iter().zip(answers) {
        match answer {
            Ok(one) => done.push(one),
            Err(error) if error.problem.code == Code::LockLost => lost.push(LostBody {
                key: call.key.to_string(),
                fencing_token: error.problem.more.fencing_token,
            }),
            Err(error) => others.push(error.about(&call.key)),
        }
    }
    let is_first = |error: &ApiError| lost.is_empty() || error.problem.code != Code::LockHeld;
    match others.into_iter().find(is_first) {
        Some(error) => Err(error),
        None if lost.is_empty() => Ok(done),
        None => Err(ApiError::lost_of(lost, calls.len(), told)),
    }
}

fn granted(grants: &[Grant], as_text: bool) -> Response {
    answer(&grants[0], as_text, LeasesBody::of(grants))
}
