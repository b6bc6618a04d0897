//! A connection as the house, its stream and its requests know it: its place, and whether a request
//! is under way. HTTP/1 has one at a time.

use std::net::{IpAddr, Ipv6Addr};
use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// It waits to get into the house; until then it gets answers to health checks only.
    Hall,
    /// It gets answers.
    House,
    /// It has to leave, and gets none.
    Away,
}

pub(super) struct Guest {
    peer: IpAddr,
    came: Instant,
    state: Mutex<State>,
    moved: Notify,
}

struct State {
    place: Place,
    /// The end of the last request; `None` during one.
    idle_since: Option<Instant>,
    /// The first byte of the head that is being read.
    head_since: Option<Instant>,
    /// Set if that head has what hyper lets pass.
    faulty: bool,
}

/// A request under way, until dropped.
pub(super) struct UnderWay(Arc<Guest>);

impl Guest {
    /// A new connection, in the hall.
    pub(super) fn new(peer: IpAddr) -> Arc<Self> {
        let came = Instant::now();
        let (place, idle_since) = (Place::Hall, Some(came));
        let state = State { place, idle_since, head_since: None, faulty: false };
        let (peer, state) = (peer.to_canonical(), Mutex::new(state));
        Arc::new(Self { peer, came, state, moved: Notify::new() })
    }

    /// The address of the client.
    pub(super) fn peer(&self) -> IpAddr {
        self.peer
    }

    /// The network of the client's machine: with IPv6 the 64-bit prefix.
    pub(super) fn network(&self) -> IpAddr {
        match self.peer {
            IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
            v4 @ IpAddr::V4(_) => v4,
        }
    }

    /// The time since the connection was accepted.
    pub(super) fn age(&self) -> Duration {
        self.came.elapsed()
    }

    pub(super) fn place(&self) -> Place {
        self.with(|state| state.place)
    }

    /// Has the connection leave, unless a request is under way.
    pub(super) fn leave_if_idle(&self) {
        self.with(|state| {
            if state.idle_since.is_some() {
                state.place = Place::Away;
            }
        });
        self.moved.notify_waiters();
    }

    pub(super) fn move_to(&self, place: Place) {
        self.with(|state| state.place = place);
        self.moved.notify_waiters();
    }

    /// Waits until the connection has this place.
    pub(super) async fn comes_to(&self, place: Place) {
        loop {
            let mut moved = pin!(self.moved.notified());
            moved.as_mut().enable();
            if self.place() == place {
                return;
            }
            moved.await;
        }
    }

    /// Returns whether a request is under way.
    pub(super) fn is_busy(&self) -> bool {
        self.with(|state| state.idle_since.is_none())
    }

    /// The time without a request under way; `None` during one.
    pub(super) fn idle(&self) -> Option<Duration> {
        self.with(|state| state.idle_since.map(|since| since.elapsed()))
    }

    /// Returns whether a head begins with the bytes that were read.
    pub(super) fn begins_head(&self) -> bool {
        self.with(|state| {
            let begins = state.head_since.is_none();
            state.head_since.get_or_insert_with(Instant::now);
            begins
        })
    }

    /// The first byte of the head that is being read.
    pub(super) fn head_since(&self) -> Option<Instant> {
        self.with(|state| state.head_since)
    }

    /// Has the request of the head refused.
    pub(super) fn refuse_head(&self) {
        self.with(|state| state.faulty = true);
    }

    /// Begins a request, whose head was read; `true` if that head is to be refused.
    pub(super) fn begin(self: &Arc<Self>) -> (UnderWay, bool) {
        let faulty = self.with(|state| {
            (state.idle_since, state.head_since) = (None, None);
            std::mem::take(&mut state.faulty)
        });
        (UnderWay(self.clone()), faulty)
    }

    fn with<T>(&self, use_it: impl FnOnce(&mut State) -> T) -> T {
        use_it(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.with(|state| state.idle_since = Some(Instant::now()));
    }
}
