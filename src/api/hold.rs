//! A lease that lives as long as its connection, as a stream of events: one JSON object per line,
//! or a server-sent event for each.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::Version;
use axum::response::Response;
use futures_util::stream::unfold;
use tokio::sync::OwnedSemaphorePermit;

use crate::api::App;
use crate::api::edge::{SERVER_SENT, streamed};
use crate::api::error::ApiError;
use crate::api::extract::{KeyCall, accepted};
use crate::api::failures;
use crate::api::locks::{counted, names_no_lease, permit};
use crate::api::options::{Known, Options};
use crate::api::quotas::Kind;
use crate::api::record::Record;
use crate::auth::Permission;
use crate::lock::error::LockError;
use crate::lock::hold::{Hold, HoldEvent, HoldStart, HoldWish, TimedOut};
use crate::lock::lease::{Claim, Lease};
use crate::lock::permit::Permit;
use crate::metrics::{Counted, Counting, Unanswered};
use crate::wire::EventBody;

const HOLD: Known = Known {
    query: &["ttl", "wait", "owner", "linger", "slots", "units", "shared", "fencing_token"],
    body: &[
        "ttl_ms",
        "wait_ms",
        "token",
        "owner",
        "linger_ms",
        "slots",
        "units",
        "shared",
        "fencing_token",
    ],
};

/// The form of a stream. Some tunnels pass on at once only what is named server-sent events.
#[derive(Clone, Copy)]
enum Form {
    Lines,
    ServerSent,
}

impl Form {
    fn media_type(self) -> &'static str {
        match self {
            Self::Lines => "application/x-ndjson",
            Self::ServerSent => SERVER_SENT,
        }
    }

    fn write(self, event: &HoldEvent) -> Bytes {
        let json = serde_json::to_string(&EventBody::of(event))
            .expect("an event has only texts and numbers");
        match self {
            Self::Lines => format!("{json}\n"),
            Self::ServerSent => format!("data: {json}\n\n"),
        }
        .into()
    }
}

/// The right that a stream needs, from its first event to its last.
const RIGHT: &[Permission] = &[Permission::Acquire];

/// `POST /hold/{key}`: acquires the key, and keeps it while the client reads.
pub(super) async fn hold(
    State(app): State<Arc<App>>,
    call: KeyCall,
    request: Request,
) -> Result<Response, ApiError> {
    call.allow(RIGHT)?;
    let sent = accepted(request.headers()).contains(SERVER_SENT);
    let form = if sent { Form::ServerSent } else { Form::Lines };
    let timed_out = request.extensions().get::<TimedOut>().cloned().unwrap_or_default();
    let options = Options::read(request, &app.limits, HOLD).await?;
    let (patience, linger) = (options.endless_wait()?, options.linger()?);
    let claim = Claim { kept: true, ..options.claim(&app, &call)? };
    let full = LockError::TooManyWaiters("this instance has too many hold streams");
    let waits = patience != Some(Duration::ZERO);
    let stream = permit(&app, &call, &claim, Kind::Stream)?;
    let waiter = waits.then(|| permit(&app, &call, &claim, Kind::Waiter)).transpose()?;
    let claim = counted(&app, &call.caller, claim).await?;
    let room = app.hold_streams.clone().try_acquire_owned().map_err(|_| full)?;
    let mut record = Record::of(&app, &call, Counted::Acquire, "hold");
    record.holder.owner = claim.owner.clone();
    let _answering = app.locks.answering(&claim);
    match app.locks.hold(HoldWish { claim, patience, linger, timed_out }).await {
        Ok(HoldStart::Held(status)) => {
            record.end("held");
            Err(ApiError::held(&status, Duration::ZERO))
        }
        Ok(HoldStart::Lost(number)) => {
            record.end("lost");
            Err(names_no_lease(&app, &call, number))
        }
        Ok(HoldStart::Hold(hold)) => {
            let waiter = waiter.map(|permit| (permit, app.metrics.in_line()));
            let open = (app.metrics.hold_stream(), room, stream);
            let stream = Stream { hold, app, call, form, waiter, lease: None, _open: open };
            let events = Body::from_stream(unfold(stream, Stream::next));
            let mut answer = streamed(form.media_type(), events);
            // Not chunked: PHP's fopen would wait for 8 KiB of chunks.
            *answer.version_mut() = Version::HTTP_10;
            Ok(answer)
        }
        Err(error) => Err(record.failed(error)),
    }
}

/// A hold as a response body; it ends when the client disconnects.
struct Stream {
    hold: Box<Hold>,
    app: Arc<App>,
    call: KeyCall,
    form: Form,
    waiter: Option<(Option<Permit>, Unanswered)>,
    /// The lease, once it is granted.
    lease: Option<Lease>,
    _open: (Counting, OwnedSemaphorePermit, Option<Permit>),
}

impl Stream {
    async fn next(mut self) -> Option<(Result<Bytes, Infallible>, Self)> {
        let key = &self.call.key;
        let event = tokio::select! {
            biased;
            () = self.app.keyring.revoked(&self.call.caller, RIGHT, key.as_str()) => {
                self.hold.revoke()
            }
            event = self.hold.next() => event,
        }?;
        self.count(&event);
        self.note(&event);
        Some((Ok(self.form.write(&event)), self))
    }

    /// Counts the end of the wait.
    fn count(&mut self, event: &HoldEvent) {
        if let HoldEvent::Waiting(_) = event {
            return;
        }
        if let Some((_, in_line)) = self.waiter.take() {
            in_line.answered();
        }
        if let HoldEvent::Acquired(grant) = event
            && !grant.waited.is_zero()
        {
            self.app.metrics.waited(grant.waited.as_secs_f64());
        }
    }

    /// Logs what happened to the lease; heartbeats are not logged.
    fn note(&mut self, event: &HoldEvent) {
        if let HoldEvent::Acquired(grant) = event {
            self.lease = Some(grant.lease.clone());
        }
        let mut record = Record::of(&self.app, &self.call, Counted::Acquire, "hold");
        if let Some(lease) = &self.lease {
            record.holder.owner = lease.owner.clone();
            record.lease(lease);
        }
        match event {
            HoldEvent::Waiting(_) | HoldEvent::Alive(_) => (),
            HoldEvent::Acquired(_) => record.end("granted"),
            HoldEvent::Lost(why) => {
                record.why = Some(*why);
                record.end("lost");
            }
            HoldEvent::TimedOut => record.end("timed_out"),
            HoldEvent::Draining => record.end("drained"),
            HoldEvent::Cancelled => record.end("cancelled"),
            HoldEvent::Superseded => record.end("superseded"),
            HoldEvent::Mine(_) => record.end("held"),
            HoldEvent::Failed(error) => {
                record.end("error");
                failures::note(error, Some(&self.call.key), &self.call.id);
            }
        }
    }
}
