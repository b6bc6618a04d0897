//! Connections: accepted up to a limit, served, closed gracefully.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::server::graceful::GracefulShutdown;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::either::Either;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::api::Api;
use crate::config::Limits;
use crate::metrics::Metrics;
use crate::server::house::{Full, Guest, Guests, HallPlace, Membership};
use crate::server::http1::Http1;
use crate::server::listener::Listener;
use crate::server::socket::Socket;
use crate::server::tls::Certificate;
use crate::server::turns::Turns;
use crate::server::visit::Visit;

/// The pause between attempts to accept while descriptors are exhausted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The interval at which a connection in the hall tries to get a place.
const LOOK_FOR_PLACE: Duration = Duration::from_millis(20);

/// The tries between two requests to an idle connection to leave, which has gone by then.
const ASK_TO_LEAVE: u32 = 50;

/// Accepts the connections of one listener and serves them.
pub(super) struct Acceptor {
    api: Api,
    tls: Option<Arc<Certificate>>,
    http1: Arc<Http1>,
    /// The time limit of a handshake.
    head_time: Duration,
    house: Arc<Guests>,
    graceful: GracefulShutdown,
    closing: CancellationToken,
    tasks: TaskTracker,
    metrics: Arc<Metrics>,
}

impl Acceptor {
    /// Serves `api` within `limits`.
    pub(super) fn new(
        api: Api,
        limits: &Limits,
        house: Arc<Guests>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let (tasks, closing) = (TaskTracker::new(), CancellationToken::new());
        Self {
            api,
            tls: None,
            http1: Arc::new(Http1::new(limits)),
            head_time: limits.head_time.get(),
            house,
            graceful: GracefulShutdown::new(),
            closing,
            tasks,
            metrics,
        }
    }

    /// The same over TLS, if there is a certificate.
    pub(super) fn with_tls(self, tls: Option<Arc<Certificate>>) -> Self {
        Self { tls, ..self }
    }

    /// Accepts connections while it is polled. If the hall is full too, new clients wait in the
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

    /// Gives a connection a place in the house or in the hall, and serves it.
    async fn receive(&self, socket: Socket, peer: IpAddr) {
        let guest = Guest::new(peer, Turns::new());
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
        let (entered, entry) = match place {
            Admission::House(_) => (None, None),
            Admission::Hall(_) => {
                let (entered, entry) = watch::channel(false);
                (Some(entered), Some(entry))
            }
        };
        let visit = Visit { api: self.api.clone(), guest: guest.clone(), entry };
        // In a box of its own, because a task's future has room for what it is made of twice.
        let served = Box::pin(self.serve(socket, visit));
        let (house, connected) = (self.house.clone(), self.metrics.connected());
        self.tasks.spawn(async move {
            let stay = async {
                let _membership = match place {
                    Admission::House(membership) => membership,
                    Admission::Hall(waiting) => find_place(&house, &guest, waiting).await,
                };
                if let Some(entered) = &entered {
                    // An error means that the connection has ended.
                    let _ = entered.send(true);
                }
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

    /// Serves a connection, after the handshake of TLS.
    fn serve(
        &self,
        socket: Socket,
        visit: Visit,
    ) -> impl Future<Output = ()> + Send + 'static + use<> {
        let (tls, head_time, closing) = (self.tls.clone(), self.head_time, self.closing.clone());
        let (http1, graceful) = (self.http1.clone(), self.graceful.watcher());
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
                        Ok(Err(error)) => return tls.notice(visit.guest.peer(), &error),
                        Err(_) => return,
                    }
                }
            };
            http1.serve(transport, visit, graceful).await;
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
