//! Connections: accepted up to a limit, served with HTTP/1, closed gracefully.

use std::convert::Infallible;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, HttpBody};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use tokio::time::{sleep, timeout};
use tokio_util::either::Either;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::api::Api;
use crate::config::Limits;
use crate::metrics::Metrics;
use crate::server::admission::Admission;
use crate::server::connection_state::ConnectionState;
use crate::server::head::{has_one_host, has_one_length};
use crate::server::listener::Listener;
use crate::server::socket::Socket;
use crate::server::timed::Timed;
use crate::server::tls::Certificate;

/// Health checks, which are answered without a place too.
const HEALTH: [&str; 2] = ["/healthz", "/readyz"];

/// The pause between attempts to accept while descriptors are exhausted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Accepts the connections of one listener and serves them.
pub(super) struct Acceptor {
    api: Api,
    tls: Option<Arc<Certificate>>,
    http: http1::Builder,
    /// The time limit of a head, and of a handshake.
    head_time: Duration,
    admission: Arc<Admission>,
    graceful: GracefulShutdown,
    closing: CancellationToken,
    tasks: TaskTracker,
    metrics: Arc<Metrics>,
}

impl Acceptor {
    /// Serves `api`, over TLS if there is a certificate.
    pub(super) fn new(
        api: Api,
        limits: &Limits,
        admission: Arc<Admission>,
        metrics: Arc<Metrics>,
        tls: Option<Arc<Certificate>>,
    ) -> Self {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            // hyper counts from the end of the previous answer, so this is the idle time.
            .header_read_timeout(limits.idle_time.get())
            .max_buf_size(limits.head_bytes);
        Self {
            api,
            tls,
            http,
            head_time: limits.head_time.get(),
            admission,
            graceful: GracefulShutdown::new(),
            closing: CancellationToken::new(),
            tasks: TaskTracker::new(),
            metrics,
        }
    }

    /// Accepts connections while it is polled. If too many wait for a place, new clients wait in the
    /// system's queue.
    pub(super) async fn accept(&self, listener: &Listener) {
        loop {
            match listener.accept().await {
                Ok((socket, peer)) => self.receive(socket, peer).await,
                Err(error) => {
                    tracing::debug!(%error, "cannot accept a connection; retrying");
                    sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Answers requests under way, closes idle connections, and returns after `patience` in any
    /// case. Returns whether no connection was cut.
    pub(super) async fn finish(self, patience: Duration) -> bool {
        self.tasks.close();
        self.closing.cancel();
        let finished = async {
            self.graceful.shutdown().await;
            self.tasks.wait().await;
        };
        let all = timeout(patience, finished).await.is_ok();
        if !all {
            tracing::warn!("shutdown time is over; remaining connections cut");
        }
        all
    }

    /// Receives a connection, and serves it.
    async fn receive(&self, socket: Socket, peer: IpAddr) {
        let Some(admitted) = self.admission.receive(peer).await else { return };
        // In a box of its own, because a task's future has room for what it is made of twice.
        let served = Box::pin(self.serve(socket, admitted.connection.clone()));
        let connected = self.metrics.connected();
        self.tasks.spawn(async move {
            tokio::select! {
                () = served => (),
                () = admitted.ends() => (),
            }
            drop(connected);
        });
    }

    /// Serves a connection to its end, after the handshake of TLS.
    fn serve(
        &self,
        socket: Socket,
        state: Arc<ConnectionState>,
    ) -> impl Future<Output = ()> + Send + 'static + use<> {
        let tls = self.tls.clone();
        let head_time = self.head_time;
        let closing = self.closing.clone();
        let http = self.http.clone();
        let api = self.api.clone();
        let graceful = self.graceful.watcher();
        async move {
            let transport = match tls {
                None => Either::Left(socket),
                Some(tls) => {
                    let secured = tokio::select! {
                        secured = timeout(head_time, tls.secure(socket)) => secured,
                        () = closing.cancelled() => return,
                    };
                    match secured {
                        Ok(Ok(transport)) => transport,
                        Ok(Err(error)) => return tls.notice(state.peer, &error),
                        Err(_) => return,
                    }
                }
            };
            let io = TokioIo::new(Timed::new(transport, state.clone(), head_time));
            let service = service_fn(move |request| answer(api.clone(), state.clone(), request));
            let connection = graceful.watch(http.serve_connection(io, service));
            if let Err(error) = connection.await {
                tracing::debug!(%error, "connection ended early");
            }
        }
    }
}

/// Answers a request, which is under way from this call on. Without a place it gets an answer if it
/// is a health check, else it waits.
fn answer(
    api: Api,
    state: Arc<ConnectionState>,
    request: Request<Incoming>,
) -> impl Future<Output = Result<Response<Body>, Infallible>> + Send {
    let (under_way, has_fault) = state.begin();
    let is_clear = has_one_host(&request) && has_one_length(request.headers());
    // Boxed, because a connection keeps the room for this future while it is idle.
    Box::pin(async move {
        if has_fault || !is_clear {
            return Ok(malformed());
        }
        if !HEALTH.contains(&request.uri().path()) {
            state.until_placed().await;
        }
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(state.timed_out.clone());
        let answer = api.answer(request, state.peer).await;
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
}

/// The answer to a malformed request, as hyper's parser gives it.
fn malformed() -> Response<Body> {
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = StatusCode::BAD_REQUEST;
    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    answer
}
