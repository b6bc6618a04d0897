//! A connection with HTTP/1.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, HttpBody};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue};
use hyper::server::conn::http1;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::Watcher;

use crate::api::Api;
use crate::config::Limits;
use crate::server::guest::Guest;
use crate::server::head::{has_one_host, has_one_length};
use crate::server::timed::Timed;
use crate::server::tls::Transport;

/// Health checks, which are answered in the hall too.
const HEALTH: [&str; 2] = ["/healthz", "/readyz"];

pub(super) struct Http1 {
    http: http1::Builder,
    head_time: Duration,
}

impl Http1 {
    pub(super) fn new(limits: &Limits) -> Self {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            // hyper counts from the end of the previous answer, so this is the idle time.
            .header_read_timeout(limits.idle_time.get())
            .max_buf_size(limits.head_bytes);
        Self { http, head_time: limits.head_time.get() }
    }

    /// Serves a connection to its end. Until it has a place, it gets answers to health checks only.
    pub(super) async fn serve(
        self: Arc<Self>,
        transport: Transport,
        guest: Arc<Guest>,
        api: Api,
        graceful: Watcher,
    ) {
        let io = TokioIo::new(Timed::new(transport, guest.clone(), self.head_time));
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            let (under_way, faulty) = guest.begin();
            let clear = has_one_host(&request) && has_one_length(request.headers());
            let (api, guest) = (api.clone(), guest.clone());
            // A connection keeps the place of a request's future while it is idle.
            Box::pin(async move {
                if faulty || !clear {
                    return Ok::<_, Infallible>(malformed());
                }
                if !HEALTH.contains(&request.uri().path()) {
                    guest.is_seated().await;
                }
                let answer = api.answer(request.map(Body::new), guest.peer()).await;
                Ok(match answer.body().size_hint().exact() {
                    Some(_) => answer,
                    // A stream is under way until it ends.
                    None => answer.map(|body| {
                        Body::new(body.map_frame(move |frame| {
                            let _ = &under_way;
                            frame
                        }))
                    }),
                })
            })
        });
        let connection = graceful.watch(self.http.serve_connection(io, service));
        if let Err(error) = connection.await {
            tracing::debug!(%error, "connection ended early");
        }
    }
}

/// The answer to a malformed request, as hyper's parser gives it.
fn malformed() -> Response<Body> {
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = StatusCode::BAD_REQUEST;
    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    answer
}
