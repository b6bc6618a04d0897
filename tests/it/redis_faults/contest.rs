//! Clients that want the same few keys all the time, and see to it that each key has one holder
//! and rising fencing tokens, whatever happens to Redis.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use tokio::task::JoinSet;

use crate::redis_faults::PATIENCE;
use crate::support::{Answer, Http, eventually};

const CLIENTS: usize = 12;
const KEYS: usize = 4;

/// A contest that goes on until it is finished.
pub(crate) struct Contest {
    seen: Arc<Seen>,
    clients: JoinSet<()>,
}

/// What all clients together have seen.
#[derive(Default)]
struct Seen {
    over: AtomicBool,
    tally: Mutex<Tally>,
}

/// What happened.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    /// How often a key was won.
    pub(crate) grants: u64,
    /// How many answers were 503.
    pub(crate) unavailable: u64,
    /// Who believes to hold a key.
    holders: HashMap<String, String>,
    /// The last fencing token of a key.
    fencing_tokens: HashMap<String, u64>,
}

impl Contest {
    pub(crate) fn begin(http: &Http) -> Self {
        let seen = Arc::new(Seen::default());
        let mut clients = JoinSet::new();
        for number in 0..CLIENTS {
            let (http, seen) = (http.clone(), seen.clone());
            clients.spawn(async move {
                let mut round = number;
                while !seen.over.load(Ordering::Relaxed) {
                    round += 1;
                    let token = format!("token-of-the-client-{number}-{round}");
                    seen.once(&http, &format!("contest/{}", round % KEYS), &token).await;
                }
            });
        }
        Self { seen, clients }
    }

    /// Waits until keys were won so often from now on.
    pub(crate) async fn goes_on(&self, grants: u64) {
        let target = self.seen.tally().grants + grants;
        eventually(PATIENCE, async || (self.seen.tally().grants >= target).then_some(())).await;
    }

    pub(crate) async fn finish(mut self) -> Tally {
        self.seen.over.store(true, Ordering::Relaxed);
        while let Some(ended) = self.clients.join_next().await {
            ended.unwrap();
        }
        self.seen.tally()
    }
}

impl Seen {
    fn tally(&self) -> Tally {
        self.tally.lock().unwrap().clone()
    }

    /// Wins the key, refreshes, releases; or finds it held.
    async fn once(&self, http: &Http, key: &str, token: &str) {
        let (http, path) = (http.token(token), format!("/locks/{key}"));
        let (answer, _) = self.answered(&http, "POST", &format!("{path}?ttl=10m")).await;
        if answer.status == 409 {
            return;
        }
        assert!([200, 201].contains(&answer.status), "{answer:?}");
        self.won(key, token, answer.number("fencing_token"));
        let (again, _) = self.answered(&http, "PUT", &format!("{path}/refresh")).await;
        assert_eq!(again.status, 200, "{key} was lost: {again:?}");
        assert_eq!(again.number("fencing_token"), answer.number("fencing_token"));
        self.tally.lock().unwrap().holders.remove(key);
        let (gone, in_doubt) = self.answered(&http, "DELETE", &path).await;
        assert!(gone.status == 204 || (gone.status == 409 && in_doubt), "{key}: {gone:?}");
    }

    fn won(&self, key: &str, token: &str, fencing_token: u64) {
        let mut tally = self.tally.lock().unwrap();
        tally.grants += 1;
        let other = tally.holders.insert(key.to_owned(), token.to_owned());
        assert_eq!(other, None, "{key} has two holders");
        let last = tally.fencing_tokens.insert(key.to_owned(), fencing_token);
        assert!(last < Some(fencing_token), "{key}: {last:?} came before {fencing_token}");
    }

    /// The answer that is not 503, and whether others came before it; as the contract says, by
    /// asking again with the same token.
    async fn answered(&self, http: &Http, method: &str, path: &str) -> (Answer, bool) {
        let mut in_doubt = false;
        loop {
            let answer = http.send(method, path, "").await;
            if answer.status != 503 {
                assert!([200, 201, 204, 409].contains(&answer.status), "{answer:?}");
                return (answer, in_doubt);
            }
            in_doubt = true;
            self.tally.lock().unwrap().unavailable += 1;
        }
    }
}
