//! Clients that acquire, refresh and release many keys at once, and hold the service to what it
//! told them, also after it was killed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::support::{Answer, Http, eventually};

/// Longer than any test takes.
pub(super) const TTL: Duration = Duration::from_secs(600);

/// Some clients, each with keys of its own.
pub(super) struct Crowd {
    clients: Vec<Client>,
}

/// The clients at work.
pub(super) struct Working {
    tasks: JoinSet<Client>,
    answers: Arc<AtomicU64>,
}

struct Client {
    keys: Vec<Known>,
    random: u64,
    tokens: u64,
}

/// What a client knows of a key.
struct Known {
    key: String,
    highest: u64,
    state: State,
}

enum State {
    Free,
    Held(Lease),
    /// The acquire with this token had no answer.
    PerhapsAcquired(String),
    /// The release had no answer.
    PerhapsReleased(Lease),
}

#[derive(Clone)]
struct Lease {
    token: String,
    fencing_token: u64,
    /// When the last acquire or refresh that was answered had been sent.
    since: Instant,
}

/// The service is gone, or goes.
struct Gone;

impl Crowd {
    pub(super) fn new(clients: u64, keys: usize) -> Self {
        let client = |number: u64| Client {
            keys: (0..keys)
                .map(|key| format!("load/{number}/{key}"))
                .map(|key| Known { key, highest: 0, state: State::Free })
                .collect(),
            random: number + 1,
            tokens: 0,
        };
        Self { clients: (0..clients).map(client).collect() }
    }

    /// Sets all to work until the service is gone.
    pub(super) fn work(self, http: &Http) -> Working {
        let answers = Arc::new(AtomicU64::new(0));
        let mut tasks = JoinSet::new();
        for mut client in self.clients {
            let (http, answers) = (http.clone(), answers.clone());
            tasks.spawn(async move {
                while client.step(&http).await.is_ok() {
                    answers.fetch_add(1, Ordering::Relaxed);
                }
                client
            });
        }
        Working { tasks, answers }
    }

    /// Checks all that was ever answered against a service that was started at `started`, after
    /// the one before had ended before `ended`. Gives how many leases had to be there.
    pub(super) async fn check(&mut self, http: &Http, ended: Instant, started: Instant) -> usize {
        let mut held = 0;
        for known in self.clients.iter_mut().flat_map(|client| &mut client.keys) {
            held += usize::from(known.check(http, ended, started).await);
        }
        held
    }
}

impl Working {
    /// Waits until so many requests were answered.
    pub(super) async fn answered(&self, answers: u64) {
        eventually(Duration::from_secs(30), async || {
            (self.answers.load(Ordering::Relaxed) >= answers).then_some(())
        })
        .await;
    }

    /// The clients, now that the service is gone.
    pub(super) async fn rest(self) -> Crowd {
        Crowd { clients: self.tasks.join_all().await }
    }
}

impl Client {
    async fn step(&mut self, http: &Http) -> Result<(), Gone> {
        let at = self.random(self.keys.len());
        let choice = self.random(5);
        self.tokens += 1;
        let token = format!("token-{:016x}-{}", self.random, self.tokens);
        let known = &mut self.keys[at];
        match (&known.state, choice) {
            (State::Held(_), 0) => known.intrude(http).await,
            (State::Held(lease), 1 | 2) => {
                let lease = lease.clone();
                known.refresh(http, lease).await
            }
            (State::Held(lease), _) => {
                let lease = lease.clone();
                known.release(http, lease).await
            }
            _ => known.acquire(http, token).await,
        }
    }

    /// A number below `bound`, from a generator that is the same in every run.
    fn random(&mut self, bound: usize) -> usize {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.random >> 33) as usize % bound
    }
}

impl Known {
    async fn acquire(&mut self, http: &Http, token: String) -> Result<(), Gone> {
        let sent = Instant::now();
        let body = format!(r#"{{"token":"{token}","ttl_ms":{}}}"#, TTL.as_millis());
        self.state = State::PerhapsAcquired(token.clone());
        let answer = asked(http.try_send("POST", &self.path(), &body).await)?;
        if answer.told() == (503, "draining".to_owned()) {
            self.state = State::Free;
            return Err(Gone);
        }
        assert_eq!(answer.status, 201, "{}: {answer:?}", self.key);
        let fencing_token = answer.number("fencing_token");
        self.rise(fencing_token);
        self.state = State::Held(Lease { token, fencing_token, since: sent });
        Ok(())
    }

    async fn refresh(&mut self, http: &Http, mut lease: Lease) -> Result<(), Gone> {
        let sent = Instant::now();
        let path = format!("{}/refresh", self.path());
        let answer = asked(http.token(&lease.token).try_send("PUT", &path, "").await)?;
        assert_eq!(answer.status, 200, "{}: {answer:?}", self.key);
        assert_eq!(answer.number("fencing_token"), lease.fencing_token, "{}", self.key);
        lease.since = sent;
        self.state = State::Held(lease);
        Ok(())
    }

    async fn release(&mut self, http: &Http, lease: Lease) -> Result<(), Gone> {
        let token = lease.token.clone();
        self.state = State::PerhapsReleased(lease);
        let answer = asked(http.token(&token).try_send("DELETE", &self.path(), "").await)?;
        assert_eq!(answer.status, 204, "{}: {answer:?}", self.key);
        self.state = State::Free;
        Ok(())
    }

    /// Tries to take a key that is held.
    async fn intrude(&self, http: &Http) -> Result<(), Gone> {
        let answer = asked(http.try_send("POST", &self.path(), "").await)?;
        if answer.told() == (503, "draining".to_owned()) {
            return Err(Gone);
        }
        assert_eq!(answer.told(), (409, "lock_held".to_owned()), "{}", self.key);
        Ok(())
    }

    /// Whether the key had to be held still, and was.
    async fn check(&mut self, http: &Http, ended: Instant, started: Instant) -> bool {
        let token = match &self.state {
            State::Free => None,
            State::Held(lease) | State::PerhapsReleased(lease) => Some(lease.token.clone()),
            State::PerhapsAcquired(token) => Some(token.clone()),
        };
        let asker = token.as_ref().map_or_else(|| http.clone(), |token| http.token(token));
        let found = asker.get(&self.path()).await;
        let held = found.field("held") == true;
        match std::mem::replace(&mut self.state, State::Free) {
            State::Free => assert!(!held, "{} was released: {found:?}", self.key),
            State::PerhapsAcquired(_) if !held => (),
            State::PerhapsReleased(_) if !held => (),
            State::PerhapsAcquired(token) => {
                assert_eq!(found.field("mine"), true, "{}: {found:?}", self.key);
                let fencing_token = found.number("fencing_token");
                self.rise(fencing_token);
                self.state = State::Held(Lease { token, fencing_token, since: started });
            }
            State::Held(lease) | State::PerhapsReleased(lease) => {
                assert_eq!(found.field("mine"), true, "{}: {found:?}", self.key);
                assert_eq!(found.number("fencing_token"), lease.fencing_token, "{}", self.key);
                self.check_time(&found, &lease, ended, started);
                // What was left at the crash is what counts from here on.
                let since = lease.since + started.duration_since(ended);
                self.state = State::Held(Lease { since, ..lease });
                return true;
            }
        }
        false
    }

    /// A recovered lease has at most what was asked for, and at least what was left.
    fn check_time(&self, found: &Answer, lease: &Lease, ended: Instant, started: Instant) {
        let ttl = Duration::from_millis(found.number("ttl_ms"));
        let passed = ended.duration_since(lease.since) + started.elapsed();
        assert!(ttl <= TTL, "{}: more than was asked for: {found:?}", self.key);
        assert!(ttl + passed >= TTL, "{}: less than was left: {found:?}", self.key);
    }

    fn rise(&mut self, fencing_token: u64) {
        assert!(fencing_token > self.highest, "{}: the fencing token does not rise", self.key);
        self.highest = fencing_token;
    }

    fn path(&self) -> String {
        format!("/locks/{}", self.key)
    }
}

fn asked<E>(answer: Result<Answer, E>) -> Result<Answer, Gone> {
    answer.map_err(|_| Gone)
}
