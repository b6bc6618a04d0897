//! Clients of several instances that want the same few keys all the time, for short leases, and
//! write down what they are told.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::redlock::ledger::Ledger;
use crate::redlock::{PATIENCE, acquire, release};
use crate::support::{Http, eventually};

/// Of each lease.
const TTL: Duration = Duration::from_secs(2);

const CLIENTS: usize = 6;
const KEYS: usize = 2;

/// A contest that goes on until it is finished.
pub(super) struct Contest {
    shared: Arc<Shared>,
    clients: JoinSet<()>,
}

#[derive(Default)]
struct Shared {
    over: AtomicBool,
    ledger: Ledger,
    unavailable: AtomicUsize,
}

impl Contest {
    pub(super) fn begin(instances: &[Http]) -> Self {
        let shared = Arc::new(Shared::default());
        let mut clients = JoinSet::new();
        for number in 0..CLIENTS {
            let (http, shared) = (instances[number % instances.len()].clone(), shared.clone());
            clients.spawn(async move {
                let mut round = number;
                while !shared.over.load(Ordering::Relaxed) {
                    round += 1;
                    let token = format!("token-of-the-client-{number}-{round}");
                    shared.once(&http, &format!("contest/{}", round % KEYS), &token).await;
                }
            });
        }
        Self { shared, clients }
    }

    /// Waits until keys were won so often from now on.
    pub(super) async fn goes_on(&self, grants: usize) {
        let target = self.shared.ledger.grants() + grants;
        eventually(PATIENCE, async || (self.shared.ledger.grants() >= target).then_some(())).await;
    }

    /// The number of grants, and of answers that were 503.
    pub(super) async fn finish(mut self) -> (usize, usize) {
        self.shared.over.store(true, Ordering::Relaxed);
        while let Some(ended) = self.clients.join_next().await {
            ended.unwrap();
        }
        (self.shared.ledger.rises(), self.shared.unavailable.load(Ordering::Relaxed))
    }
}

impl Shared {
    /// Wins the key, and releases it or lets it run out; or finds it held.
    async fn once(&self, http: &Http, key: &str, token: &str) {
        let sent = Instant::now();
        let answer = acquire(http, key, token, TTL).await;
        match answer.status {
            201 => (),
            503 => {
                self.unavailable.fetch_add(1, Ordering::Relaxed);
                // Whatever it may have got all the same is not for anybody to count on.
                drop(release(http, key, token).await);
                return;
            }
            409 => return,
            _ => panic!("{answer:?}"),
        }
        let lasts = Duration::from_millis(answer.number("ttl_ms"));
        self.ledger.won(key, (token, answer.number("fencing_token")), sent, lasts);
        if fastrand::u8(..16) == 0 {
            return;
        }
        let sent = Instant::now();
        let kept = crate::redlock::refresh(http, key, token).await;
        match kept.status {
            200 => {
                // Higher if a node that granted the lease has lost it since.
                assert!(kept.number("fencing_token") >= answer.number("fencing_token"));
                let lasts = Duration::from_millis(kept.number("ttl_ms"));
                self.ledger.kept(key, token, sent, lasts);
            }
            409 | 503 => (),
            _ => panic!("{kept:?}"),
        }
        self.ledger.gives_up(key, token);
        let given = release(http, key, token).await;
        assert!([204, 409, 503].contains(&given.status), "{given:?}");
    }
}
