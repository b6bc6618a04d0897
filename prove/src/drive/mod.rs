//! The load: clients that do seeded random things with leases, and record what they are told.
//!
//! `plain` takes, refreshes and gives back, `line` waits, leaves and asks twice, `stream` holds
//! by a connection, `late` gives requests up that arrive later, `shared` has keys
//! that several leases hold together, `several` claims several keys at once, `lasting` has leases that
//! outlast the run.

mod asker;
mod client;
mod lasting;
mod late;
mod line;
mod plain;
mod question;
mod several;
mod shared;
mod stream;

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use tokio::task::JoinSet;

use crate::drive::client::Client;
use crate::record::Recorder;
use crate::servers::Routes;

/// How many keys many clients want at once.
const HOT: u32 = 2;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Amount {
    pub(crate) clients: u32,
    /// How many keys that all want; the first two are hot. Each client has one more of its own.
    pub(crate) keys: u32,
    /// How many more clients have leases that share their keys; none on a store that cannot share.
    pub(crate) sharers: u32,
    /// Whether the leases are exclusive and outlast the run. Their clients reach the instances directly.
    pub(crate) lasting: bool,
    /// Whether the store is so far away that no answer comes within 40 ms.
    pub(crate) far: bool,
}

const SHARED_KEYS: u32 = 6;

impl Amount {
    pub(crate) fn all_keys(self) -> u32 {
        self.own_pair(self.clients + self.sharers)[0]
    }

    /// Returns a key that no client but this one wants.
    fn own_key(self, client: u32) -> u32 {
        let shared = if client < self.clients { 0 } else { SHARED_KEYS };
        self.keys + shared + client
    }

    /// Returns two more, for claims of several keys.
    fn own_pair(self, client: u32) -> [u32; 2] {
        let shared = if self.sharers > 0 { SHARED_KEYS } else { 0 };
        let first = self.keys + self.clients + shared + self.sharers + 2 * client;
        [first, first + 1]
    }

    /// Returns the keys that leases share, which exclusive clients leave alone.
    fn shared_keys(self) -> Range<u32> {
        let first = self.keys + self.clients;
        first..first + SHARED_KEYS
    }
}

/// Clients that ask until they are told to stop.
#[derive(Debug)]
pub(crate) struct Load {
    shared: Arc<Shared>,
    clients: JoinSet<()>,
}

#[derive(Debug)]
struct Shared {
    recorder: Arc<Recorder>,
    amount: Amount,
    stopped: AtomicBool,
}

impl Load {
    /// Starts clients whose choices follow from a seed.
    pub(crate) fn start(
        amount: Amount,
        routes: &Routes,
        recorder: &Arc<Recorder>,
        seed: u64,
    ) -> Self {
        let shared = Arc::new(Shared {
            recorder: recorder.clone(),
            amount,
            stopped: AtomicBool::new(false),
        });
        let mut clients = JoinSet::new();
        for number in 0..amount.clients + amount.sharers {
            // Every other number is proxied.
            let number = if amount.lasting { number * 2 } else { number };
            let chance = fastrand::Rng::with_seed(seed ^ (u64::from(number) << 32));
            clients.spawn(Client::new(number, chance, routes, shared.clone()).run());
        }
        Self { shared, clients }
    }

    /// Tells all clients to stop, and waits until the last of them has.
    pub(crate) async fn stop(self) {
        self.shared.stopped.store(true, Ordering::Relaxed);
        self.clients.join_all().await;
    }
}
