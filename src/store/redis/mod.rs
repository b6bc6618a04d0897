//! Locks on one Redis: a verb is its keys, its arguments, one script, and how the reply is read.
//!
//! The lock is a plain string, `SET <key_prefix><key> <token> NX PX <ttl>`, so that applications
//! that lock on Redis directly exclude the service's clients and are excluded by them. Fencing
//! token, TTL and owner stand in one record beside it, kept for a day after the lease.
//!
//! What may be repeated: every script but release tells a repeat from the first by the token; a
//! release that was answered by nobody is not repeated by the service.

mod clock;
mod keys;
mod list;
mod node;
mod script;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use tokio::time::sleep;

use crate::lock::error::Effect;
use crate::lock::error::StoreError;
use crate::lock::error::Verb;
use crate::lock::key::LockKey;
use crate::lock::lease::Claim;
use crate::lock::lease::Holder;
use crate::lock::lease::Lease;
use crate::lock::lease::LockStatus;
use crate::lock::lease::Owner;
use crate::lock::store::Attempt;
use crate::lock::store::Guarantees;
use crate::lock::store::Page;
use crate::lock::store::Released;
use crate::lock::store::Store;
use crate::lock::time::Ttl;
use crate::lock::token::FencingToken;
use crate::lock::token::LeaseToken;
use crate::metrics::Metrics;
use crate::store::redis::clock::FencingFloor;
use crate::store::redis::clock::latest_believable_micros;
use crate::store::redis::keys::Keys;
use crate::store::redis::keys::RECORD_PREFIX;
use crate::store::redis::node::Node;
use crate::store::redis::node::failure;
use crate::store::redis::node::millis;
use crate::store::redis::script::FORCE_RELEASE;
use crate::store::redis::script::INSPECT;
use crate::store::redis::script::REFRESH;
use crate::store::redis::script::RELEASE;
use crate::store::redis::script::Reply;
use crate::store::redis::script::Script;
use crate::store::redis::script::TRY_ACQUIRE;

/// How long the last fencing token of a key is kept beyond its lease: longer than any step of a
/// clock that nobody notices. A key that is not used for so long costs nothing any more.
const RETENTION: Duration = Duration::from_secs(24 * 60 * 60);

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
}

/// Locks on one Redis.
pub struct RedisStore {
    node: Node,
    key_prefix: String,
    default_ttl: Ttl,
    floor: FencingFloor,
}

/// Why the store cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The URL is none.
    #[error("`store` is no URL of a Redis: {0}")]
    Url(#[from] redis::RedisError),
    /// The locks would lie among the records.
    #[error(
        "`redis.key_prefix` must not begin with `{RECORD_PREFIX}`, as the service's own records do"
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
        if settings.key_prefix.starts_with(RECORD_PREFIX) {
            return Err(SettingsError::KeyPrefix);
        }
        // Another part of the process may have chosen before; both are one and the same.
        let _ = rustls::crypto::ring::default_provider().install_default();
        Ok(Self {
            node: Node::new(&settings, metrics.clone())?,
            key_prefix: settings.key_prefix,
            default_ttl: settings.default_ttl,
            floor: FencingFloor::new(metrics),
        })
    }

    fn keys(&self, key: &LockKey) -> Keys {
        Keys::of(&self.key_prefix, key)
    }

    /// Runs a script that gives out a fencing token.
    async fn run_fenced(
        &self,
        script: &'static Script,
        key: &LockKey,
        args: [&str; 4],
    ) -> Result<Reply, StoreError> {
        let floor = self.floor.least().to_string();
        let believable = latest_believable_micros().to_string();
        let [one, two, three, four] = args;
        let args = [one, two, three, four, &floor, &believable];
        self.node.run_in_time(script, &self.keys(key), &args).await
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
        let ttl = claim.ttl.as_millis().to_string();
        let owner = claim.owner.as_ref().map_or("", Owner::as_str);
        let retention = (claim.ttl.as_millis() + millis(RETENTION)).to_string();
        let args = [claim.token.expose(), &ttl, owner, &retention];
        let mut reply = self.run_fenced(&TRY_ACQUIRE, &claim.key, args).await?;
        if reply.word() == "held" {
            let holder = holder(&mut reply).ok_or_else(|| malformed(Verb::TryAcquire))?;
            return Ok(Attempt::Held(status(&claim.key, Some(holder), None)));
        }
        let lease = Lease {
            key: claim.key.clone(),
            owner: claim.owner.clone(),
            fencing_token: self.fencing_token(Verb::TryAcquire, &mut reply)?,
            ttl: claim.ttl,
        };
        match reply.word() {
            "granted" => Ok(Attempt::Granted(lease)),
            "again" => Ok(Attempt::Again(lease)),
            _ => Err(malformed(Verb::TryAcquire)),
        }
    }

    async fn refresh(
        &self,
        key: &LockKey,
        token: &LeaseToken,
        ttl: Option<Ttl>,
    ) -> Result<Option<Lease>, StoreError> {
        let ttl = ttl.map_or_else(String::new, |ttl| ttl.as_millis().to_string());
        let default_ttl = self.default_ttl.as_millis().to_string();
        let retention = millis(RETENTION).to_string();
        let args = [token.expose(), &ttl, &default_ttl, &retention];
        let mut reply = self.run_fenced(&REFRESH, key, args).await?;
        if reply.word() == "lost" {
            return Ok(None);
        }
        let fencing_token = self.fencing_token(Verb::Refresh, &mut reply)?;
        let ttl = reply.number().and_then(|ms| u64::try_from(ms).ok());
        let ttl = Ttl::from_millis(ttl.ok_or_else(|| malformed(Verb::Refresh))?);
        Ok(Some(Lease { key: key.clone(), owner: owner(&mut reply), fencing_token, ttl }))
    }

    async fn release(&self, key: &LockKey, token: &LeaseToken) -> Result<Released, StoreError> {
        let mut reply = self.node.run(&RELEASE, &self.keys(key), &[token.expose()]).await?;
        Ok(match reply.word() {
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
            let reply = self.node.run(&RELEASE, &self.keys(key), &[token.expose()]).await?;
            if reply.now > settled_after {
                return Ok(());
            }
            let left = Duration::from_millis(settled_after - reply.now + 1);
            sleep(left.min(self.node.deadline() * 2)).await;
        }
        Err(failure(Verb::Release, Effect::Unknown, "the clock of Redis stepped back"))
    }

    async fn force_release(&self, key: &LockKey) -> Result<Option<Holder>, StoreError> {
        let mut reply = self.node.run(&FORCE_RELEASE, &self.keys(key), &[]).await?;
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
        let reply = self.node.run(&INSPECT, &self.keys(key), &[asked]).await;
        let mut reply = reply.map_err(|error| StoreError { effect: Effect::None, ..error })?;
        if reply.word() == "free" {
            return Ok(status(key, None, token.map(|_| false)));
        }
        let holder = holder(&mut reply).ok_or_else(|| malformed(Verb::Inspect))?;
        let mine = reply.number() == Some(1);
        Ok(status(key, Some(holder), token.map(|_| mine)))
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
            order: "none: whoever asks first after the end of a lease has it",
            fencing: "rises with every lease, over a loss of Redis' data and over a step of its \
                      clock; after both at once only while this process lives",
            survives: "crash and restart of the service; of Redis what its persistence keeps; not \
                       an asynchronous failover and not a step of Redis' clock: there the fencing \
                       token is the protection",
        }
    }
}

fn status(key: &LockKey, holder: Option<Holder>, mine: Option<bool>) -> LockStatus {
    LockStatus { key: key.clone(), holder, waiters: 0, mine }
}

/// Reads milliseconds left, fencing token and owner.
fn holder(reply: &mut Reply) -> Option<Holder> {
    // A lock without an end, of a client on Redis, has -1 left.
    let left = u64::try_from(reply.number()?).ok().map(Duration::from_millis);
    Some(Holder { left, fencing_token: fencing_token(reply), owner: owner(reply) })
}

fn fencing_token(reply: &mut Reply) -> Option<FencingToken> {
    FencingToken::from_number(reply.number()?.try_into().ok()?)
}

fn owner(reply: &mut Reply) -> Option<Owner> {
    Owner::parse(&reply.text()?).ok()?
}

fn malformed(verb: Verb) -> StoreError {
    failure(verb, Effect::Unknown, "an answer of unknown form")
}
