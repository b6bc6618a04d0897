//! The verbs of administrators, under a path of their own so that a proxy can close it.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Request, State};

use crate::api::App;
use crate::api::error::ApiError;
use crate::api::extract::KeyCall;
use crate::api::options::{Known, Options};
use crate::api::record::Record;
use crate::auth::Permission;
use crate::lock::lease::Holder;
use crate::lock::token::FencingToken;
use crate::metrics::Counted;
use crate::wire::{Code, TakenBody};

const FORCE_RELEASE: Known =
    Known { query: &["reason", "fencing_token"], body: &["reason", "fencing_token"] };

pub(super) const NOT_HELD: &str = "the key is not held";

/// The refusal on a store where a forced release has to name the lease.
const NAMES_A_LEASE: &str = "on Redlock a forced release names its lease: send the `fencing_token` \
                             that a look at the key or the list tells. A lock without one is a \
                             direct Redis client's: delete it on the nodes with `redis-cli`";

/// `DELETE /admin/locks/{key}`: ends the leases of all holders, or only the one that is named.
pub(super) async fn force_release(
    State(app): State<Arc<App>>,
    call: KeyCall,
    request: Request,
) -> Result<Json<TakenBody>, ApiError> {
    call.allow(&[Permission::Admin])?;
    let options = Options::read(request, &app.limits, FORCE_RELEASE).await?;
    let holders = end(&app, &call, options.reason()?, options.fencing_token()?).await?;
    Ok(Json(TakenBody::of(call.key.as_str(), &holders)))
}

/// Ends the leases of all holders, or only the one `named`, with a record of each, and returns the
/// holders.
pub(super) async fn end(
    app: &App,
    call: &KeyCall,
    reason: Option<String>,
    named: Option<FencingToken>,
) -> Result<Vec<Holder>, ApiError> {
    if named.is_none() && app.locks.guarantees().forced_by_number {
        return Err(ApiError::invalid("fencing_token", NAMES_A_LEASE));
    }
    let mut record = Record::of(app, call, Counted::ForceRelease, "force_release");
    record.reason = reason;
    let ended = app.locks.force_release(call.key.clone(), named).await;
    let ended = ended.map_err(|error| record.failed(error))?;
    if ended.is_empty() {
        record.end("lost");
        let detail = match named {
            Some(_) => "the key is not held by the lease of this `fencing_token`",
            None => NOT_HELD,
        };
        return Err(ApiError::new(Code::LockLost, detail));
    }
    for holder in &ended {
        record.holder = holder.clone();
        record.end("ok");
    }
    Ok(ended)
}
