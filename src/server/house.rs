//! The house: the connections with a place, and which of them leaves when there is no room.
//!
//! Places are limited in all and per address. Beyond that a new connection waits in the hall: there
//! it gets answers to health checks, and a place once another connection leaves. For it an idle
//! connection is asked to leave, preferably of the address with the most connections. If the hall
//! is full, it turns away the connection that has waited longest.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::auth::TrustedProxies;
use crate::server::turns::Turns;

/// The connections in the hall: those that wait for a place, and health checks.
pub(super) const HALL: usize = 64;

/// The silence after which a connection may be asked to leave: a new one is about to send.
const IDLE_AFTER: Duration = Duration::from_secs(1);

/// The time that a connection may wait in a full hall.
const PATIENCE: Duration = Duration::from_secs(1);

/// The pause between log lines about a full house.
const NOTICE_EVERY: Duration = Duration::from_secs(10);

/// All connections.
#[derive(Debug)]
pub(super) struct Guests {
    room: usize,
    per_address: usize,
    proxies: TrustedProxies,
    inside: Mutex<Inside>,
}

#[derive(Debug, Default)]
struct Inside {
    members: HashMap<u64, Arc<Guest>>,
    addresses: HashMap<IpAddr, usize>,
    hall: VecDeque<Arc<Guest>>,
    come: u64,
    noticed: Option<Instant>,
}

/// A connection as the house knows it.
#[derive(Debug)]
pub(super) struct Guest {
    peer: IpAddr,
    address: IpAddr,
    turns: Arc<Turns>,
    since: Instant,
    leaving: AtomicBool,
    turned_away: AtomicBool,
    leave: Notify,
}

/// A connection's place, until dropped.
#[derive(Debug)]
pub(super) struct Membership {
    house: Arc<Guests>,
    number: u64,
    address: IpAddr,
}

/// The reason why there is no place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Full {
    /// The total limit is reached.
    House,
    /// The limit of this address is reached.
    Address,
}

impl Guests {
    /// A house with `room` places, and `per_address` for each address that is not a trusted proxy.
    pub(super) fn new(room: usize, per_address: usize, proxies: TrustedProxies) -> Arc<Self> {
        Arc::new(Self { room, per_address, proxies, inside: Mutex::default() })
    }

    /// Takes a place, if there is one.
    pub(super) fn enter(self: &Arc<Self>, guest: &Arc<Guest>) -> Result<Membership, Full> {
        self.with(|inside| {
            let address = guest.address;
            let of_address = inside.addresses.get(&address).copied().unwrap_or_default();
            if of_address >= self.per_address && !self.proxies.trust(guest.peer) {
                return Err(Full::Address);
            }
            if inside.members.len() >= self.room {
                return Err(Full::House);
            }
            inside.hall.retain(|one| !Arc::ptr_eq(one, guest));
            inside.come += 1;
            inside.members.insert(inside.come, guest.clone());
            *inside.addresses.entry(address).or_default() += 1;
            Ok(Membership { house: self.clone(), number: inside.come, address })
        })
    }

    /// Lets a connection wait for a place. `None`: the hall is full, and no connection has waited
    /// long enough to be turned away.
    pub(super) fn wait(self: &Arc<Self>, guest: &Arc<Guest>) -> Option<HallPlace> {
        self.with(|inside| {
            if inside.hall.len() >= HALL {
                let first =
                    inside.hall.front().filter(|first| first.since.elapsed() >= PATIENCE)?;
                first.turned_away.store(true, Ordering::Relaxed);
                first.leave.notify_one();
                inside.hall.pop_front();
            }
            inside.hall.push_back(guest.clone());
            Some(HallPlace { house: self.clone(), guest: guest.clone() })
        })
    }

    /// Asks an idle connection to leave, for one that found no place.
    pub(super) fn make_room(&self, guest: &Guest, full: Full) {
        self.with(|inside| {
            let of_address = |one: &Guest| full == Full::House || one.address == guest.address;
            let candidates = inside.members.values().filter(|one| of_address(one));
            let idle = candidates.filter_map(|one| {
                let idle = one.turns.idle().filter(|idle| *idle >= IDLE_AFTER)?;
                let neighbours = inside.addresses.get(&one.address).copied().unwrap_or_default();
                (!one.leaving.load(Ordering::Relaxed)).then_some(((neighbours, idle), one))
            });
            if let Some((_, one)) = idle.max_by_key(|(rank, _)| *rank) {
                one.leaving.store(true, Ordering::Relaxed);
                one.leave.notify_one();
            }
        });
    }

    /// Logs that there is no place, but not for each connection.
    pub(super) fn notice(&self, address: IpAddr, full: Full) {
        let news = self.with(|inside| {
            let news = inside.noticed.is_none_or(|last| last.elapsed() >= NOTICE_EVERY);
            news.then(|| inside.noticed = Some(Instant::now())).map(|()| inside.members.len())
        });
        let Some(connections) = news else { return };
        match full {
            Full::House => tracing::warn!(
                connections,
                "no room for more connections; closing idle ones, others wait"
            ),
            Full::Address => tracing::warn!(
                connections,
                client.address = %address,
                "too many connections from one address; closing new ones"
            ),
        }
    }

    fn with<T>(&self, use_it: impl FnOnce(&mut Inside) -> T) -> T {
        use_it(&mut self.inside.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Guest {
    /// A new connection.
    pub(super) fn new(peer: IpAddr, turns: Arc<Turns>) -> Arc<Self> {
        let (since, leaving, leave) = (Instant::now(), AtomicBool::new(false), Notify::new());
        let turned_away = AtomicBool::new(false);
        let (peer, address) = (peer.to_canonical(), neighbourhood(peer));
        Arc::new(Self { peer, address, turns, since, leaving, turned_away, leave })
    }

    /// The address of the client.
    pub(super) fn peer(&self) -> IpAddr {
        self.peer
    }

    /// The turns on the connection.
    pub(super) fn turns(&self) -> &Arc<Turns> {
        &self.turns
    }

    /// Waits until the connection has to leave: asked while it is idle, or turned away from the
    /// hall. Neither ends a request under way.
    pub(super) async fn has_to_leave(&self) {
        loop {
            self.leave.notified().await;
            if self.turned_away.load(Ordering::Relaxed) || self.turns.idle().is_some() {
                return;
            }
            self.leaving.store(false, Ordering::Relaxed);
        }
    }
}

/// A connection's place in the hall, until dropped.
#[derive(Debug)]
pub(super) struct HallPlace {
    house: Arc<Guests>,
    guest: Arc<Guest>,
}

impl Drop for HallPlace {
    fn drop(&mut self) {
        self.house.with(|inside| inside.hall.retain(|one| !Arc::ptr_eq(one, &self.guest)));
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.house.with(|inside| {
            inside.members.remove(&self.number);
            count_down(&mut inside.addresses, self.address);
        });
    }
}

fn count_down(counts: &mut HashMap<IpAddr, usize>, address: IpAddr) {
    if let Some(count) = counts.get_mut(&address) {
        *count -= 1;
        if *count == 0 {
            counts.remove(&address);
        }
    }
}

/// The network of one machine: with IPv6 its 64-bit prefix.
fn neighbourhood(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
        v4 @ IpAddr::V4(_) => v4,
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;
    use std::time::Duration;

    use tokio::time::advance;

    use super::{Full, Guest, Guests, HALL, IDLE_AFTER};
    use crate::auth::TrustedProxies;
    use crate::server::turns::Turns;

    fn guest(address: &str) -> std::sync::Arc<Guest> {
        Guest::new(address.parse::<IpAddr>().unwrap(), Turns::new())
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_has_so_many_connections_and_another_has_its_own() {
        let house = Guests::new(10, 2, TrustedProxies::default());
        let mut inside = Vec::new();
        for address in ["192.0.2.1", "::ffff:192.0.2.1", "2001:db8::1", "2001:db8::2"] {
            inside.push(house.enter(&guest(address)).unwrap());
        }
        for address in ["192.0.2.1", "2001:db8::3"] {
            assert_eq!(house.enter(&guest(address)).unwrap_err(), Full::Address);
        }
        inside.push(house.enter(&guest("192.0.2.2")).unwrap());
        inside.remove(0);
        assert!(house.enter(&guest("192.0.2.1")).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn the_longest_idle_of_the_address_with_the_most_gives_way() {
        let house = Guests::new(3, 10, TrustedProxies::default());
        let honest = guest("192.0.2.1");
        let _inside = house.enter(&honest).unwrap();
        advance(IDLE_AFTER).await;
        let first = guest("192.0.2.9");
        let first_inside = house.enter(&first).unwrap();
        advance(IDLE_AFTER).await;
        let second = guest("192.0.2.9");
        let _second_inside = house.enter(&second).unwrap();
        let newcomer = guest("192.0.2.2");
        assert_eq!(house.enter(&newcomer).unwrap_err(), Full::House);
        house.make_room(&newcomer, Full::House);
        first.has_to_leave().await;
        drop(first_inside);
        assert!(house.enter(&newcomer).is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_hall_turns_away_who_has_waited_longest() {
        let house = Guests::new(1, 10, TrustedProxies::default());
        let first = guest("192.0.2.1");
        let mut hall = vec![house.wait(&first).unwrap()];
        for _ in 1..HALL {
            hall.push(house.wait(&guest("192.0.2.1")).unwrap());
        }
        assert!(house.wait(&guest("192.0.2.2")).is_none());
        advance(Duration::from_secs(1)).await;
        assert!(house.wait(&guest("192.0.2.2")).is_some());
        first.has_to_leave().await;
    }
}
