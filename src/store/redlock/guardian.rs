//! One instance's care for who may vote: it reads the guards, and does what [`Watch`] finds.

use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::Notify;
use uuid::Uuid;

use crate::lock::error::Verb;
use crate::metrics::Metrics;
use crate::store::redis::keys::SIDE_PREFIX;
use crate::store::redis::script::script;
use crate::store::redlock::Time;
use crate::store::redlock::guard::Change;
use crate::store::redlock::guard::Guard;
use crate::store::redlock::guard::Plan;
use crate::store::redlock::guard::Rules;
use crate::store::redlock::guard::Seen;
use crate::store::redlock::guard::State;
use crate::store::redlock::guard::Watch;
use crate::store::redlock::nodes::Nodes;
use crate::store::redlock::nodes::natural;

script!(TOUCH, Verb::Guard, 1: "prelude.lua" "touch.lua");
script!(CHANGE, Verb::Guard, 1: "prelude.lua" "change.lua");
script!(LOOK, Verb::Guard, 1: "prelude.lua" "look.lua");

/// Between two readings while all nodes vote, at most; half of it at least.
const CALM: Duration = Duration::from_secs(1);

/// The same while some do not.
const BUSY: Duration = Duration::from_millis(100);

/// How long a walk over the locks of a node may take: some ten million of them.
const LOOK_PATIENCE: Duration = Duration::from_secs(30);

/// Watches over the nodes, for one instance.
pub(super) struct Guardian {
    pub(super) nodes: Arc<Nodes>,
    pub(super) time: Arc<dyn Time>,
    pub(super) patience: Duration,
    pub(super) view: Arc<View>,
    pub(super) metrics: Arc<Metrics>,
}

/// What the guardian has seen last; nothing before its first look.
#[derive(Default)]
pub(super) struct View {
    guards: Mutex<Vec<Option<Guard>>>,
    /// Somebody wants it to look at once.
    pub(super) nudged: Notify,
}

impl View {
    /// Whether there was a first look.
    pub(super) fn has_looked(&self) -> bool {
        !self.guards.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    /// How many nodes vote in one set.
    pub(super) fn voting(&self) -> usize {
        let guards = self.guards.lock().unwrap_or_else(PoisonError::into_inner);
        let voting = || guards.iter().flatten().filter(|guard| guard.state == State::Voting);
        let sets = voting().map(|one| voting().filter(|other| other.set() == one.set()).count());
        sets.max().unwrap_or_default()
    }

    /// Two nodes that are one and the same Redis, which would have two votes.
    pub(super) fn twins(&self) -> Option<(usize, usize)> {
        let guards = self.guards.lock().unwrap_or_else(PoisonError::into_inner);
        let known =
            || guards.iter().enumerate().filter_map(|(node, guard)| Some((node, guard.as_ref()?)));
        known().find_map(|(node, guard)| {
            let twin = known().find(|(other, known)| *other < node && *known == guard);
            twin.map(|(other, _)| (other, node))
        })
    }

    fn put(&self, guards: Vec<Option<Guard>>) {
        *self.guards.lock().unwrap_or_else(PoisonError::into_inner) = guards;
    }
}

impl Guardian {
    /// Watches for as long as it is let.
    pub(super) async fn watch(self, rules: Rules) {
        let mut watch = Watch::new(self.nodes.quorum(), rules);
        let mut voted = 0;
        loop {
            let guards = self.touch().await;
            self.view.put(guards.clone());
            if let Some((one, other)) = self.view.twins() {
                let (one, other) = (self.nodes.peer(one).name(), self.nodes.peer(other).name());
                tracing::error!(one, other, "two nodes are the same Redis: each needs its own");
                tokio::time::sleep(CALM).await;
                continue;
            }
            let nonce = Uuid::new_v4().simple().to_string();
            let changed = match watch.plan(self.time.monotonic(), &guards, &nonce) {
                Plan::Begin { first, then } => {
                    self.change_all(&first).await && self.change_all(&then).await
                }
                Plan::Tend { changes, look_for } => {
                    for node in look_for {
                        let peers = self.look_at_others(node, &guards).await;
                        watch.looked(self.time.monotonic(), node, &peers);
                    }
                    !changes.is_empty() && self.change_all(&changes).await
                }
            };
            if changed {
                continue;
            }
            let voting = self.view.voting();
            self.metrics.redlock_voting(voting);
            if voting != voted {
                tracing::info!(voting, nodes = self.nodes.quorum().nodes(), "nodes that vote");
                voted = voting;
            }
            let calm = voting == self.nodes.quorum().nodes();
            let pause = if calm { CALM } else { BUSY };
            let pause = pause / 2 + pause.mul_f64(fastrand::f64() / 2.0);
            tokio::select! {
                biased; // In an order, so that a simulated run can be repeated.
                () = tokio::time::sleep(pause) => (),
                () = self.view.nudged.notified(), if calm => (),
            }
        }
    }

    /// Reads all guards; a node without one gets one.
    async fn touch(&self) -> Vec<Option<Guard>> {
        let touched = (0..self.nodes.quorum().nodes()).map(|node| async move {
            let nonce = Uuid::new_v4().simple().to_string();
            let args = [nonce.as_str()];
            let mut reply = self.nodes.ask_guard(node, &TOUCH, &args, self.patience).await.ok()?;
            Guard::parse(&reply.text()?)
        });
        join_all(touched).await
    }

    /// Makes these changes; whether all were made.
    async fn change_all(&self, changes: &[Change]) -> bool {
        let made = changes.iter().map(|change| change_one(&self.nodes, change, self.patience));
        join_all(made).await.into_iter().all(|made| made)
    }

    /// Walks over the locks of all voting nodes but one.
    async fn look_at_others(&self, node: usize, guards: &[Option<Guard>]) -> Vec<Seen> {
        let votes = |other: &usize| {
            guards[*other].as_ref().is_some_and(|guard| guard.state == State::Voting)
        };
        let others = (0..guards.len()).filter(|&other| other != node).filter(votes);
        let looks = others.map(|other| look(&self.nodes, other, self.patience));
        join_all(looks).await.into_iter().flatten().collect()
    }
}

/// Changes a guard if nothing has happened to it; whether it did.
pub(super) async fn change_one(nodes: &Nodes, change: &Change, patience: Duration) -> bool {
    let (before, after) = (change.before.to_string(), change.after.to_string());
    let made = nodes.ask_guard(change.node, &CHANGE, &[&before, &after], patience).await;
    made.is_ok_and(|reply| reply.word() == "changed")
}

/// How long the longest lock of a voting node still lives, and the highest fencing token there.
///
/// The walk is not one step, so it counts only if the node's guard was the same throughout.
pub(super) async fn look(nodes: &Nodes, node: usize, patience: Duration) -> Option<Seen> {
    let walk = async {
        let (mut cursor, mut guard) = ("0".to_owned(), None);
        let (mut longest, mut highest) = (0, 0);
        loop {
            let args = [&*cursor, nodes.key_prefix(), SIDE_PREFIX];
            let mut reply = nodes.ask_guard(node, &LOOK, &args, patience).await.ok()?;
            let seen = reply.text().filter(|_| reply.word() == "seen")?;
            if guard.get_or_insert_with(|| seen.clone()) != &seen {
                return None;
            }
            cursor = reply.text()?;
            // What was seen early has less left by now.
            longest = longest.max(natural(&mut reply)?);
            highest = highest.max(natural(&mut reply)?);
            if cursor == "0" {
                let set = Guard::parse(&seen)?.set().to_owned();
                return Some(Seen { set, longest: Duration::from_millis(longest), highest });
            }
        }
    };
    tokio::time::timeout(LOOK_PATIENCE, walk).await.ok()?
}
