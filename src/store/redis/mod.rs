//! Locks on one Redis: a verb is its keys, its arguments, one script, and how the reply is read.
//!
//! The lock is a plain string, `SET <key_prefix><key> <token> NX PX <ttl>`, so that applications
//! that lock on Redis directly exclude the service's clients and are excluded by them. Fencing
//! token, TTL and owner stand in one record beside it, kept for a day after the lease.
//!
//! What may be repeated: every script but release tells a repeat from the first by the token; a
//! release that was answered by nobody is not repeated by the service.

mod clock;
mod connect;
mod keys;
mod list;
mod node;
mod replies;
mod rings;
mod script;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::sleep;
use uuid::Uuid;

use crate::lock::error::Effect;
use crate::lock::error::StoreError;
use crate::lock::error::Verb;
use crate::lock::key::LockKey;
use crate::lock::lease::Claim;
use crate::lock::lease::Holder;
use crate::lock::lease::Holding;
use crate::lock::lease::Lease;
use crate::lock::lease::LockStatus;
use crate::lock::lease::Owner;
use crate::lock::store::Attempt;
use crate::lock::store::Guarantees;
use crate::lock::store::Keep;
use crate::lock::store::Kept;
use crate::lock::store::Page;
use crate::lock::store::Released;
use crate::lock::store::Store;
use crate::lock::store::Turn;
use crate::lock::time::Ttl;
use crate::lock::token::FencingToken;
use crate::lock::token::LeaseToken;
use crate::lock::wakeup::Wakeup;
use crate::lock::wakeup::Wakeups;
use crate::metrics::Metrics;
use crate::store::redis::clock::FencingFloor;
use crate::store::redis::clock::latest_believable_micros;
use crate::store::redis::keys::Keys;
use crate::store::redis::keys::SIDE_PREFIX;
use crate::store::redis::node::Node;
use crate::store::redis::node::failure;
use crate::store::redis::node::millis;
use crate::store::redis::replies::fencing_token;
use crate::store::redis::replies::holder;
use crate::store::redis::replies::malformed;
use crate::store::redis::replies::owner;
use crate::store::redis::replies::refreshed;
use crate::store::redis::replies::renewals;
use crate::store::redis::replies::status;
use crate::store::redis::replies::waiting;
use crate::store::redis::rings::Rings;
use crate::store::redis::script::FORCE_RELEASE;
use crate::store::redis::script::INSPECT;
use crate::store::redis::script::LEAVE;
use crate::store::redis::script::REFRESH;
use crate::store::redis::script::RELEASE;
use crate::store::redis::script::Reply;
use crate::store::redis::script::Script;
use crate::store::redis::script::TRY_ACQUIRE;
use crate::store::redis::script::WAIT_TURN;

/// How long the last fencing token of a key is kept beyond its lease: longer than any step of a
/// clock that nobody notices. A key that is not used for so long costs nothing any more.
const RETENTION: Duration = Duration::from_secs(24 * 60 * 60);

/// How long the waiters of an instance that has died may keep the line waiting. Each question of
/// an instance moves this window, so it has to be several times what they sleep at most.
const WINDOW_MS: &str = "3000";

/// How often [`Store::undo`] asks before it lets its caller try again later.
const UNDO_TRIES: u32 = 3;

/// What the store has to know.
#[derive(Clone)]
pub struct RedisSettings {
    /// `redis://` or `rediss://`, with user, password and database.
    pub url: String,
    /// What stands before every key.
    pub key_prefix: String,
    /// How long a call may take.
    pub command_timeout: Duration,
    /// How long making a connection may take.
    pub connect_timeout: Duration,
    /// The TTL of a lease that was taken without one, by a client on Redis with a token of ours.
    pub default_ttl: Ttl,
    /// How long a claim that is away keeps its place in line.
    pub position_kept: Ttl,
}

/// Locks on one Redis.
pub struct RedisStore {
    node: Node,
    key_prefix: String,
    default_ttl: Ttl,
    position_kept: String,
    floor: FencingFloor,
    instance: String,
    wakeups: Arc<Wakeups>,
}

/// Why the store cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The URL is none.
    #[error("`store` is no URL of a Redis: {0}")]
    Url(#[from] redis::RedisError),
    /// The locks would lie among the records.
    #[error(
        "`redis.key_prefix` must not begin with `{SIDE_PREFIX}`, as the service's own records do"
    )]
    KeyPrefix,
}

impl RedisStore {
    /// The store of the settings. It connects in the background, and serves as soon as Redis is
    /// there.
    ///
    /// # Errors
    ///
    /// [`SettingsError`] names the setting that is wrong.
    pub fn new(settings: RedisSettings, metrics: Arc<Metrics>) -> Result<Self, SettingsError> {
        if settings.key_prefix.starts_with(SIDE_PREFIX) {
            return Err(SettingsError::KeyPrefix);
        }
        // Another part of the process may have chosen before; both are one and the same.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let instance = Uuid::new_v4().to_string();
        let wakeups = Arc::new(Wakeups::default());
        let rings = Rings { key_prefix: settings.key_prefix.clone(), wakeups: wakeups.clone() };
        let channel = format!("{SIDE_PREFIX}{instance}");
        Ok(Self {
            node: Node::new(&settings, channel, Arc::new(rings), metrics.clone())?,
            key_prefix: settings.key_prefix,
            default_ttl: settings.default_ttl,
            position_kept: settings.position_kept.as_millis().to_string(),
            floor: FencingFloor::new(metrics),
            instance,
            wakeups,
        })
    }

    fn keys(&self, key: &LockKey) -> Keys {
        Keys::of(&self.key_prefix, key)
    }

    /// Runs a script that may act at any time.
    async fn run(
        &self,
        script: &'static Script,
        key: &LockKey,
        args: &[&str],
    ) -> Result<Reply, StoreError> {
        let (keys, patience) = (self.keys(key), self.node.deadline());
        self.node.run(script, &keys.all(), args, patience).await
    }

    /// Runs a script that gives out a fencing token; what `rest` names follows its arguments.
    async fn run_fenced(
        &self,
        script: &'static Script,
        key: &LockKey,
        args: [&str; 4],
        rest: &[&str],
    ) -> Result<Reply, StoreError> {
        let floor = self.floor.least().to_string();
        let believable = latest_believable_micros().to_string();
        let [one, two, three, four] = args;
        let mut args = vec![one, two, three, four, &floor, &believable];
        args.extend_from_slice(rest);
        let (keys, patience) = (self.keys(key), self.node.deadline());
        self.node.run_in_time(script, &keys.all(), &args, patience).await
    }

    /// Runs a script that grants a claim.
    async fn run_claim(
        &self,
        script: &'static Script,
        claim: &Claim,
        rest: &[&str],
    ) -> Result<Reply, StoreError> {
        let ttl = claim.ttl.as_millis().to_string();
        let owner = claim.owner.as_ref().map_or("", Owner::as_str);
        let retention = (claim.ttl.as_millis() + millis(RETENTION)).to_string();
        let args = [claim.token.expose(), &ttl, owner, &retention];
        self.run_fenced(script, &claim.key, args, rest).await
    }

    /// Refreshes a lease; `care` is what a keeper knows of it.
    async fn run_refresh(
        &self,
        verb: Verb,
        key: &LockKey,
        token: &LeaseToken,
        (ttl, care): (Option<Ttl>, [&str; 2]),
    ) -> Result<Kept, StoreError> {
        let ttl = ttl.map_or_else(String::new, |ttl| ttl.as_millis().to_string());
        let default_ttl = self.default_ttl.as_millis().to_string();
        let retention = millis(RETENTION).to_string();
        let args = [token.expose(), &ttl, &default_ttl, &retention];
        let mut reply = self.run_fenced(&REFRESH, key, args, &care).await?;
        match reply.word() {
            "taken_over" => return Ok(Kept::TakenOver),
            "lost" => return Ok(Kept::Lost),
            _ => (),
        }
        let fencing_token = self.fencing_token(verb, &mut reply)?;
        let lease = refreshed(key, fencing_token, &mut reply);
        lease.map(Kept::Lease).ok_or_else(|| malformed(verb))
    }

    /// The lease that a reply grants.
    fn lease(&self, verb: Verb, claim: &Claim, reply: &mut Reply) -> Result<Lease, StoreError> {
        Ok(Lease {
            key: claim.key.clone(),
            owner: claim.owner.clone(),
            fencing_token: self.fencing_token(verb, reply)?,
            ttl: claim.ttl,
            renewals: renewals(reply).ok_or_else(|| malformed(verb))?,
        })
    }

    fn fencing_token(&self, verb: Verb, reply: &mut Reply) -> Result<FencingToken, StoreError> {
        let token = fencing_token(reply).ok_or_else(|| malformed(verb))?;
        self.floor.raise(token);
        Ok(token)
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RedisStore").field(&self.node).finish()
    }
}

#[async_trait]
impl Store for RedisStore {
    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, StoreError> {
        let mut reply = self.run_claim(&TRY_ACQUIRE, claim, &[]).await?;
        if reply.word() == "line" {
            // Nothing was done: whoever stands in line comes first, so it has to be looked at.
            let rest = ["", "0", &self.position_kept];
            reply = self.run_claim(&WAIT_TURN, claim, &rest).await?;
        }
        let verb = Verb::TryAcquire;
        match reply.word() {
            "granted" => self.lease(verb, claim, &mut reply).map(Attempt::Granted),
            "again" => self.lease(verb, claim, &mut reply).map(Attempt::Again),
            "held" => {
                let holder = holder(&mut reply).ok_or_else(|| malformed(verb))?;
                let waiters = reply.number().unwrap_or_default();
                Ok(Attempt::Held(status(&claim.key, Some(holder), waiters)))
            }
            _ => Err(malformed(verb)),
        }
    }

    async fn wait_turn(&self, claim: &Claim) -> Result<Turn, StoreError> {
        let rest = [&self.instance, WINDOW_MS, &self.position_kept];
        let mut reply = self.run_claim(&WAIT_TURN, claim, &rest).await?;
        let verb = Verb::WaitTurn;
        match reply.word() {
            "granted" => self.lease(verb, claim, &mut reply).map(Turn::Granted),
            "again" => self.lease(verb, claim, &mut reply).map(Turn::Again),
            "waiting" => waiting(&mut reply).map(Turn::Waiting).ok_or_else(|| malformed(verb)),
            _ => Err(malformed(verb)),
        }
    }

    async fn leave(&self, key: &LockKey, token: &LeaseToken, keep: Keep) -> Result<(), StoreError> {
        let kept = match keep {
            Keep::Place => &self.position_kept,
            Keep::Nothing => "0",
        };
        let args = [token.expose(), &self.instance, kept, &self.position_kept];
        self.run(&LEAVE, key, &args).await.map(|_| ())
    }

    fn listen(&self, key: &LockKey) -> Wakeup {
        self.wakeups.listen(key)
    }

    async fn refresh(
        &self,
        key: &LockKey,
        token: &LeaseToken,
        ttl: Option<Ttl>,
    ) -> Result<Option<Lease>, StoreError> {
        match self.run_refresh(Verb::Refresh, key, token, (ttl, ["", ""])).await? {
            Kept::Lease(lease) => Ok(Some(lease)),
            Kept::TakenOver | Kept::Lost => Ok(None),
        }
    }

    async fn keep(&self, holding: &Holding, ttl: Ttl) -> Result<Kept, StoreError> {
        let Holding { key, token, renewals } = holding;
        let known = renewals.number().to_string();
        self.run_refresh(Verb::Keep, key, token, (Some(ttl), [&known, ""])).await
    }

    async fn let_go(&self, holding: &Holding, linger: Option<Ttl>) -> Result<(), StoreError> {
        let Holding { key, token, renewals } = holding;
        let known = renewals.number().to_string();
        if linger.is_some() {
            let last_word = [known.as_str(), "1"];
            return self
                .run_refresh(Verb::LetGo, key, token, (linger, last_word))
                .await
                .map(|_| ());
        }
        let args = [token.expose(), &self.position_kept, &known];
        self.run(&RELEASE, key, &args).await.map(|_| ())
    }

    async fn release(&self, key: &LockKey, token: &LeaseToken) -> Result<Released, StoreError> {
        let args = [token.expose(), &self.position_kept, ""];
        let mut reply = self.run(&RELEASE, key, &args).await?;
        Ok(match reply.word() {
            "place" => Released::Place,
            "lease" => Released::Lease(Holder {
                fencing_token: fencing_token(&mut reply),
                owner: owner(&mut reply),
                left: None,
            }),
            _ => Released::Nothing,
        })
    }

    async fn undo(&self, key: &LockKey, token: &LeaseToken) -> Result<(), StoreError> {
        // A grant may still be on its way, on a connection that was lost or in a Redis that
        // stands still; none of them acts later than this.
        let settled_after = self.node.clock().now() + millis(self.node.deadline());
        for _ in 0..UNDO_TRIES {
            let args = [token.expose(), &self.position_kept, ""];
            let reply = self.run(&RELEASE, key, &args).await?;
            if reply.now > settled_after {
                return Ok(());
            }
            let left = Duration::from_millis(settled_after - reply.now + 1);
            sleep(left.min(self.node.deadline() * 2)).await;
        }
        Err(failure(Verb::Release, Effect::Unknown, "the clock of Redis stepped back"))
    }

    async fn force_release(&self, key: &LockKey) -> Result<Option<Holder>, StoreError> {
        let mut reply = self.run(&FORCE_RELEASE, key, &[&self.position_kept]).await?;
        match reply.word() {
            "taken" => holder(&mut reply).map(Some).ok_or_else(|| malformed(Verb::ForceRelease)),
            _ => Ok(None),
        }
    }

    async fn inspect(
        &self,
        key: &LockKey,
        token: Option<&LeaseToken>,
    ) -> Result<LockStatus, StoreError> {
        let asked = token.map_or("", LeaseToken::expose);
        let reply = self.run(&INSPECT, key, &[asked]).await;
        let mut reply = reply.map_err(|error| StoreError { effect: Effect::None, ..error })?;
        if reply.word() == "free" {
            let waiters = reply.number().unwrap_or_default();
            let free = status(key, None, waiters);
            return Ok(LockStatus { mine: token.map(|_| false), ..free });
        }
        let holder = holder(&mut reply).ok_or_else(|| malformed(Verb::Inspect))?;
        let held = status(key, Some(holder), reply.number().unwrap_or_default());
        let mine = reply.number() == Some(1);
        Ok(LockStatus { mine: token.map(|_| mine), ..held })
    }

    async fn list(&self, page: &Page) -> Result<Vec<LockStatus>, StoreError> {
        self.page(page).await
    }

    fn contacted(&self) -> bool {
        self.node.contacted()
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees {
            store: "redis",
            order: "first come, first served, among those who wait, across instances",
            fencing: "rises with every lease, over a loss of Redis' data and over a step of its \
                      clock; after both at once only while this process lives",
            survives: "crash and restart of the service; of Redis what its persistence keeps; not \
                       an asynchronous failover and not a step of Redis' clock: there the fencing \
                       token is the protection",
        }
    }
}
