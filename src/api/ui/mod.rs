//! The dashboard `/ui`: the page for everybody, its data for callers that may `read`.
//!
//! The page lists locks and frees them by the public routes. Beside these it reads the state of the
//! instance and the last ends of leases, as a stream or by polling. A stream only looks: it takes no
//! part in a verb, and has its next line made when its client has read the last.

mod body;
mod pulse;

use std::convert::Infallible;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::Uri;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use futures_util::stream::unfold;
use serde_json::{Value, json};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Instant, sleep};

use crate::api::App;
use crate::api::edge::{SERVER_SENT, streamed};
use crate::api::error::ApiError;
use crate::api::extract::Reader;
use crate::api::options::{find, query};
use crate::api::page::Page;
use crate::api::quotas::Kind;
use crate::api::ui::body::report;
use crate::auth::Caller;
use crate::lock::error::LockError;
use crate::lock::permit::Permit;
use crate::metrics::Counting;

pub use crate::api::ui::pulse::Pulse;

/// The page; its parts are files of kinds that editors know.
static PAGE: LazyLock<Page> = LazyLock::new(|| {
    Page::new(concat!(
        include_str!("head.html"),
        "<style>\n",
        include_str!("style.css"),
        "</style>\n",
        include_str!("body.html"),
        "<script>\n",
        include_str!("script.js"),
        "</script>\n</html>\n"
    ))
});

/// The pause between two events.
const PAUSE: Duration = Duration::from_secs(1);

/// The longest stream: the page begins a new one, for which its API key is checked again.
const LONGEST_STREAM: Duration = Duration::from_secs(600);

/// The routes of the dashboard.
pub(super) fn routes() -> Router<Arc<App>> {
    Router::new()
        .route("/ui", Page::route(&PAGE))
        .route("/ui/access", get(access))
        .route("/ui/status", get(status))
        .route("/ui/events", get(events))
}

/// `GET /ui/access`: whether an API key is needed, so that the page asks for one before it is
/// refused.
async fn access(State(app): State<Arc<App>>, uri: Uri) -> Result<Json<Value>, ApiError> {
    query(uri.query(), &[])?;
    Ok(Json(json!({ "api_keys": !app.keyring.is_open() })))
}

/// `GET /ui/status`: the state of the instance, and the ends `after` a number.
async fn status(
    State(app): State<Arc<App>>,
    Reader(caller): Reader,
    uri: Uri,
) -> Result<Response, ApiError> {
    let query = query(uri.query(), &["after"])?;
    let after = find(&query, "after").and_then(Value::as_str).unwrap_or("0");
    let after = after.parse().map_err(|_| ApiError::invalid("after", "`after` is a number"))?;
    let look = app.pulse.look(&app.locks).await;
    let (report, _) = report(&app, &caller, look, after);
    Ok(([(CONTENT_TYPE, "application/json")], report).into_response())
}

/// `GET /ui/events`: the same as a stream of server-sent events.
async fn events(
    State(app): State<Arc<App>>,
    Reader(caller): Reader,
    request: Request,
) -> Result<Response, ApiError> {
    query(request.uri().query(), &[])?;
    let permit = app.quotas.permit(&caller, Kind::Dashboard)?;
    let full = || LockError::TooManyWaiters("this instance has too many dashboard streams");
    let room = app.pulse.streams.clone().try_acquire_owned().map_err(|_| full())?;
    let places = (permit, room, app.metrics.ui_stream());
    let stream = Some(Events { app, caller, began: Instant::now(), told: None, _places: places });
    Ok(streamed(SERVER_SENT, Body::from_stream(unfold(stream, Events::next))))
}

/// A dashboard's stream.
struct Events {
    app: Arc<App>,
    caller: Caller,
    began: Instant,
    /// The number of the last end, once an event was told.
    told: Option<u64>,
    _places: (Option<Permit>, OwnedSemaphorePermit, Counting),
}

impl Events {
    /// The next event; the last one is `draining`. Ends without one if the rights of the caller have
    /// changed: the page begins a new stream with those it has then.
    async fn next(stream: Option<Self>) -> Option<(Result<Bytes, Infallible>, Option<Self>)> {
        let mut stream = stream?;
        let (app, caller) = (stream.app.clone(), stream.caller.clone());
        tokio::select! {
            biased;
            () = app.locks.drained() => {
                Some((Ok(Bytes::from_static(b"event: draining\ndata: {}\n\n")), None))
            }
            () = app.keyring.changed(&caller) => None,
            line = stream.look() => {
                let going_on = stream.began.elapsed() < LONGEST_STREAM;
                Some((Ok(line.into()), going_on.then_some(stream)))
            }
        }
    }

    /// Looks at once for the first event, and later after a pause.
    async fn look(&mut self) -> String {
        if self.told.is_some() {
            sleep(PAUSE).await;
        }
        let look = self.app.pulse.look(&self.app.locks).await;
        let after = self.told.unwrap_or_default();
        let (report, last_end) = report(&self.app, &self.caller, look, after);
        self.told = Some(last_end);
        format!("data: {report}\n\n")
    }
}
