//! Locks on Redis: for each verb its keys, its arguments, one script, and the reading of the reply.
//!
//! The lock is a plain string, `SET <key_prefix><key> <token> NX PX <ttl>`, so that the service and
//! applications on Redis directly exclude each other. Fencing token, TTL and owner are in one
//! record beside it, kept for a day after the lease.
//!
//! Every script but release recognizes a repeat by its token; the service never repeats an
//! unanswered release.

pub(in crate::store) mod clock;
mod cluster;
mod connect;
mod grants;
pub(in crate::store) mod keys;
pub(in crate::store) mod link;
pub(in crate::store) mod list;
pub(in crate::store) mod node;
mod place;
mod refusal;
mod replicas;
mod replies;
pub(in crate::store) mod rings;
pub(in crate::store) mod script;
mod sentinel;
mod settings;
mod slots;
mod topology;

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_trait::async_trait;
use uuid::Uuid;

use crate::lock::error::{Effect, StoreError, Verb};
use crate::lock::key::LockKey;
use crate::lock::lease::{Claim, Holder, Holding, Lease, LockStatus, Owner};
use crate::lock::store::{Attempt, Guarantees, Keep, Kept, Page, Released, Store, Turn};
use crate::lock::time::{Ttl, Uptime};
use crate::lock::token::{FencingToken, LeaseToken};
use crate::lock::wakeup::{Wakeup, Wakeups};
use crate::metrics::Metrics;
use crate::store::redis::clock::{FencingFloor, latest_believable_micros, millis};
use crate::store::redis::grants::told;
use crate::store::redis::keys::{Keys, SIDE_PREFIX};
use crate::store::redis::list::Listed;
use crate::store::redis::node::{Call, Node, Nodes, When};
use crate::store::redis::replies::{
    fencing_token, holder, malformed, owner, refreshed, status, waiting,
};
use crate::store::redis::rings::Rings;
use crate::store::redis::script::{
    FORCE_RELEASE, INSPECT, LEAVE, REFRESH, RELEASE, Reply, Script, TRY_ACQUIRE, WAIT_TURN,
};
use crate::store::redis::topology::Topology;

pub use crate::store::redis::settings::{RedisSettings, SettingsError};

/// The time that a key's last fencing token outlives its lease: longer than any unnoticed clock
/// step. After it, an unused key costs nothing.
pub(in crate::store) const RETENTION: Duration = Duration::from_secs(24 * 60 * 60);

/// The time that the waiters of a dead instance may hold up the line. Each question of an instance
/// moves this window, so it must be several times their longest sleep.
const WINDOW_MS: &str = "3000";

/// The most claims that one script takes out of a line: at most 5 ms of Redis' time.
const LEAVE_AT_ONCE: usize = 500;

/// Locks on one Redis, on the master that sentinels name, or on a Cluster.
pub struct RedisStore {
    topology: Topology,
    patience: Duration,
    metrics: Arc<Metrics>,
    key_prefix: String,
    default_ttl: Ttl,
    position_kept: String,
    floor: FencingFloor,
    instance: String,
    wakeups: Arc<Wakeups>,
}

impl RedisStore {
    /// Makes the store. It connects in the background, and serves as soon as Redis answers.
    ///
    /// # Errors
    ///
    /// [`SettingsError`] names the setting that is wrong.
    pub fn new(settings: RedisSettings, metrics: Arc<Metrics>) -> Result<Self, SettingsError> {
        settings.checked_key_prefix()?;
        // Another part of the process may have installed the same provider before.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let instance = Uuid::new_v4().to_string();
        let wakeups = Arc::new(Wakeups::default());
        let rings = Rings { key_prefix: settings.key_prefix.clone(), wakeups: wakeups.clone() };
        let channel = format!("{SIDE_PREFIX}{instance}");
        let (hints, patience) = (Arc::new(rings), settings.command_timeout);
        let nodes = Nodes { settings: settings.clone(), channel, hints, metrics: metrics.clone() };
        Ok(Self {
            topology: Topology::new(nodes)?,
            patience,
            metrics: metrics.clone(),
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
        let keys = self.keys(key);
        let call = Call { script, keys: &keys.all(), args, when: When::AnyTime };
        self.topology.call(&call, self.patience).await.map(|(reply, _)| reply)
    }

    /// Runs a script that draws a fencing token; `rest` follows its common arguments.
    async fn run_fenced(
        &self,
        script: &'static Script,
        key: &LockKey,
        args: [&str; 4],
        rest: &[&str],
    ) -> Result<(Reply, Arc<Node>), StoreError> {
        let floor = self.floor.least().to_string();
        let believable = latest_believable_micros().to_string();
        let [one, two, three, four] = args;
        let mut args = vec![one, two, three, four, &floor, &believable];
        args.extend_from_slice(rest);
        let keys = self.keys(key);
        let call = Call { script, keys: &keys.all(), args: &args, when: When::InTime };
        self.topology.call(&call, self.patience).await
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
        let began = Instant::now();
        let answered = self.run_fenced(script, &claim.key, args, rest).await;
        let answered = answered.map_err(|error| error.of_claim(claim.origin))?;
        self.replicated(script, claim, &answered, began).await?;
        Ok(answered.0)
    }

    /// Refreshes a lease; `meant` is its fencing token, the renewals that its keeper knows, and a
    /// flag for the keeper's last word; each may be empty.
    async fn run_refresh(
        &self,
        verb: Verb,
        (key, token): (&LockKey, &LeaseToken),
        ttl: Option<Ttl>,
        meant: [&str; 3],
    ) -> Result<Kept, StoreError> {
        let ttl = ttl.map_or_else(String::new, |ttl| ttl.as_millis().to_string());
        let default_ttl = self.default_ttl.as_millis().to_string();
        let retention = millis(RETENTION).to_string();
        let args = [token.expose(), &ttl, &default_ttl, &retention];
        let asked = Uptime::now();
        let (mut reply, _) = self.run_fenced(&REFRESH, key, args, &meant).await?;
        match reply.word() {
            "taken_over" => return Ok(Kept::TakenOver),
            "lost" => return Ok(Kept::Lost),
            _ => (),
        }
        let fencing_token = self.fencing_token(verb, &mut reply)?;
        let lease = refreshed(key, fencing_token, &mut reply).ok_or_else(|| malformed(verb))?;
        told(verb, lease, asked).map(Kept::Lease)
    }

    fn fencing_token(&self, verb: Verb, reply: &mut Reply) -> Result<FencingToken, StoreError> {
        let token = fencing_token(reply).ok_or_else(|| malformed(verb))?;
        self.floor.raise(token);
        Ok(token)
    }
}

/// A fencing token as an argument of a script; empty for `None`.
pub(in crate::store) fn number_or_empty(named: Option<FencingToken>) -> String {
    named.map_or_else(String::new, |named| named.to_string())
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RedisStore").field(&self.topology).finish()
    }
}

#[async_trait]
impl Store for RedisStore {
    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, StoreError> {
        let asked = Uptime::now();
        let mut reply = self.run_claim(&TRY_ACQUIRE, claim, &[]).await?;
        if reply.word() == "line" {
            // Nothing was done: claims in line come first, which `wait_turn` decides.
            let rest = ["", "0", &self.position_kept, ""];
            reply = self.run_claim(&WAIT_TURN, claim, &rest).await?;
        }
        let verb = Verb::TryAcquire;
        match reply.word() {
            "granted" => self.lease(verb, claim, asked, &mut reply).map(Attempt::Granted),
            "again" => self.lease(verb, claim, asked, &mut reply).map(Attempt::Again),
            "held" => {
                let holder = holder(&mut reply).ok_or_else(|| malformed(verb))?;
                let waiters = reply.number().unwrap_or_default();
                Ok(Attempt::Held(status(&claim.key, Some(holder), waiters)))
            }
            _ => Err(malformed(verb)),
        }
    }

    async fn wait_turn(&self, claim: &Claim, stood: Option<u64>) -> Result<Turn, StoreError> {
        let stood = stood.map_or_else(String::new, |place| place.to_string());
        let rest = [&self.instance, WINDOW_MS, &self.position_kept, &stood];
        let asked = Uptime::now();
        let mut reply = self.run_claim(&WAIT_TURN, claim, &rest).await?;
        let verb = Verb::WaitTurn;
        match reply.word() {
            "granted" => self.lease(verb, claim, asked, &mut reply).map(Turn::Granted),
            "again" => self.lease(verb, claim, asked, &mut reply).map(Turn::Again),
            "waiting" => waiting(&mut reply).map(Turn::Waiting).ok_or_else(|| malformed(verb)),
            "gone" => Ok(Turn::Gone),
            _ => Err(malformed(verb)),
        }
    }

    async fn leave(&self, key: &LockKey, claims: &[(LeaseToken, Keep)]) -> Result<(), StoreError> {
        for some in claims.chunks(LEAVE_AT_ONCE) {
            let mut args = vec![self.instance.as_str(), &self.position_kept];
            for (token, keep) in some {
                let kept = match keep {
                    Keep::Place => &self.position_kept,
                    Keep::Nothing => "0",
                };
                args.extend([token.expose(), kept]);
            }
            self.run(&LEAVE, key, &args).await?;
        }
        Ok(())
    }

    fn listen(&self, key: &LockKey) -> Wakeup {
        self.wakeups.listen(key)
    }

    async fn refresh(
        &self,
        key: &LockKey,
        token: &LeaseToken,
        named: Option<FencingToken>,
        ttl: Option<Ttl>,
    ) -> Result<Option<Lease>, StoreError> {
        let meant = [&number_or_empty(named), "", ""];
        self.run_refresh(Verb::Refresh, (key, token), ttl, meant).await.map(Kept::lease)
    }

    async fn keep(&self, holding: &Holding, ttl: Ttl) -> Result<Kept, StoreError> {
        let Holding { key, token, fencing_token, renewals } = holding;
        let (named, known) = (fencing_token.to_string(), renewals.number().to_string());
        self.run_refresh(Verb::Keep, (key, token), Some(ttl), [&named, &known, ""]).await
    }

    async fn let_go(&self, holding: &Holding, linger: Option<Ttl>) -> Result<(), StoreError> {
        let Holding { key, token, fencing_token, renewals } = holding;
        let (named, known) = (fencing_token.to_string(), renewals.number().to_string());
        if linger.is_some() {
            let meant = [named.as_str(), &known, "1"];
            return self.run_refresh(Verb::LetGo, (key, token), linger, meant).await.map(drop);
        }
        let args = [token.expose(), &self.position_kept, &named, &known, &self.instance];
        self.run(&RELEASE, key, &args).await.map(drop)
    }

    async fn release(
        &self,
        key: &LockKey,
        token: &LeaseToken,
        named: Option<FencingToken>,
    ) -> Result<Released, StoreError> {
        let named = number_or_empty(named);
        let args = [token.expose(), &self.position_kept, &named, "", &self.instance];
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
        self.take_back(key, token).await
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
        self.topology.contacted()
    }

    fn guarantees(&self) -> Guarantees {
        self.topology.guarantees()
    }
}
