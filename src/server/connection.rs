//! Connections: accepted up to a limit, served, closed gracefully.

use std::future::{Future, poll_fn};
use std::io;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use axum::body::{Body, HttpBody};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use hyper::header::{CONNECTION, HOST, HeaderValue};
use hyper::server::conn::http1;
use hyper::{Request, Response, StatusCode, Version};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::task::TaskTracker;

use crate::api::Api;
use crate::config::Limits;
use crate::metrics::Metrics;
use crate::server::house::{Full, Guest, Guests, HallPlace, Membership};
use crate::server::timed::TimedHead;
use crate::server::turns::{ServiceTurn, Turns};

/// The silence of a client after which keepalive probes begin.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(10);
/// The interval of the probes.
const KEEPALIVE_EVERY: Duration = Duration::from_secs(5);
/// The unanswered probes allowed: a vanished peer is noticed within 20 s.
const KEEPALIVE_TRIES: u32 = 2;
/// The time that sent data may stay unacknowledged.
const UNACKNOWLEDGED: Duration = Duration::from_secs(20);

/// The pause between attempts to accept while descriptors are exhausted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The interval at which a connection in the hall tries to get a place.
const LOOK_FOR_PLACE: Duration = Duration::from_millis(20);

/// The tries between two requests to an idle connection to leave, which has gone by then.
const ASK_TO_LEAVE: u32 = 50;

/// Health checks, which are answered in the hall too.
const HEALTH: [&str; 2] = ["/healthz", "/readyz"];

/// Accepts connections and serves them.
pub(super) struct Acceptor {
    api: Api,
    http: http1::Builder,
    head_time: Duration,
    house: Arc<Guests>,
    graceful: GracefulShutdown,
    tasks: TaskTracker,
    metrics: Arc<Metrics>,
}

/// A connection that was turned away while its request waited for a place.
#[derive(Debug, thiserror::Error)]
#[error("no room for one more connection")]
struct TurnedAway;

impl Acceptor {
    /// Serves `api` within `limits`.
    pub(super) fn new(
        api: Api,
        limits: &Limits,
        house: Arc<Guests>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            // hyper counts from the end of the previous answer, so this is the idle time.
            .header_read_timeout(limits.idle_time.get())
            .max_buf_size(limits.head_bytes);
        Self {
            api,
            http,
            head_time: limits.head_time.get(),
            house,
            graceful: GracefulShutdown::new(),
            tasks: TaskTracker::new(),
            metrics,
        }
    }

    /// Accepts connections while it is polled. If the hall is full too, new clients wait in the
    /// system's queue.
    pub(super) async fn accept(&mut self, listener: &TcpListener) {
        loop {
            match listener.accept().await {
                Ok((stream, address)) => self.receive(stream, address.ip()).await,
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
        let finished = async {
            self.graceful.shutdown().await;
            self.tasks.wait().await;
        };
        let all = tokio::time::timeout(patience, finished).await.is_ok();
        if !all {
            tracing::warn!("shutdown time is over; remaining connections cut");
        }
        all
    }

    /// Gives a connection a place in the house or in the hall, and serves it.
    async fn receive(&self, stream: TcpStream, peer: IpAddr) {
        let turns = Turns::new();
        let guest = Guest::new(peer, turns.clone());
        let place = match self.house.enter(&guest) {
            Ok(membership) => Admission::House(membership),
            Err(full) => {
                self.house.notice(peer, full);
                if full == Full::Address && !peer.to_canonical().is_loopback() {
                    return;
                }
                Admission::Hall(self.wait_for_hall(&guest).await)
            }
        };
        let (entered, entry) = watch::channel(matches!(place, Admission::House(_)));
        let served = self.serve(stream, peer, turns, entry);
        let (house, connected) = (self.house.clone(), self.metrics.connected());
        self.tasks.spawn(async move {
            let stay = async {
                let _membership = match place {
                    Admission::House(membership) => membership,
                    Admission::Hall(waiting) => find_place(&house, &guest, waiting).await,
                };
                // An error means that the connection has ended.
                let _ = entered.send(true);
                std::future::pending::<()>().await;
            };
            tokio::select! {
                () = served => (),
                () = stay => (),
                () = guest.has_to_leave() => (),
            }
            drop(connected);
        });
    }

    async fn wait_for_hall(&self, guest: &Arc<Guest>) -> HallPlace {
        loop {
            match self.house.wait(guest) {
                Some(waiting) => return waiting,
                None => sleep(LOOK_FOR_PLACE).await,
            }
        }
    }

    fn serve(
        &self,
        stream: TcpStream,
        peer: IpAddr,
        turns: Arc<Turns>,
        entry: watch::Receiver<bool>,
    ) -> impl Future<Output = ()> + Send + 'static {
        if let Err(error) = set_options(&stream) {
            tracing::debug!(%error, "cannot set socket options; no keepalive");
        }
        let io = TokioIo::new(TimedHead::new(stream, turns.clone(), self.head_time));
        let (api, moments) = (self.api.clone(), turns.clone());
        let service = hyper::service::service_fn(move |request: Request<Incoming>| {
            let turn = ServiceTurn::begin(&turns, &request);
            let (api, mut entry) = (api.clone(), entry.clone());
            let is_malformed = turns.had_fragment() || !has_one_host(&request);
            async move {
                if is_malformed {
                    return Ok(malformed());
                }
                if !HEALTH.contains(&request.uri().path()) {
                    entry.wait_for(|entered| *entered).await.map_err(|_| TurnedAway)?;
                }
                let mut request = request.map(|body| Body::new(turn.reading(body)));
                request.extensions_mut().insert(turn.in_line());
                let answer = turn.unless_in_doubt(api.answer(request, peer)).await;
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
            }
        });
        let connection = self.graceful.watch(self.http.serve_connection(io, service));
        async move {
            let mut connection = pin!(connection);
            let ended = poll_fn(|context| {
                moments.moments.fetch_add(1, Ordering::Relaxed);
                connection.as_mut().poll(context)
            });
            if let Err(error) = ended.await {
                tracing::debug!(%error, "connection ended early");
            }
        }
    }
}

/// The place of a new connection.
enum Admission {
    House(Membership),
    Hall(HallPlace),
}

/// Waits in the hall for a place in the house.
async fn find_place(house: &Arc<Guests>, guest: &Arc<Guest>, waiting: HallPlace) -> Membership {
    let mut looks = 0;
    loop {
        let full = match house.enter(guest) {
            Ok(membership) => {
                drop(waiting);
                return membership;
            }
            Err(full) => full,
        };
        if looks % ASK_TO_LEAVE == 0 {
            house.make_room(guest, full);
        }
        looks += 1;
        sleep(LOOK_FOR_PLACE).await;
    }
}

/// Returns whether a request has exactly one host, or none in HTTP/1.0.
fn has_one_host(request: &Request<Incoming>) -> bool {
    match request.headers().get_all(HOST).iter().count() {
        0 => request.version() == Version::HTTP_10,
        hosts => hosts == 1,
    }
}

/// The answer to a malformed request, as hyper's parser gives it.
fn malformed() -> Response<Body> {
    let mut answer = Response::new(Body::empty());
    *answer.status_mut() = StatusCode::BAD_REQUEST;
    answer.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    answer
}

fn set_options(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let keepalive = TcpKeepalive::new()
        .with_time(KEEPALIVE_AFTER)
        .with_interval(KEEPALIVE_EVERY)
        .with_retries(KEEPALIVE_TRIES);
    let socket = SockRef::from(stream);
    socket.set_tcp_keepalive(&keepalive)?;
    socket.set_tcp_user_timeout(Some(UNACKNOWLEDGED))
}
