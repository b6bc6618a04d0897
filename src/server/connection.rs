//! Connections: accepted up to a limit, served, closed gracefully.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::server::graceful::GracefulShutdown;
use tokio::time::{sleep, timeout};
use tokio_util::either::Either;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::api::Api;
use crate::config::Limits;
use crate::metrics::Metrics;
use crate::server::guest::Guest;
use crate::server::house::House;
use crate::server::http1::Http1;
use crate::server::listener::Listener;
use crate::server::socket::Socket;
use crate::server::tls::Certificate;

/// The pause between attempts to accept while descriptors are exhausted.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// Accepts the connections of one listener and serves them.
pub(super) struct Acceptor {
    api: Api,
    tls: Option<Arc<Certificate>>,
    http1: Arc<Http1>,
    /// The time limit of a handshake.
    head_time: Duration,
    house: Arc<House>,
    graceful: GracefulShutdown,
    closing: CancellationToken,
    tasks: TaskTracker,
    metrics: Arc<Metrics>,
}

impl Acceptor {
    pub(super) fn new(api: Api, limits: &Limits, house: Arc<House>, metrics: Arc<Metrics>) -> Self {
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

    /// Receives a connection in the house or in the hall, and serves it.
    async fn receive(&self, socket: Socket, peer: IpAddr) {
        let Some(stay) = self.house.receive(peer).await else { return };
        // In a box of its own, because a task's future has room for what it is made of twice.
        let served = Box::pin(self.serve(socket, stay.guest.clone()));
        let connected = self.metrics.connected();
        self.tasks.spawn(async move {
            tokio::select! {
                () = served => (),
                () = stay.ends() => (),
            }
            drop(connected);
        });
    }

    /// Serves a connection, after the handshake of TLS.
    fn serve(
        &self,
        socket: Socket,
        guest: Arc<Guest>,
    ) -> impl Future<Output = ()> + Send + 'static + use<> {
        let (tls, head_time, closing) = (self.tls.clone(), self.head_time, self.closing.clone());
        let (http1, api) = (self.http1.clone(), self.api.clone());
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
                        Ok(Err(error)) => return tls.notice(guest.peer(), &error),
                        Err(_) => return,
                    }
                }
            };
            http1.serve(transport, guest, api, graceful).await;
        }
    }
}
