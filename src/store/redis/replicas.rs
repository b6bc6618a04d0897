//! Confirms that grants have reached replicas: a group commit over its own connection.
//!
//! `WAIT` blocks its connection, so it cannot use the shared ones. One task for each node takes all
//! waiting grants, writes one small key after them and waits until replicas have it: replication
//! keeps the order, so they have the grants too. `grants.rs` decides what becomes of other grants.
//!
//! The connection counts only for grants requested after it was made. So it is kept alive between
//! grants, and made again as soon as it is lost.

use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, ConnectionInfo, PushInfo, PushKind, RedisError};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::timeout;

use crate::lock::time::millis_down;
use crate::store::redis::RedisSettings;
use crate::store::redis::connect::{Connector, RETRIES};
use crate::store::redis::link::{HEARTBEAT, every, ping};

/// The most waiting grants of a node; more are refused, which their callers see as 503.
const MOST: usize = 10_000;

/// Writes a key.
const MARK: &str = include_str!("scripts/mark.lua");

/// The TTL of the key that is written after the grants.
const MARK_MS: u64 = 60_000;

/// The handle to the task that asks a node's replicas.
pub(super) struct Replicas {
    asks: mpsc::Sender<Ask>,
    contacted: watch::Receiver<Result<(), String>>,
    patience: Duration,
}

struct Ask {
    /// The key to write after it, in its slot.
    mark: String,
    /// The moment of the grant's request: a later connection may lead to a restarted server that
    /// does not know the grant.
    since: Instant,
    tell: oneshot::Sender<Result<(), String>>,
}

/// The task that asks the replicas.
struct Asking {
    connector: Connector,
    pushes: mpsc::UnboundedReceiver<PushInfo>,
    least: u32,
    /// The time limit for the replicas.
    patience: Duration,
    contacted: watch::Sender<Result<(), String>>,
    asks: mpsc::Receiver<Ask>,
}

impl Replicas {
    /// Makes the handle and its task.
    pub(super) fn new(
        info: &ConnectionInfo,
        settings: &RedisSettings,
    ) -> Result<(Self, impl Future<Output = ()> + use<>), RedisError> {
        let (pushed, pushes) = mpsc::unbounded_channel();
        let config = AsyncConnectionConfig::new().set_push_sender(pushed);
        let connector = Connector::new(info, &settings.tls, settings.connect_timeout, config)?;
        let least = settings.min_replicas;
        let patience = patience(settings.command_timeout);
        let (sender, asks) = mpsc::channel(MOST);
        let (contacted, known) = watch::channel(Err("not connected yet".to_owned()));
        let asking = Asking { connector, pushes, least, patience, contacted, asks };
        Ok((Self { asks: sender, contacted: known, patience }, asking.serve()))
    }

    /// `Ok` once the task was connected; the error says why it was not.
    pub(super) fn contacted(&self) -> Result<(), String> {
        self.contacted.borrow().clone()
    }

    /// Waits until the grants since then have reached enough replicas.
    pub(super) async fn confirm(&self, mark: String, since: Instant) -> Result<(), String> {
        let (tell, told) = oneshot::channel();
        if self.asks.try_send(Ask { mark, since, tell }).is_err() {
            return Err("too many grants wait for the replicas".to_owned());
        }
        // It may have to wait for the batch before it.
        match timeout(self.patience * 3, told).await {
            Ok(Ok(answer)) => answer,
            _ => Err("the replicas could not be asked".to_owned()),
        }
    }
}

impl Asking {
    async fn serve(mut self) {
        let mut retries = RETRIES;
        loop {
            let made = match self.connect().await {
                Ok(connection) => connection,
                Err(reason) => {
                    self.refuse(&reason);
                    self.missed(reason);
                    retries.pause().await;
                    continue;
                }
            };
            retries = RETRIES;
            let _ = self.contacted.send_replace(Ok(()));
            if self.serve_over(made, Instant::now()).await.is_none() {
                return;
            }
        }
    }

    async fn connect(&mut self) -> Result<MultiplexedConnection, String> {
        // Older pushes belong to the previous connection.
        while self.pushes.try_recv().is_ok() {}
        let mut connection = self.connector.connect().await?;
        // Waits for nobody, and shows that the user has the right to wait.
        let mut wait = redis::cmd("WAIT");
        let asked = wait.arg(0).arg(1).query_async::<u32>(&mut connection);
        let told = timeout(self.patience, asked).await.map_err(|_| "no answer in time")?;
        told.map_err(|error| format!("the replicas cannot be asked: {error}"))?;
        Ok(connection)
    }

    /// Notes why there is no connection, until there was one, and logs each reason once.
    fn missed(&self, reason: String) {
        let new = Err(reason);
        self.contacted.send_if_modified(|known| {
            let changes = known.is_err() && *known != new;
            if changes {
                tracing::warn!(reason = new.as_ref().err(), "no replica can be asked; retrying");
                *known = new;
            }
            changes
        });
    }

    /// Refuses all waiting grants.
    fn refuse(&mut self, reason: &str) {
        while let Ok(ask) = self.asks.try_recv() {
            let _ = ask.tell.send(Err(reason.to_owned()));
        }
    }

    /// Serves until the connection is lost; `None` if the handle is gone.
    async fn serve_over(&mut self, mut to: MultiplexedConnection, made: Instant) -> Option<()> {
        let mut asks = Vec::new();
        let mut heartbeats = every(HEARTBEAT);
        loop {
            tokio::select! {
                received = self.asks.recv_many(&mut asks, MOST) => {
                    if received == 0 {
                        return None;
                    }
                    if self.answer(&mut to, made, asks.drain(..)).await.is_err() {
                        return Some(());
                    }
                }
                push = self.pushes.recv() => {
                    if push.is_none_or(|push| push.kind == PushKind::Disconnection) {
                        return Some(());
                    }
                }
                _ = heartbeats.tick() => {
                    if ping(&mut to).await.is_err() {
                        return Some(());
                    }
                }
            }
        }
    }

    /// Answers these grants; an error if the connection is unusable.
    async fn answer(
        &self,
        to: &mut MultiplexedConnection,
        made: Instant,
        asks: impl Iterator<Item = Ask>,
    ) -> Result<(), String> {
        let (asks, late): (Vec<_>, Vec<_>) =
            asks.partition(|ask: &Ask| ask.since > made && !ask.tell.is_closed());
        for ask in late {
            let _ = ask.tell.send(Err("the connection was made only now".to_owned()));
        }
        let Some(last) = asks.last() else { return Ok(()) };
        let counted = self.count(to, &last.mark).await;
        let answer = match &counted {
            Ok(reached) if *reached >= self.least => Ok(()),
            Ok(reached) => Err(format!("{reached} of {} replicas have the grant", self.least)),
            Err(reason) => Err(reason.clone()),
        };
        for ask in asks {
            let _ = ask.tell.send(answer.clone());
        }
        counted.map(|_| ())
    }

    /// Writes a key after all earlier writes, and counts the replicas that have it.
    async fn count(&self, to: &mut MultiplexedConnection, mark: &str) -> Result<u32, String> {
        let mut both = redis::pipe();
        both.cmd("EVAL").arg(MARK).arg(1).arg(mark).arg(MARK_MS).ignore();
        both.cmd("WAIT").arg(self.least).arg(millis_down(self.patience));
        let counted = async { both.query_async::<(u32,)>(to).await };
        match timeout(self.patience * 2, counted).await {
            Ok(counted) => counted
                .map(|(reached,)| reached)
                .map_err(|error: RedisError| format!("the replicas could not be asked: {error}")),
            Err(_) => Err("the master did not answer in time".to_owned()),
        }
    }
}

/// The replicas' part of a call's time limit. `WAIT` takes whole milliseconds, and 0 means no
/// limit.
fn patience(command_timeout: Duration) -> Duration {
    (command_timeout / 2).max(Duration::from_millis(1))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::patience;
    use crate::lock::time::millis_down;

    #[test]
    fn replicas_are_never_waited_for_without_an_end() {
        for timeout in [1, 2, 3, 1_000, 10_000].map(Duration::from_millis) {
            assert!(millis_down(patience(timeout)) >= 1, "{timeout:?}");
        }
        assert_eq!(patience(Duration::from_secs(1)), Duration::from_millis(500));
    }
}
