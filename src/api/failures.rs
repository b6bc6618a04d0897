//! Log lines of store calls that failed under a request.

use std::time::Instant;

use crate::api::extract::RequestId;
use crate::api::lines::Lines;
use crate::lock::error::{StoreError, chain};
use crate::lock::key::LockKey;

/// An outage fails every request of every client, so the lines have a limit.
static LINES: Lines = Lines::new();

/// Logs the failure under this request, which is about one key or none, with its whole chain.
pub(super) fn note(error: &StoreError, key: Option<&LockKey>, id: &RequestId) {
    let Some(admitted) = LINES.admit(Instant::now()) else { return };
    tracing::warn!(
        op = %error.verb,
        effect = ?error.effect,
        cause = chain(error),
        lock.key = key.map(LockKey::as_str),
        client.address = %id.client,
        request_id = &*id.text,
        trace_id = id.trace.as_deref(),
        left_out = admitted.left_out,
        "store call failed"
    );
}
