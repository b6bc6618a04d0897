//! Locks on N independent Redis nodes, by majority: Redlock, where the fencing number is the ballot.
//!
//! A verb is one script on each node, whose answers `poll.rs` counts. The rules are below; the
//! scripts and functions name them.
#![doc = include_str!("rules.md")]

mod attempt;
mod background;
mod cleanup;
mod context;
mod inspect;
mod nodes;
mod numbers;
pub mod operator;
mod peer;
mod poll;
mod queue;
mod refresh;
mod release;
mod settings;
mod tally;
mod watch;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use tokio_util::sync::DropGuard;

use crate::lock::error::{Effect, StoreError, Verb};
use crate::lock::key::LockKey;
use crate::lock::lease::{Claim, Holder, LockStatus, Origin};
use crate::lock::slots::Slots;
use crate::lock::store::{
    About, Answer, Ask, Condition, Ended, Guarantees, Keep, Listing, Page, Renewed, Store, Target,
};
use crate::lock::time::Ttl;
use crate::lock::token::{FencingToken, LeaseToken};
use crate::lock::wakeup::{Wakeup, Wakeups};
use crate::metrics::Metrics;
use crate::store::redis::SettingsError;
use crate::store::redis::list::Listed;
use crate::store::redis::node::Node;
use crate::store::redis::rings::Rings;
use crate::store::redlock::attempt::{Attempted, Position};
use crate::store::redlock::background::Background;
use crate::store::redlock::cleanup::Cleanup;
use crate::store::redlock::context::Context;
use crate::store::redlock::nodes::Nodes;
use crate::store::redlock::numbers::Numbers;
use crate::store::redlock::peer::Peer;
use crate::store::redlock::queue::Queues;
use crate::store::redlock::settings::{Machine, Time};
use crate::store::redlock::watch::{NodesView, Watch};

pub use crate::store::redlock::settings::{RedlockSettings, Restarted, Rules};

/// Finds the rights that a user lacks.
const RIGHTS: &str =
    concat!(include_str!("scripts/rights.lua"), include_str!("../redis/scripts/withheld.lua"));

/// The channel on which the nodes tell that a key was freed.
const FREED: &str = "lk//freed";

const GUARANTEES: Guarantees = Guarantees {
    store: "redlock",
    order: "first come, first served, among waiting requests of one instance; the instance nearest \
            to the nodes gets most turns",
    fencing: "rises with every lease, unless the clock of a node steps forward by more than a day; \
              after a loss of their data, if all clocks agree to within redlock.longest_lease",
    survives: "crash and restart of the service; the loss of any number of nodes, and their return \
               without their data, after which they wait for redlock.longest_lease; not a step \
               forward of a node's clock, where the fencing token protects",
    sharing: "exclusive leases only: a count over a majority of nodes is none",
    most_slots: Slots::ALONE,
    forced_by_number: true,
};

/// Locks on several Redis nodes.
pub struct RedlockStore {
    at: Context,
    contacted: AtomicBool,
    wakeups: Arc<Wakeups>,
    /// Ends the tasks.
    _end: DropGuard,
}

impl RedlockStore {
    /// Makes the store. It connects in the background, and serves as soon as enough nodes vote.
    ///
    /// # Errors
    ///
    /// [`SettingsError`] names the setting that is wrong.
    ///
    /// # Panics
    ///
    /// Without a node.
    pub fn new(settings: RedlockSettings, metrics: Arc<Metrics>) -> Result<Self, SettingsError> {
        let wakeups = Arc::new(Wakeups::default());
        let peers = peers(&settings, &wakeups, &metrics)?;
        Ok(Self::over(peers, &settings, (Arc::new(Machine), wakeups), metrics))
    }

    /// Makes the store over these nodes and clocks.
    fn over(
        peers: Vec<Arc<dyn Peer>>,
        settings: &RedlockSettings,
        (time, wakeups): (Arc<dyn Time>, Arc<Wakeups>),
        metrics: Arc<Metrics>,
    ) -> Self {
        let first = &settings.nodes[0];
        let (background, end) = Background::new();
        let nodes = Arc::new(Nodes::new(peers, settings, Some(background.clone())));
        let view = Arc::new(NodesView::default());
        let watch = Watch {
            nodes: nodes.clone(),
            patience: first.command_timeout,
            longest_lease: settings.rules.longest_lease.as_duration(),
            view: view.clone(),
            metrics: metrics.clone(),
        };
        background.spawn(watch.watch());
        let at = Context {
            cleanup: Cleanup::new(nodes.clone(), background),
            queues: Queues::new(first.position_kept),
            default_ttl: first.default_ttl,
            prefixes: first.prefixes.clone(),
            numbers: Numbers::new(metrics.clone()),
            rules: settings.rules,
            nodes,
            time,
            metrics,
            view,
        };
        Self { at, contacted: AtomicBool::new(false), wakeups, _end: end }
    }
}

/// Connects to the nodes of the settings.
fn peers(
    settings: &RedlockSettings,
    wakeups: &Arc<Wakeups>,
    metrics: &Arc<Metrics>,
) -> Result<Vec<Arc<dyn Peer>>, SettingsError> {
    let mut peers: Vec<Arc<dyn Peer>> = Vec::new();
    // All are checked before any is connected to and appears in the log.
    settings.nodes.iter().try_for_each(Node::check)?;
    for node in &settings.nodes {
        let key_prefix = node.checked_key_prefix()?.to_owned();
        let rings = Arc::new(Rings { key_prefix, wakeups: wakeups.clone() });
        peers.push(Arc::new(Node::new(node, FREED.to_owned(), rings, metrics.clone(), RIGHTS)?));
    }
    Ok(peers)
}

impl RedlockStore {
    /// Asks for a claim that does not wait.
    async fn ask_once(&self, claim: &Claim) -> Result<Answer, StoreError> {
        if claim.named.is_none() && self.at.queues.is_behind_others(&claim.key, &claim.token) {
            let status = inspect::look(&self.at, &claim.key, Some(&claim.token)).await;
            let status = status.map_err(|error| {
                StoreError { verb: Verb::TryAcquire, ..error }.of_claim(claim.origin)
            })?;
            match status.mine {
                Some(true) => (),
                Some(false) => return Ok(Answer::Held(status)),
                None => return Err(StoreError::unsure(Verb::TryAcquire).of_claim(claim.origin)),
            }
        }
        match attempt::contend(&self.at, claim, Position::NotInLine).await? {
            Attempted::Answered(answer) => {
                self.at.queues.drop(&claim.key, &claim.token);
                Ok(answer)
            }
            Attempted::Lost(poll) => Ok(Answer::Held(inspect::rival(&self.at, &claim.key, &poll))),
        }
    }

    /// Asks for a claim in the line of this instance.
    async fn ask_in_line(&self, claim: &Claim) -> Result<Answer, StoreError> {
        let (key, token) = (&claim.key, &claim.token);
        let mut waiting = self.at.queues.join(claim);
        if waiting.ahead > 0 {
            return Ok(Answer::Waiting(waiting));
        }
        let behind = self.at.queues.len(key).saturating_sub(1);
        match attempt::contend(&self.at, claim, Position::First { behind }).await {
            Ok(Attempted::Answered(answer)) => {
                self.at.queues.drop(key, token);
                Ok(answer)
            }
            Ok(Attempted::Lost(poll)) => {
                waiting.recheck_after = inspect::recheck_after(&poll);
                waiting.lasts = poll.left().filter(|_| poll.held()).unwrap_or_default();
                Ok(Answer::Waiting(waiting))
            }
            Err(error) if waiting.new => {
                // Its caller is told and does not ask again, so the claim is removed here.
                self.at.queues.drop(key, token);
                Err(error)
            }
            Err(error) => Err(in_doubt(error)),
        }
    }

    /// Ends a client's lease on all nodes, or gives up its place in the line of this instance.
    async fn release(&self, of: &Target) -> Result<Ended, StoreError> {
        let had_place = of.number.is_none() && self.at.queues.drop(&of.key, &of.token);
        let released = release::release_all(&self.at, of).await;
        self.wakeups.ring(&of.key);
        match released? {
            Ended::Nothing(_) if had_place => Ok(Ended::Place),
            released => Ok(released),
        }
    }
}

/// The failure of a call after an earlier call with its token.
fn in_doubt(error: StoreError) -> StoreError {
    StoreError { effect: Effect::Unknown, ..error }
}

/// A random pause of at most `most`.
fn by_chance(most: Duration) -> Duration {
    most.mul_f64(fastrand::f64())
}

impl fmt::Debug for RedlockStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedlockStore").field("nodes", &self.at.quorum().nodes()).finish()
    }
}

#[async_trait]
impl Store for RedlockStore {
    async fn ask(&self, claim: &Claim, ask: Ask) -> Result<Answer, StoreError> {
        match ask {
            Ask::InLine(_) if claim.named.is_none() => self.ask_in_line(claim).await,
            _ => self.ask_once(claim).await,
        }
    }

    async fn renew(&self, of: &Target, ttl: Option<Ttl>) -> Result<Renewed, StoreError> {
        refresh::refresh_all(&self.at, of, ttl).await
    }

    async fn end(&self, of: &Target) -> Result<Ended, StoreError> {
        match of.only {
            Condition::Unheard(receipt) if receipt.origin == Origin::Client => {
                release::take_back(&self.at, of, &receipt).await
            }
            Condition::Unheard(_) | Condition::Ever => {
                release::undo_all(&self.at, &of.key, &of.token).await
            }
            Condition::Kept | Condition::LetGo { .. } => release::release_all(&self.at, of).await,
            Condition::Any => self.release(of).await,
        }
    }

    async fn leave(&self, key: &LockKey, claims: &[(LeaseToken, Keep)]) -> Result<(), StoreError> {
        for (token, keep) in claims {
            self.at.queues.leave(key, token, *keep);
        }
        // It may have been first in line.
        self.wakeups.ring(key);
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
        release::force_release_all(&self.at, key, named).await
    }

    async fn look(
        &self,
        key: &LockKey,
        token: Option<&LeaseToken>,
        most: usize,
    ) -> Result<LockStatus, StoreError> {
        let status = inspect::look(&self.at, key, token).await?;
        Ok(LockStatus { line: self.at.queues.first(key, most), ..status })
    }

    async fn list(&self, page: &Page) -> Result<Listing, StoreError> {
        self.page(page).await
    }

    fn contacted(&self) -> Result<(), String> {
        if !self.contacted.load(Ordering::Relaxed) {
            self.at.view.serves(self.at.quorum())?;
            self.contacted.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    fn about(&self) -> About {
        let nodes = self.at.view.report(&self.at.nodes);
        About { guarantees: GUARANTEES, shared: true, nodes, began_empty: None }
    }
}

#[async_trait]
impl Listed for RedlockStore {
    async fn names(&self, page: &Page, wanted: usize) -> Result<BTreeSet<LockKey>, StoreError> {
        inspect::names(&self.at, page, wanted).await
    }

    async fn status_of(&self, key: &LockKey) -> Result<LockStatus, StoreError> {
        inspect::look(&self.at, key, None).await
    }
}
