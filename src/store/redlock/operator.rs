//! What an operator may ask and do: how the nodes stand, and letting one vote at once.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use crate::lock::error::Verb;
use crate::lock::wakeup::Wakeups;
use crate::metrics::Metrics;
use crate::store::redis::SettingsError;
use crate::store::redlock::RedlockSettings;
use crate::store::redlock::Restarted;
use crate::store::redlock::guard::Change;
use crate::store::redlock::guard::Guard;
use crate::store::redlock::guard::ORPHANS;
use crate::store::redlock::guard::State;
use crate::store::redlock::guardian::change_one;
use crate::store::redlock::guardian::look;
use crate::store::redlock::nodes::GUARD;
use crate::store::redlock::nodes::Nodes;
use crate::store::redlock::peers;

/// The nodes of the settings, as an operator sees them.
pub struct Operator {
    nodes: Nodes,
    patience: Duration,
}

/// How a node stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Standing {
    /// Its address, as [`Operator::admit`] takes it.
    pub node: String,
    /// What it does.
    pub state: NodeState,
}

/// What a node does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// It votes.
    Voting,
    /// It may have forgotten leases, and comes back by itself once they are over.
    Returning,
    /// It was never part of a set.
    New,
    /// It does not answer, and why.
    Away(String),
}

impl NodeState {
    /// Whether it votes.
    pub fn votes(&self) -> bool {
        *self == Self::Voting
    }
}

impl fmt::Display for NodeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Voting => f.write_str("voting"),
            Self::Returning => f.write_str("returning: it may have forgotten leases"),
            Self::New => f.write_str("new: no instance has seen it yet"),
            Self::Away(why) => write!(f, "away: {why}"),
        }
    }
}

impl Operator {
    /// Connects to the nodes of the settings.
    ///
    /// # Errors
    ///
    /// [`SettingsError`] names the setting that is wrong.
    pub fn new(settings: &RedlockSettings) -> Result<Self, SettingsError> {
        let first = &settings.nodes[0];
        let metrics = Arc::new(Metrics::new("redlock"));
        let peers = peers(settings, &Arc::new(Wakeups::default()), &metrics)?;
        let nodes = Nodes::new(peers, first.key_prefix.clone(), settings.restarted, None);
        Ok(Self { nodes, patience: first.command_timeout })
    }

    /// How the nodes stand. Changes nothing.
    ///
    /// # Cancel safety
    ///
    /// Safe.
    pub async fn status(&self) -> Vec<Standing> {
        let standings = (0..self.nodes.quorum().nodes()).map(|node| async move {
            let name = self.nodes.peer(node).name().to_owned();
            let state = match self.read(node).await {
                Ok(Some((guard, run_id))) => match guard.state {
                    State::Voting if self.counts(&guard, &run_id) => NodeState::Voting,
                    _ => NodeState::Returning,
                },
                Ok(None) => NodeState::New,
                Err(why) => NodeState::Away(why),
            };
            Standing { node: name, state }
        });
        join_all(standings).await
    }

    /// Lets a node vote at once, whatever it may have forgotten. What becomes of it, in words.
    ///
    /// # Errors
    ///
    /// A sentence that says why it cannot.
    ///
    /// # Cancel safety
    ///
    /// The node may vote or not.
    pub async fn admit(&self, name: &str) -> Result<String, String> {
        let all = 0..self.nodes.quorum().nodes();
        let node = all.clone().find(|&node| self.nodes.peer(node).name() == name);
        let names = || all.clone().map(|node| self.nodes.peer(node).name()).collect::<Vec<_>>();
        let node =
            node.ok_or_else(|| format!("`{name}` is none of the nodes: {}", names().join(", ")))?;
        let Some((guard, run_id)) = self.read(node).await? else {
            return Err(format!("no instance has seen {name} yet: it will vote by itself"));
        };
        if guard.state == State::Voting && self.counts(&guard, &run_id) {
            return Ok(format!("{name} votes already"));
        }
        if guard.run_id() != run_id {
            return Err(format!("no instance has seen {name} since its start: try again"));
        }
        let looks = all.filter(|&other| other != node);
        let looks = looks.map(|other| look(&self.nodes, other, self.patience));
        let seen: Vec<_> = join_all(looks).await.into_iter().flatten().collect();
        if seen.windows(2).any(|two| two[0].set != two[1].set) {
            return Err("the other nodes do not agree on a set: wait until they do".to_owned());
        }
        let set = seen.first().map_or(ORPHANS, |peer| &peer.set);
        let base = seen.iter().map(|peer| peer.highest).max().unwrap_or_default();
        let change = Change { node, before: guard.clone(), after: guard.voting(set, base) };
        if !change_one(&self.nodes, &change, self.patience).await {
            return Err(format!("{name} has changed at this very moment: try again"));
        }
        let left = seen.iter().map(|peer| peer.longest).max();
        let left = left.map_or_else(
            || "no other node could be asked for how long".to_owned(),
            |left| format!("for at most {} ms, as far as the others know", left.as_millis()),
        );
        Ok(format!("{name} votes. Leases that it has forgotten may be granted twice, {left}"))
    }

    /// A node's guard and its server's run id; none if it has none.
    async fn read(&self, node: usize) -> Result<Option<(Guard, String)>, String> {
        let Some(redis) = self.nodes.peer(node).node() else { return Ok(None) };
        let ask = async |words: [&str; 2]| {
            let mut command = redis::cmd(words[0]);
            command.arg(words[1]);
            let answer = redis
                .query(Verb::Guard, &command)
                .await
                .map_err(|error| error.reason.to_string())?;
            redis::from_redis_value::<Option<String>>(answer).map_err(|error| error.to_string())
        };
        let info = ask(["INFO", "server"]).await?.unwrap_or_default();
        let run_id = info.lines().find_map(|line| line.strip_prefix("run_id:"));
        let run_id = run_id.unwrap_or_default().to_owned();
        let guard = ask(["GET", GUARD]).await?.and_then(|text| Guard::parse(&text));
        Ok(guard.map(|guard| (guard, run_id)))
    }

    fn counts(&self, guard: &Guard, run_id: &str) -> bool {
        guard.run_id() == run_id || self.nodes.restarted() == Restarted::Trusted
    }
}

impl fmt::Debug for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operator").field("nodes", &self.nodes.quorum().nodes()).finish()
    }
}
