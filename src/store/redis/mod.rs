//! Locks on Redis: for each verb its keys, its arguments, one script, and the reading of the reply.
//!
//! The lock is a plain string, `SET <key_prefix><key> <token> NX PX <ttl>`, so that the service and
//! applications on Redis directly exclude each other. Fencing token, TTL and owner are in one
//! record beside it, kept for a day after the lease.
//!
//! Every script but release recognizes a repeat by its token; the service never repeats an
//! unanswered release.

mod arguments;
mod beginning;
mod calls;
mod claims;
pub(in crate::store) mod clock;
mod cluster;
mod connect;
pub(in crate::store) mod deadline;
mod grants;
pub(in crate::store) mod keys;
mod leases;
pub(in crate::store) mod link;
pub(in crate::store) mod list;
pub(in crate::store) mod node;
mod place;
mod refusal;
mod replicas;
mod replies;
pub(in crate::store) mod rights;
pub(in crate::store) mod rings;
pub(in crate::store) mod script;
mod sentinel;
mod settings;
mod slots;
mod tls;
mod topology;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use async_trait::async_trait;
use uuid::Uuid;

use crate::lock::error::{Effect, StoreError, Verb};
use crate::lock::key::LockKey;
use crate::lock::lease::{Claim, Holder, LockStatus};
use crate::lock::store::{
    About, Answer, Ask, Condition, Ended, Keep, Listing, Page, Renewed, Store, Target,
};
use crate::lock::time::Ttl;
use crate::lock::token::{FencingToken, LeaseToken};
use crate::lock::wakeup::{Wakeup, Wakeups};
use crate::metrics::Metrics;
use crate::store::redis::arguments::{ForceReleaseArguments, InspectArguments};
use crate::store::redis::calls::Calls;
use crate::store::redis::clock::FencingFloor;
use crate::store::redis::deadline::When;
use crate::store::redis::keys::SIDE_PREFIX;
use crate::store::redis::list::{Listed, scan};
use crate::store::redis::node::NodeFactory;
use crate::store::redis::replies::{ended, forced, looked, malformed};
use crate::store::redis::rings::Rings;
use crate::store::redis::script::{FORCE_RELEASE, INSPECT, LEAVE, or_empty};
use crate::store::redis::topology::Topology;

pub use crate::store::redis::settings::{RedisSettings, SettingsError};
pub use crate::store::redis::tls::{NodeCertificates, NodeTls};

/// The most claims that one script takes out of a line: at most 5 ms of Redis' time.
const LEAVE_AT_ONCE: usize = 500;

/// The most leases of a key that a look names.
const MOST_NAMED: usize = 100;

/// Locks on one Redis, on the master that sentinels name, or on a Cluster.
pub struct RedisStore {
    calls: Calls,
    contacted: AtomicBool,
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
        let factory = NodeFactory {
            settings: settings.clone(),
            channel,
            hints: Arc::new(rings),
            metrics: metrics.clone(),
        };
        let calls = Calls {
            topology: Topology::new(factory)?,
            patience: settings.command_timeout,
            metrics: metrics.clone(),
            key_prefix: settings.key_prefix,
            default_ttl: settings.default_ttl,
            position_kept: settings.position_kept.as_millis().to_string(),
            prefixes: settings.prefixes,
            floor: FencingFloor::new(metrics),
            instance,
        };
        Ok(Self { calls, contacted: AtomicBool::new(false), wakeups })
    }

    /// Looks at a key, and tells so many claims of its line and so many of its leases at most.
    async fn look_at(
        &self,
        key: &LockKey,
        token: Option<&LeaseToken>,
        [claims, leases]: [usize; 2],
    ) -> Result<LockStatus, StoreError> {
        let arguments = InspectArguments {
            asked: token.map_or("", LeaseToken::expose).into(),
            most: claims.to_string().into(),
            most_leases: leases.to_string().into(),
        };
        let reply = self.calls.run(&INSPECT, key, &arguments.all(), When::AnyTime).await;
        let (mut reply, _) = reply.map_err(|error| StoreError { effect: Effect::None, ..error })?;
        let status = looked(key, &mut reply).ok_or_else(|| malformed(Verb::Inspect))?;
        Ok(LockStatus { mine: status.mine.filter(|_| token.is_some()), ..status })
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("RedisStore")
    }
}

#[async_trait]
impl Store for RedisStore {
    async fn ask(&self, claim: &Claim, ask: Ask) -> Result<Answer, StoreError> {
        claims::ask(&self.calls, claim, ask).await
    }

    async fn renew(&self, of: &Target, ttl: Option<Ttl>) -> Result<Renewed, StoreError> {
        leases::refresh(&self.calls, of, ttl).await
    }

    async fn end(&self, of: &Target) -> Result<Ended, StoreError> {
        match of.only {
            Condition::Unheard(receipt) => grants::end_unheard(&self.calls, of, receipt).await,
            Condition::Ever => grants::undo_all(&self.calls, of).await,
            _ => leases::release(&self.calls, of, None).await.map(|mut reply| ended(&mut reply)),
        }
    }

    async fn leave(&self, key: &LockKey, claims: &[(LeaseToken, Keep)]) -> Result<(), StoreError> {
        let kept = &self.calls.position_kept;
        for some in claims.chunks(LEAVE_AT_ONCE) {
            let when = self.calls.in_time(1);
            let mut args = vec![self.calls.instance.as_str(), kept];
            for (token, keep) in some {
                let kept = match keep {
                    Keep::Place => kept,
                    Keep::Nothing => "0",
                };
                args.extend([token.expose(), kept]);
            }
            self.calls.run(&LEAVE, key, &args, when).await?;
        }
        Ok(())
    }

    fn listen(&self, key: &LockKey) -> Wakeup {
        self.wakeups.listen(key)
    }

    async fn force_release(
        &self,
        key: &LockKey,
        named: Option<FencingToken>,
    ) -> Result<Vec<Holder>, StoreError> {
        let when = self.calls.in_time(1);
        let arguments = ForceReleaseArguments {
            named: or_empty(named).into(),
            keep: (&*self.calls.position_kept).into(),
        };
        let (mut reply, _) = self.calls.run(&FORCE_RELEASE, key, &arguments.all(), when).await?;
        Ok(forced(&mut reply))
    }

    async fn look(
        &self,
        key: &LockKey,
        token: Option<&LeaseToken>,
        most: usize,
    ) -> Result<LockStatus, StoreError> {
        self.look_at(key, token, [most, MOST_NAMED]).await
    }

    async fn list(&self, page: &Page) -> Result<Listing, StoreError> {
        self.page(page).await
    }

    fn contacted(&self) -> Result<(), String> {
        if !self.contacted.load(Ordering::Relaxed) {
            self.calls.topology.contacted()?;
            self.contacted.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    fn about(&self) -> About {
        let topology = &self.calls.topology;
        let (guarantees, began_empty) = (topology.guarantees(), topology.began_empty());
        About { guarantees, shared: true, nodes: Vec::new(), began_empty }
    }
}

#[async_trait]
impl Listed for RedisStore {
    async fn names(&self, page: &Page, wanted: usize) -> Result<BTreeSet<LockKey>, StoreError> {
        let until = Instant::now() + self.calls.patience;
        let mut first = BTreeSet::new();
        for node in &self.calls.topology.nodes(Verb::List, until).await? {
            first.append(&mut scan(node, &self.calls.key_prefix, page, wanted).await?);
        }
        Ok(first.into_iter().take(wanted).collect())
    }

    async fn status_of(&self, key: &LockKey) -> Result<LockStatus, StoreError> {
        self.look_at(key, None, [0, 0]).await
    }
}
