//! A connection as its limit, its stream and its requests know it: its place, the head that is being
//! read, and whether a request is under way. HTTP/1 has one at a time.

use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use crate::lock::hold::TimedOut;
use crate::server::head::Head;

pub(super) struct ConnectionState {
    /// The address of the client.
    pub(super) peer: IpAddr,
    pub(super) came: Instant,
    state: Mutex<State>,
    placed: Notify,
    /// Tells the connection to close.
    pub(super) closing: Notify,
    /// Set once the connection was given up because the client fell silent.
    pub(super) timed_out: TimedOut,
}

struct State {
    /// Set while it has a place. Without one it gets answers to health checks only.
    has_place: bool,
    /// The end of the last request; `None` during one.
    idle_since: Option<Instant>,
    /// The head that is being read, from its first byte on.
    head: Option<Head>,
}

/// A request under way, until dropped.
pub(super) struct UnderWay(Arc<ConnectionState>);

impl ConnectionState {
    /// A new connection, without a place.
    pub(super) fn new(peer: IpAddr) -> Arc<Self> {
        let came = Instant::now();
        let state = Mutex::new(State { has_place: false, idle_since: Some(came), head: None });
        Arc::new(Self {
            peer: peer.to_canonical(),
            came,
            state,
            placed: Notify::new(),
            closing: Notify::new(),
            timed_out: TimedOut::default(),
        })
    }

    /// The network of the client's machine: with IPv6 the 64-bit prefix.
    pub(super) fn network(&self) -> IpAddr {
        match self.peer {
            IpAddr::V6(v6) => Ipv6Addr::from_bits(v6.to_bits() >> 64 << 64).into(),
            v4 @ IpAddr::V4(_) => v4,
        }
    }

    pub(super) fn has_place(&self) -> bool {
        self.with(|state| state.has_place)
    }

    /// Gives the connection a place.
    pub(super) fn give_place(&self) {
        self.with(|state| state.has_place = true);
        self.placed.notify_one();
    }

    /// Waits until the connection has a place.
    pub(super) async fn until_placed(&self) {
        while !self.has_place() {
            self.placed.notified().await;
        }
    }

    /// Returns whether a request is under way.
    pub(super) fn is_busy(&self) -> bool {
        self.with(|state| state.idle_since.is_none())
    }

    /// Closes the connection. A request that begins now gets no answer.
    pub(super) fn close(&self) {
        self.with(|state| state.has_place = false);
        self.closing.notify_one();
    }

    /// The same, unless a request is under way.
    pub(super) fn close_if_idle(&self) {
        let is_idle = self.with(|state| {
            state.has_place &= state.idle_since.is_none();
            state.idle_since.is_some()
        });
        if is_idle {
            self.closing.notify_one();
        }
    }

    /// The time without a request under way; `None` during one.
    pub(super) fn idle(&self) -> Option<Duration> {
        self.with(|state| state.idle_since.map(|since| since.elapsed()))
    }

    /// Notes bytes that were read while no request is under way: they belong to a head.
    pub(super) fn reads_head(&self, bytes: &[u8]) {
        self.with(|state| state.head.get_or_insert_with(Head::new).read(bytes));
    }

    /// The first byte of the head that is being read.
    pub(super) fn head_since(&self) -> Option<Instant> {
        self.with(|state| state.head.as_ref().map(|head| head.since))
    }

    /// Begins a request, whose head was read; `true` if that head is to be refused.
    pub(super) fn begin(self: &Arc<Self>) -> (UnderWay, bool) {
        let head = self.with(|state| {
            state.idle_since = None;
            state.head.take()
        });
        (UnderWay(self.clone()), head.is_some_and(|head| head.has_fault))
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
