//! A connection with HTTP/1.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::{Body, HttpBody};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HOST, HeaderMap, HeaderValue, TRANSFER_ENCODING};
use hyper::server::conn::http1;
use hyper::{Request, Response, Version};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::Watcher;

use crate::config::Limits;
use crate::server::timed::TimedHead;
use crate::server::tls::Transport;
use crate::server::turns::ServiceTurn;
use crate::server::visit;
use crate::server::visit::{TurnedAway, Visit};

/// HTTP/1 with its limits.
pub(super) struct Http1 {
    http: http1::Builder,
    head_time: Duration,
}

impl Http1 {
    /// HTTP/1 within `limits`.
    pub(super) fn new(limits: &Limits) -> Self {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            // hyper counts from the end of the previous answer, so this is the idle time.
            .header_read_timeout(limits.idle_time.get())
            .max_buf_size(limits.head_bytes);
        Self { http, head_time: limits.head_time.get() }
    }

    /// Serves a connection to its end.
    pub(super) async fn serve(
        self: Arc<Self>,
        transport: Transport,
        visit: Visit,
        graceful: Watcher,
    ) {
        let turns = visit.guest.turns().clone();
        let io = TokioIo::new(TimedHead::new(transport, turns.clone(), self.head_time));
        let moments = turns.clone();
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            let turn = ServiceTurn::begin(&turns, &request);
            let clear = has_one_host(&request) && has_one_length(request.headers());
            let is_malformed = turns.was_faulty() || !clear;
            let mut visit = visit.clone();
            // A connection keeps the place of a request's future while it is idle.
            Box::pin(async move {
                if is_malformed {
                    return Ok(malformed());
                }
                visit.entered(request.uri().path()).await?;
                let mut request = request.map(|body| Body::new(turn.reading(body)));
                request.extensions_mut().insert(turn.in_line());
                let answer = turn.unless_in_doubt(visit.answer(request)).await;
                Ok::<_, TurnedAway>(match answer.body().size_hint().exact() {
                    Some(_) => answer,
                    // A stream is under way until it ends.
                    None => answer.map(|body| {
                        Body::new(body.map_frame(move |frame| {
                            let _ = &turn;
                            frame
                        }))
                    }),
                })
            })
        });
        let mut connection = pin!(graceful.watch(self.http.serve_connection(io, service)));
        let ended = poll_fn(|context| {
            moments.moments.fetch_add(1, Ordering::Relaxed);
            connection.as_mut().poll(context)
        });
        if let Err(error) = ended.await {
            tracing::debug!(%error, "connection ended early");
        }
    }
}

/// Returns whether a request has exactly one host, or none in HTTP/1.0.
fn has_one_host(request: &Request<Incoming>) -> bool {
    match request.headers().get_all(HOST).iter().count() {
        0 => request.version() == Version::HTTP_10,
        hosts => hosts == 1,
    }
}

/// Returns whether all readers of a head agree on the end of its body: if it has an encoding, that
/// is `chunked` alone.
fn has_one_length(headers: &HeaderMap) -> bool {
    let mut encodings = headers.get_all(TRANSFER_ENCODING).iter();
    let chunked =
        encodings.next().is_none_or(|one| one.as_bytes().eq_ignore_ascii_case(b"chunked"));
    chunked && encodings.next().is_none()
}

/// The answer to a malformed request, as hyper's parser gives it.
fn malformed() -> Response<Body> {
    let mut answer = visit::malformed();
    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    answer
}
