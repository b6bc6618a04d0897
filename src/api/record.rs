//! The record of a verb: a count, and a log line without tokens. A forced release is logged for the
//! audit.

use crate::api::App;
use crate::api::error::ApiError;
use crate::api::extract::KeyCall;
use crate::lock::error::LockError;
use crate::lock::lease::{Holder, Lease, Owner};
use crate::lock::leases::Why;
use crate::lock::token::FencingToken;
use crate::metrics::Counted;
use crate::wire::{several, shared_by};

/// The record of a verb under way.
#[derive(Debug)]
pub(super) struct Record<'a> {
    app: &'a App,
    call: &'a KeyCall,
    verb: Counted,
    op: &'static str,
    /// The lease, as far as it is known.
    pub(super) holder: Holder,
    /// The reason of a forced release.
    pub(super) reason: Option<String>,
    /// Why a stream lost its lease.
    pub(super) why: Option<Why>,
}

/// A line for [`Record::end`], with these fields first.
macro_rules! line {
    ($record:expr, $outcome:expr, $($first:tt)*) => {
        tracing::info!(
            $($first)*
            op = $record.op,
            outcome = $outcome,
            lock.key = $record.call.key.as_str(),
            lock.owner = $record.holder.owner.as_ref().map(Owner::as_str),
            lock.fencing_token = $record.holder.fencing_token.map(FencingToken::number),
            lock.slots = shared_by($record.holder.share.slots),
            lock.units = several($record.holder.share),
            lock.slot = $record.holder.share.slot,
            end = $record.why.map(Why::name),
            duration_ms = $record.call.id.began.elapsed().as_micros() as f64 / 1_000.0,
            caller = $record.call.caller.name(),
            client.address = %$record.call.id.client,
            request_id = &*$record.call.id.text,
            trace_id = $record.call.id.trace.as_deref(),
        )
    };
}

impl<'a> Record<'a> {
    pub(super) fn of(app: &'a App, call: &'a KeyCall, verb: Counted, op: &'static str) -> Self {
        Self { app, call, verb, op, holder: Holder::default(), reason: None, why: None }
    }

    /// Notes the number and the share of a lease.
    pub(super) fn lease(&mut self, lease: &Lease) {
        (self.holder.fencing_token, self.holder.share) = (Some(lease.fencing_token), lease.share);
    }

    /// Counts and logs the failure of the verb, and returns its answer.
    pub(super) fn failed(&self, error: LockError) -> ApiError {
        self.app.activity.failed(&error);
        self.end(match error {
            LockError::WaitCancelled(_) => "cancelled",
            LockError::Superseded(_) => "superseded",
            _ => "error",
        });
        error.into()
    }

    /// Counts the outcome, without a log line.
    pub(super) fn quietly(&self, outcome: &'static str) {
        self.app.metrics.outcome(self.verb, outcome);
        self.app.activity.count(self.verb, outcome, self.call.id.began.elapsed());
    }

    /// Counts the outcome and logs it.
    pub(super) fn end(&self, outcome: &'static str) {
        self.quietly(outcome);
        match self.verb {
            Counted::ForceRelease => line!(
                self, outcome, target: "audit", audit = "force_release",
                reason = self.reason.as_deref(),
            ),
            _ => line!(self, outcome,),
        }
    }
}
