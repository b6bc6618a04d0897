//! The limit of connections: which of them have a place, and which is closed when there is none.
//!
//! Places are limited in all and per address. Beyond that a new connection waits: it gets answers to
//! health checks, and a place once another connection is closed. For it an idle connection is
//! closed, preferably of the address with the most connections. If too many wait, the one that has
//! waited longest is closed.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use crate::auth::TrustedProxies;
use crate::server::connection_state::ConnectionState;

/// The most connections that wait for a place, and health checks.
pub(super) const MOST_WAITING: usize = 64;

/// The silence after which a connection may be closed: a new one is about to send.
const IDLE_AFTER: Duration = Duration::from_secs(1);

/// The time that a connection may wait where too many do.
const PATIENCE: Duration = Duration::from_secs(1);

/// The interval of looks for room where too many wait.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The pause between log lines about missing places.
const NOTICE_EVERY: Duration = Duration::from_secs(10);

/// All connections of a listener.
pub(super) struct Admission {
    room: usize,
    per_address: usize,
    proxies: TrustedProxies,
    places: Mutex<Places>,
}

#[derive(Default)]
struct Places {
    /// The connections with a place by their addresses in memory.
    placed: HashMap<usize, Arc<ConnectionState>>,
    /// The number of them from each network.
    networks: HashMap<IpAddr, usize>,
    waiting: VecDeque<Arc<ConnectionState>>,
    noticed: Option<Instant>,
}

/// A connection that has a place or waits for one, until dropped.
pub(super) struct Admitted {
    pub(super) connection: Arc<ConnectionState>,
    admission: Arc<Admission>,
}

impl Admission {
    /// A limit of `room` places, and `per_address` for each address that is not a trusted proxy.
    pub(super) fn new(room: usize, per_address: usize, proxies: TrustedProxies) -> Arc<Self> {
        Arc::new(Self { room, per_address, proxies, places: Mutex::default() })
    }

    /// Receives a connection, which has a place or waits for one; returns later if too many wait.
    /// `None` if its address has too many: only this machine's may wait, so that its health checks
    /// are answered.
    pub(super) async fn receive(self: &Arc<Self>, peer: IpAddr) -> Option<Admitted> {
        let connection = ConnectionState::new(peer);
        let is_crowded = self.with(|places| {
            let is_crowded = self.is_crowded(places, &connection);
            if is_crowded {
                places
                    .notice(&connection, "too many connections from one address; closing new ones");
            } else if !self.has_room(places, &connection) {
                let what = "no room for more connections; closing idle ones, others wait";
                places.notice(&connection, what);
            }
            is_crowded
        });
        if is_crowded && !connection.peer.is_loopback() {
            return None;
        }
        while !self.with(|places| self.enter(places, &connection)) {
            sleep(LOOK_EVERY).await;
        }
        Some(Admitted { admission: self.clone(), connection })
    }

    /// Gives a connection a place or lets it wait, if not too many do.
    fn enter(&self, places: &mut Places, connection: &Arc<ConnectionState>) -> bool {
        if self.has_room(places, connection) {
            places.give_place(connection);
            return true;
        }
        if places.waiting.len() >= MOST_WAITING {
            let Some(first) = places.waiting.pop_front_if(|first| first.came.elapsed() >= PATIENCE)
            else {
                return false;
            };
            first.close();
        }
        places.waiting.push_back(connection.clone());
        true
    }

    /// Returns whether there is a place for this connection.
    fn has_room(&self, places: &Places, connection: &ConnectionState) -> bool {
        places.placed.len() < self.room && !self.is_crowded(places, connection)
    }

    /// Returns whether the address of this connection has all that it may have.
    fn is_crowded(&self, places: &Places, connection: &ConnectionState) -> bool {
        places.neighbours(connection) >= self.per_address && !self.proxies.trust(connection.peer)
    }

    /// Closes an idle connection for one that waits.
    fn make_room(&self, connection: &ConnectionState) {
        self.with(|places| {
            if self.has_room(places, connection) {
                return;
            }
            let only_own = self.is_crowded(places, connection);
            let idle = places.placed.values().filter_map(|one| {
                let idle = one.idle().filter(|idle| *idle >= IDLE_AFTER)?;
                let fits = !only_own || one.network() == connection.network();
                (fits && one.has_place()).then(|| ((places.neighbours(one), idle), one))
            });
            if let Some((_, one)) = idle.max_by_key(|(rank, _)| *rank) {
                one.close_if_idle();
            }
        });
    }

    fn with<T>(&self, use_it: impl FnOnce(&mut Places) -> T) -> T {
        use_it(&mut self.places.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Places {
    /// The connections with a place from the network of this one.
    fn neighbours(&self, connection: &ConnectionState) -> usize {
        self.networks.get(&connection.network()).copied().unwrap_or_default()
    }

    /// Logs that there is no place, but not for each connection.
    fn notice(&mut self, connection: &ConnectionState, what: &'static str) {
        if self.noticed.is_none_or(|last| last.elapsed() >= NOTICE_EVERY) {
            self.noticed = Some(Instant::now());
            let connections = self.placed.len();
            tracing::warn!(connections, client.address = %connection.peer, "{what}");
        }
    }

    fn give_place(&mut self, connection: &Arc<ConnectionState>) {
        self.placed.insert(Arc::as_ptr(connection).addr(), connection.clone());
        *self.networks.entry(connection.network()).or_default() += 1;
        connection.give_place();
    }

    fn remove(&mut self, connection: &Arc<ConnectionState>) {
        self.waiting.retain(|one| !Arc::ptr_eq(one, connection));
        if self.placed.remove(&Arc::as_ptr(connection).addr()).is_none() {
            return;
        }
        if let Some(count) = self.networks.get_mut(&connection.network()) {
            *count -= 1;
            if *count == 0 {
                self.networks.remove(&connection.network());
            }
        }
    }
}

impl Admitted {
    /// Waits until the connection has to be closed. While it has no place, idle ones are closed.
    pub(super) async fn ends(&self) {
        let mut closing = pin!(self.connection.closing.notified());
        while !self.connection.has_place() {
            self.admission.make_room(&self.connection);
            if timeout(IDLE_AFTER, closing.as_mut()).await.is_ok() {
                return;
            }
        }
        closing.await;
    }
}

impl Drop for Admitted {
    fn drop(&mut self) {
        self.admission.with(|places| {
            places.remove(&self.connection);
            let fits = |one: &Arc<ConnectionState>| self.admission.has_room(places, one);
            if let Some(first) = places.waiting.iter().position(fits) {
                let first = places.waiting.remove(first);
                first.iter().for_each(|first| places.give_place(first));
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::time::Duration;

    use futures_util::FutureExt;
    use tokio::time::advance;

    use super::{Admission, Admitted, IDLE_AFTER, MOST_WAITING};
    use crate::auth::TrustedProxies;

    async fn receive(admission: &Arc<Admission>, address: &str) -> Option<Admitted> {
        admission.receive(address.parse().unwrap()).await
    }

    /// Whether the connection has to leave by now.
    fn has_to_leave(admitted: &Admitted) -> bool {
        admitted.ends().now_or_never().is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_has_so_many_connections_and_another_has_its_own() {
        let admission = Admission::new(10, 2, TrustedProxies::default());
        let mut places = Vec::new();
        for address in ["192.0.2.1", "::ffff:192.0.2.1", "2001:db8::1", "2001:db8::2"] {
            places.push(receive(&admission, address).await.unwrap());
        }
        for address in ["192.0.2.1", "2001:db8::3"] {
            assert!(receive(&admission, address).await.is_none());
        }
        places.push(receive(&admission, "192.0.2.2").await.unwrap());
        places.remove(0);
        places.push(receive(&admission, "192.0.2.1").await.unwrap());
        assert!(places.iter().all(|admitted| admitted.connection.has_place()));
    }

    #[tokio::test(start_paused = true)]
    async fn the_longest_idle_of_the_address_with_the_most_gives_way() {
        let admission = Admission::new(4, 10, TrustedProxies::default());
        let honest = receive(&admission, "192.0.2.1").await.unwrap();
        advance(IDLE_AFTER).await;
        let busy = receive(&admission, "192.0.2.9").await.unwrap();
        let _under_way = busy.connection.begin();
        let first = receive(&admission, "192.0.2.9").await.unwrap();
        advance(IDLE_AFTER).await;
        let second = receive(&admission, "192.0.2.9").await.unwrap();
        let newcomer = receive(&admission, "192.0.2.2").await.unwrap();
        assert!(!newcomer.connection.has_place());
        let mut waits = pin!(newcomer.ends());
        assert!(waits.as_mut().now_or_never().is_none());
        let leave = [&honest, &busy, &first, &second].map(has_to_leave);
        assert_eq!(leave, [false, false, true, false]);
        drop(first);
        assert!(newcomer.connection.has_place());
    }

    #[tokio::test(start_paused = true)]
    async fn where_too_many_wait_the_one_that_has_waited_longest_is_closed() {
        let admission = Admission::new(0, 10, TrustedProxies::default());
        let first = receive(&admission, "192.0.2.1").await.unwrap();
        let mut waiting = Vec::new();
        for _ in 1..MOST_WAITING {
            waiting.push(receive(&admission, "192.0.2.1").await.unwrap());
        }
        let mut late = pin!(receive(&admission, "192.0.2.2"));
        assert!(late.as_mut().now_or_never().is_none());
        advance(Duration::from_secs(1)).await;
        assert!(late.await.is_some());
        assert!(has_to_leave(&first));
        assert!(!has_to_leave(&waiting[0]));
    }
}
