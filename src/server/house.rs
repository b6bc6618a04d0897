//! The house: the connections with a place, and which of them leaves when there is no room.
//!
//! Places are limited in all and per address. Beyond that a new connection waits in the hall: there
//! it gets answers to health checks, and a place once another connection leaves. For it an idle
//! connection is closed, preferably of the address with the most connections. If the hall is full,
//! the connection that has waited longest is closed.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout};

use crate::auth::TrustedProxies;
use crate::server::guest::Guest;

/// The connections in the hall: those that wait for a place, and health checks.
pub(super) const HALL: usize = 64;

/// The silence after which a connection may be closed: a new one is about to send.
const IDLE_AFTER: Duration = Duration::from_secs(1);

/// The time that a connection may wait in a full hall.
const PATIENCE: Duration = Duration::from_secs(1);

/// The interval of looks for room in a full hall.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// The pause between log lines about a full house.
const NOTICE_EVERY: Duration = Duration::from_secs(10);

/// All connections of a listener.
pub(super) struct House {
    room: usize,
    per_address: usize,
    proxies: TrustedProxies,
    inside: Mutex<Inside>,
}

#[derive(Default)]
struct Inside {
    /// The connections in the house by their addresses in memory.
    members: HashMap<usize, Arc<Guest>>,
    /// The number of them from each network.
    networks: HashMap<IpAddr, usize>,
    hall: VecDeque<Arc<Guest>>,
    noticed: Option<Instant>,
}

/// A connection in the house or in the hall, until dropped.
pub(super) struct Stay {
    pub(super) guest: Arc<Guest>,
    house: Arc<House>,
}

impl House {
    /// A house with `room` places, and `per_address` for each address that is not a trusted proxy.
    pub(super) fn new(room: usize, per_address: usize, proxies: TrustedProxies) -> Arc<Self> {
        Arc::new(Self { room, per_address, proxies, inside: Mutex::default() })
    }

    /// Receives a connection, in the house or in the hall; waits while both are full. `None` if its
    /// address has too many: only this machine's may wait, so that its health checks are answered.
    pub(super) async fn receive(self: &Arc<Self>, peer: IpAddr) -> Option<Stay> {
        let guest = Guest::new(peer);
        let is_crowded = self.with(|inside| {
            let is_crowded = self.is_crowded(inside, &guest);
            if is_crowded {
                inside.notice(&guest, "too many connections from one address; closing new ones");
            } else if !self.has_room(inside, &guest) {
                let what = "no room for more connections; closing idle ones, others wait";
                inside.notice(&guest, what);
            }
            is_crowded
        });
        if is_crowded && !guest.peer.is_loopback() {
            return None;
        }
        while !self.with(|inside| self.admit(inside, &guest)) {
            sleep(LOOK_EVERY).await;
        }
        Some(Stay { house: self.clone(), guest })
    }

    /// Gives a connection a place in the house or in the hall, if there is one.
    fn admit(&self, inside: &mut Inside, guest: &Arc<Guest>) -> bool {
        if self.has_room(inside, guest) {
            inside.seat(guest);
            return true;
        }
        if inside.hall.len() >= HALL {
            let Some(first) = inside.hall.pop_front_if(|first| first.came.elapsed() >= PATIENCE)
            else {
                return false;
            };
            first.dismiss();
        }
        inside.hall.push_back(guest.clone());
        true
    }

    /// Returns whether there is a place in the house for this connection.
    fn has_room(&self, inside: &Inside, guest: &Guest) -> bool {
        inside.members.len() < self.room && !self.is_crowded(inside, guest)
    }

    /// Returns whether the address of this connection has all that it may have.
    fn is_crowded(&self, inside: &Inside, guest: &Guest) -> bool {
        inside.neighbours(guest) >= self.per_address && !self.proxies.trust(guest.peer)
    }

    /// Closes an idle connection for one in the hall.
    fn make_room(&self, guest: &Guest) {
        self.with(|inside| {
            if self.has_room(inside, guest) {
                return;
            }
            let only_own = self.is_crowded(inside, guest);
            let idle = inside.members.values().filter_map(|one| {
                let idle = one.idle().filter(|idle| *idle >= IDLE_AFTER)?;
                let fits = !only_own || one.network() == guest.network();
                (fits && one.has_place()).then(|| ((inside.neighbours(one), idle), one))
            });
            if let Some((_, one)) = idle.max_by_key(|(rank, _)| *rank) {
                one.dismiss_if_idle();
            }
        });
    }

    fn with<T>(&self, use_it: impl FnOnce(&mut Inside) -> T) -> T {
        use_it(&mut self.inside.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Inside {
    /// The connections in the house from the network of this one.
    fn neighbours(&self, guest: &Guest) -> usize {
        self.networks.get(&guest.network()).copied().unwrap_or_default()
    }

    /// Logs that there is no place, but not for each connection.
    fn notice(&mut self, guest: &Guest, what: &'static str) {
        if self.noticed.is_none_or(|last| last.elapsed() >= NOTICE_EVERY) {
            self.noticed = Some(Instant::now());
            let connections = self.members.len();
            tracing::warn!(connections, client.address = %guest.peer, "{what}");
        }
    }

    fn seat(&mut self, guest: &Arc<Guest>) {
        self.members.insert(Arc::as_ptr(guest).addr(), guest.clone());
        *self.networks.entry(guest.network()).or_default() += 1;
        guest.seat();
    }

    fn remove(&mut self, guest: &Arc<Guest>) {
        self.hall.retain(|one| !Arc::ptr_eq(one, guest));
        if self.members.remove(&Arc::as_ptr(guest).addr()).is_none() {
            return;
        }
        if let Some(count) = self.networks.get_mut(&guest.network()) {
            *count -= 1;
            if *count == 0 {
                self.networks.remove(&guest.network());
            }
        }
    }
}

impl Stay {
    /// Waits until the connection has to leave. While it has no place, idle ones are closed.
    pub(super) async fn ends(&self) {
        let mut dismissed = pin!(self.guest.dismissed.notified());
        while !self.guest.has_place() {
            self.house.make_room(&self.guest);
            if timeout(IDLE_AFTER, dismissed.as_mut()).await.is_ok() {
                return;
            }
        }
        dismissed.await;
    }
}

impl Drop for Stay {
    fn drop(&mut self) {
        self.house.with(|inside| {
            inside.remove(&self.guest);
            let fits = |one: &Arc<Guest>| self.house.has_room(inside, one);
            if let Some(first) = inside.hall.iter().position(fits) {
                let first = inside.hall.remove(first);
                first.iter().for_each(|first| inside.seat(first));
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

    use super::{HALL, House, IDLE_AFTER, Stay};
    use crate::auth::TrustedProxies;

    async fn receive(house: &Arc<House>, address: &str) -> Option<Stay> {
        house.receive(address.parse().unwrap()).await
    }

    /// Whether the connection has to leave by now.
    fn has_to_leave(stay: &Stay) -> bool {
        stay.ends().now_or_never().is_some()
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_has_so_many_connections_and_another_has_its_own() {
        let house = House::new(10, 2, TrustedProxies::default());
        let mut inside = Vec::new();
        for address in ["192.0.2.1", "::ffff:192.0.2.1", "2001:db8::1", "2001:db8::2"] {
            inside.push(receive(&house, address).await.unwrap());
        }
        for address in ["192.0.2.1", "2001:db8::3"] {
            assert!(receive(&house, address).await.is_none());
        }
        inside.push(receive(&house, "192.0.2.2").await.unwrap());
        inside.remove(0);
        inside.push(receive(&house, "192.0.2.1").await.unwrap());
        assert!(inside.iter().all(|stay| stay.guest.has_place()));
    }

    #[tokio::test(start_paused = true)]
    async fn the_longest_idle_of_the_address_with_the_most_gives_way() {
        let house = House::new(4, 10, TrustedProxies::default());
        let honest = receive(&house, "192.0.2.1").await.unwrap();
        advance(IDLE_AFTER).await;
        let busy = receive(&house, "192.0.2.9").await.unwrap();
        let _under_way = busy.guest.begin();
        let first = receive(&house, "192.0.2.9").await.unwrap();
        advance(IDLE_AFTER).await;
        let second = receive(&house, "192.0.2.9").await.unwrap();
        let newcomer = receive(&house, "192.0.2.2").await.unwrap();
        assert!(!newcomer.guest.has_place());
        let mut waits = pin!(newcomer.ends());
        assert!(waits.as_mut().now_or_never().is_none());
        let leave = [&honest, &busy, &first, &second].map(has_to_leave);
        assert_eq!(leave, [false, false, true, false]);
        drop(first);
        assert!(newcomer.guest.has_place());
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_hall_turns_away_who_has_waited_longest() {
        let house = House::new(0, 10, TrustedProxies::default());
        let first = receive(&house, "192.0.2.1").await.unwrap();
        let mut hall = Vec::new();
        for _ in 1..HALL {
            hall.push(receive(&house, "192.0.2.1").await.unwrap());
        }
        let mut late = pin!(receive(&house, "192.0.2.2"));
        assert!(late.as_mut().now_or_never().is_none());
        advance(Duration::from_secs(1)).await;
        assert!(late.await.is_some());
        assert!(has_to_leave(&first));
        assert!(!has_to_leave(&hall[0]));
    }
}
