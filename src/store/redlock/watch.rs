//! One instance's check of the nodes, about once a second: which of them vote, which serve
//! instances with other settings, and whether each is a different Redis.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use crate::lock::error::{StoreError, Verb};
use crate::lock::store::NodeReport;
use crate::metrics::Metrics;
use crate::store::redis::script::{Reply, script};
use crate::store::redlock::nodes::{Nodes, natural};
use crate::store::redlock::tally::Quorum;

script!(TOUCH, Verb::Upkeep, 1: "prelude.lua" "guard.lua" "touch.lua");

/// The longest pause between two checks while all nodes vote; the shortest is half of it.
const CALM: Duration = Duration::from_secs(1);

/// The same while some nodes do not vote.
const BUSY: Duration = Duration::from_millis(100);

/// A node that votes so much earlier than it said was admitted by an operator.
const CUT: Duration = Duration::from_millis(500);

/// The task that checks the nodes for one instance.
pub(super) struct Watch {
    pub(super) nodes: Arc<Nodes>,
    pub(super) patience: Duration,
    pub(super) longest_lease: Duration,
    pub(super) view: Arc<NodesView>,
    pub(super) metrics: Arc<Metrics>,
}

/// The last answers of the nodes; empty before the first check.
#[derive(Default)]
pub(super) struct NodesView {
    nodes: Mutex<Vec<Sight>>,
}

/// The last answer of a node.
#[derive(Clone, Debug, Default)]
struct Sight {
    run_id: String,
    /// `None` if it has never answered.
    serves: Option<Serves>,
    /// True if it votes and answered the last question.
    votes: bool,
    /// When its last answer came, and the time until it votes; `None` if it does.
    waits: Option<(Instant, Duration)>,
    /// The moment from which it votes; `None` if it did not answer the last question, or refuses.
    votes_from: Option<Instant>,
    /// Why it refuses to note that it votes.
    refusal: Option<String>,
    /// Why the last question has no answer.
    silence: Option<String>,
}

/// A node that begins to vote.
struct Admission {
    node: usize,
    /// The wait that an operator has cut short.
    cut: Option<Duration>,
}

/// The instances that a node serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Serves {
    Us,
    Others(Settings),
}

/// The settings that all instances must share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Settings {
    longest_lease_ms: u64,
    nodes: usize,
}

/// A reason not to count votes, and the nodes concerned.
pub(super) struct Obstacle {
    reason: String,
    nodes: Vec<usize>,
}

impl NodesView {
    pub(super) fn voting(&self) -> usize {
        self.sights().iter().filter(|sight| sight.votes).count()
    }

    /// The reason not to count votes, if there is one. Two lists whose lengths differ by more than
    /// one node may both have a majority.
    pub(super) fn obstacle(&self) -> Option<Obstacle> {
        let sights = self.sights();
        if sights.is_empty() {
            // Two of the nodes may be the same Redis.
            let reason = "the nodes have not been checked yet".to_owned();
            return Some(Obstacle { reason, nodes: Vec::new() });
        }
        if let Some((one, other)) = twins(&sights) {
            let reason = "two nodes are the same Redis: each needs its own".to_owned();
            return Some(Obstacle { reason, nodes: vec![one, other] });
        }
        strangers(&sights, |others| others.abs_diff(sights.len()) > 1)
    }

    /// `Ok` if enough nodes vote; the error says why they do not, but not their addresses: everybody
    /// may read it.
    pub(super) fn serves(&self, quorum: Quorum) -> Result<(), String> {
        if let Some(obstacle) = self.obstacle() {
            return Err(obstacle.reason);
        }
        let voting = self.voting();
        if voting >= quorum.needed() {
            return Ok(());
        }
        let mut why = vec![format!("{voting} of {} nodes vote", quorum.nodes())];
        if let Some((nodes, left)) = self.newcomers() {
            why.push(format!(
                "{} may have forgotten leases and vote within {} s; if they are new, `lockkeeper \
                 redlock admit` lets them vote now",
                nodes.len(),
                left.as_secs() + 1
            ));
        }
        why.extend(self.refusals().map(|refusals| refusals.reason));
        let silences: BTreeSet<_> =
            self.sights().iter().filter_map(|sight| sight.silence.clone()).collect();
        why.extend(silences);
        Err(why.join("; "))
    }

    /// The nodes that wait, and the time until all of them vote.
    fn newcomers(&self) -> Option<(Vec<usize>, Duration)> {
        let (sights, now) = (self.sights(), Instant::now());
        let waiting = sights.iter().enumerate().filter_map(|(node, sight)| {
            let from = sight.votes_from.filter(|_| !sight.votes)?;
            let is_ours = sight.serves == Some(Serves::Us);
            is_ours.then(|| (node, from.saturating_duration_since(now)))
        });
        let (nodes, lefts): (Vec<_>, Vec<_>) = waiting.unzip();
        Some((nodes, lefts.into_iter().max()?))
    }

    /// The nodes that refuse to note that they vote.
    pub(super) fn refusals(&self) -> Option<Obstacle> {
        let sights = self.sights();
        let refusing = sights
            .iter()
            .enumerate()
            .filter_map(|(node, sight)| sight.refusal.as_ref().map(|why| (node, why)));
        let (nodes, whys): (Vec<_>, Vec<_>) = refusing.unzip();
        let reason = format!("nodes cannot vote, because they refuse writes: {}", whys.first()?);
        Some(Obstacle { reason, nodes })
    }

    /// The nodes that serve other instances, which keep nobody from granting.
    fn strangers(&self) -> Option<Obstacle> {
        strangers(&self.sights(), |_| true)
    }

    /// The nodes for people, in their order.
    pub(super) fn report(&self, nodes: &Nodes) -> Vec<NodeReport> {
        let (sights, now) = (self.sights(), Instant::now());
        let all = (0..nodes.quorum().nodes()).map(|node| {
            let sight = sights.get(node);
            let from = sight.and_then(|sight| sight.votes_from);
            let (state, back_in) = match sight.map(|sight| (sight.votes, sight.serves)) {
                Some((true, _)) => ("now", None),
                Some((false, Some(Serves::Others(_)))) if from.is_some() => ("for_others", None),
                _ => match from {
                    Some(from) => ("later", Some(from.saturating_duration_since(now))),
                    None => ("unreachable", None),
                },
            };
            NodeReport { node: nodes.peer(node).name().to_owned(), state, back_in }
        });
        all.collect()
    }

    fn sights(&self) -> MutexGuard<'_, Vec<Sight>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the answers, and returns the nodes that begin to vote. A node that does not answer
    /// still counts for the instances that it served.
    fn put(&self, answers: Vec<Result<Reply, StoreError>>, nodes: &Nodes) -> Vec<Admission> {
        let mut sights = self.sights();
        let mut admitted = Vec::new();
        sights.resize(answers.len(), Sight::default());
        for (node, (sight, answer)) in sights.iter_mut().zip(answers).enumerate() {
            (sight.votes, sight.votes_from, sight.refusal) = (false, None, None);
            sight.silence = answer.as_ref().err().map(|error| nodes.peer(node).why(error));
            if let Some(seen) = answer.ok().and_then(read) {
                admitted.extend(seen.admission(sight).map(|cut| Admission { node, cut }));
                *sight = seen;
            }
        }
        admitted
    }
}

impl Sight {
    /// `Some` if the node begins to vote, after this earlier sight of it. An unreachable node that
    /// comes back with what it knew does not begin.
    fn admission(&self, before: &Self) -> Option<Option<Duration>> {
        let begins = self.votes && (before.run_id != self.run_id || before.waits.is_some());
        let left = before.waits.filter(|_| before.run_id == self.run_id);
        let left = left.map(|(seen, left)| left.saturating_sub(seen.elapsed()));
        begins.then(|| left.filter(|left| *left > CUT))
    }
}

impl Admission {
    fn log(&self, nodes: &Nodes) {
        let why = match self.cut {
            Some(_) => "an operator has admitted it",
            None => "it has not forgotten leases, or they have ended",
        };
        tracing::info!(
            target: "audit",
            audit = "node_votes",
            node = nodes.peer(self.node).name(),
            reason = why,
            wait_cut_ms = self.cut.map(|cut| cut.as_millis() as u64),
            "a node begins to vote"
        );
    }
}

impl Watch {
    /// Checks the nodes until the task is dropped.
    pub(super) async fn watch(self) {
        let (mut voted, mut told, mut waited) = (0, None, Vec::new());
        let nodes = self.nodes.quorum().nodes();
        loop {
            let looks = (0..nodes).map(|node| self.nodes.ask_guard(node, &TOUCH, self.patience));
            for admission in self.view.put(join_all(looks).await, &self.nodes) {
                admission.log(&self.nodes);
            }
            let voting = self.view.voting();
            self.metrics.redlock_voting(nodes, voting);
            if voting != voted {
                tracing::info!(voting, nodes, "nodes that vote");
                voted = voting;
            }
            let (waiting, left) = self.view.newcomers().unwrap_or_default();
            if waiting.iter().any(|node| !waited.contains(node)) {
                self.tell_newcomers(&waiting, left);
            }
            waited = waiting;
            let obstacle = self.view.obstacle().or_else(|| self.view.strangers());
            let obstacle = obstacle.or_else(|| self.view.refusals());
            let reason = obstacle.as_ref().map(|obstacle| obstacle.reason.clone());
            if let Some(obstacle) = obstacle.filter(|_| reason != told) {
                let nodes = obstacle.names(&self.nodes);
                tracing::error!(nodes, "{}", obstacle.reason);
            }
            told = reason;
            let pause = if voting == nodes { CALM.min(self.longest_lease / 4) } else { BUSY };
            tokio::time::sleep(pause / 2 + pause.mul_f64(fastrand::f64() / 2.0)).await;
        }
    }
}

impl Watch {
    fn tell_newcomers(&self, waiting: &[usize], left: Duration) {
        let names: Vec<_> = waiting.iter().map(|&node| self.nodes.peer(node).name()).collect();
        let votes_in_ms = left.as_millis() as u64;
        tracing::warn!(
            votes_in_ms,
            "nodes may have forgotten leases and vote later; if they are new, `lockkeeper redlock \
             admit {}` lets them vote now",
            names.join(" ")
        );
    }
}

impl Obstacle {
    /// The obstacle in one sentence.
    pub(super) fn text(&self, nodes: &Nodes) -> String {
        let names = self.names(nodes);
        if names.is_empty() { self.reason.clone() } else { format!("{}: {names}", self.reason) }
    }

    fn names(&self, nodes: &Nodes) -> String {
        let names: Vec<_> = self.nodes.iter().map(|&node| nodes.peer(node).name()).collect();
        names.join(", ")
    }
}

/// Two nodes that are the same Redis, which would have two votes.
fn twins(sights: &[Sight]) -> Option<(usize, usize)> {
    let known = || sights.iter().enumerate().filter(|(_, sight)| sight.serves.is_some());
    known().find_map(|(node, sight)| {
        let twin = known().find(|(other, seen)| *other < node && seen.run_id == sight.run_id);
        twin.map(|(other, _)| (other, node))
    })
}

/// The nodes that serve instances with lists of such lengths.
fn strangers(sights: &[Sight], so: impl Fn(usize) -> bool) -> Option<Obstacle> {
    let others = sights.iter().enumerate().filter_map(|(node, sight)| match sight.serves {
        Some(Serves::Others(settings)) if so(settings.nodes) => Some((node, settings)),
        _ => None,
    });
    let (those, settings): (Vec<_>, Vec<_>) = others.unzip();
    let Settings { longest_lease_ms, nodes } = settings.first()?;
    let reason = format!(
        "nodes serve instances with other settings ({nodes} nodes, redlock.longest_lease \
         {longest_lease_ms} ms): stop those, then `lockkeeper redlock admit` makes the nodes serve \
         these"
    );
    Some(Obstacle { reason, nodes: those })
}

fn read(mut reply: Reply) -> Option<Sight> {
    let votes = reply.word() == "voting";
    let (blank, refuses) = (reply.word() == "blank", reply.word() == "refuses");
    let foreign = refuses || reply.word() == "foreign";
    let run_id = reply.text()?;
    let longest_lease_ms = natural(&mut reply)?;
    let nodes = natural(&mut reply)?.try_into().ok()?;
    let left = Duration::from_millis(natural(&mut reply)?);
    let waits = (!votes).then(|| (Instant::now(), if blank { left } else { Duration::ZERO }));
    let serves = match foreign {
        // It has no guard, and cannot write one.
        true if nodes == 0 => None,
        true => Some(Serves::Others(Settings { longest_lease_ms, nodes })),
        false => Some(Serves::Us),
    };
    let refusal = reply.text().filter(|_| refuses);
    let votes_from = (!refuses).then(|| Instant::now() + left);
    Some(Sight { run_id, serves, votes, waits, votes_from, refusal, silence: None })
}
