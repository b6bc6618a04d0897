//! The operator's commands: the status of the nodes, and letting one vote at once.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use redis::FromRedisValue;

use crate::lock::error::Verb;
use crate::lock::wakeup::Wakeups;
use crate::metrics::Metrics;
use crate::store::redis::SettingsError;
use crate::store::redis::script::script;
use crate::store::redlock::nodes::{Nodes, guard, natural};
use crate::store::redlock::{RedlockSettings, Restarted, peers};

script!(ADMIT, Verb::Guard, 1: "prelude.lua" "admit.lua");

/// The nodes of the settings, for an operator.
pub struct Operator {
    nodes: Nodes,
    settings: RedlockSettings,
    patience: Duration,
}

/// The status of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeStatus {
    /// Its address, the argument of [`Operator::admit`].
    pub node: String,
    /// Its state.
    pub state: NodeState,
}

/// The state of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeState {
    /// It votes.
    Voting,
    /// It may have forgotten leases, and votes after this time, when they have expired.
    Waiting(Duration),
    /// It has restarted or lost its data, and no instance has seen it since.
    Unseen,
    /// It serves instances with other settings: their longest lease and number of nodes.
    Foreign(Duration, usize),
    /// It does not answer, for this reason.
    Away(String),
}

impl NodeState {
    /// Returns true if it votes.
    pub fn votes(&self) -> bool {
        *self == Self::Voting
    }
}

impl fmt::Display for NodeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Voting => f.write_str("voting"),
            Self::Waiting(left) => {
                write!(f, "waiting: votes in {} ms, it may have forgotten leases", left.as_millis())
            }
            Self::Unseen => {
                f.write_str("new: not seen by any instance since it started or lost its data")
            }
            Self::Foreign(longest_lease, nodes) => write!(
                f,
                "foreign: serves instances with {nodes} nodes and redlock.longest_lease {} ms",
                longest_lease.as_millis()
            ),
            Self::Away(why) => write!(f, "unreachable: {why}"),
        }
    }
}

/// The contents of a node's guard.
struct Guard {
    run_id: String,
    votes_from: u64,
    longest_lease_ms: u64,
    nodes: usize,
}

impl Guard {
    /// Parses a guard's value; `None` if it is invalid.
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('|');
        let run_id = parts.next()?.to_owned();
        let votes_from = parts.next()?.parse().ok()?;
        let longest_lease_ms = parts.next()?.parse().ok()?;
        let nodes = parts.next()?.parse().ok()?;
        parts.next().is_none().then_some(Self { run_id, votes_from, longest_lease_ms, nodes })
    }
}

impl Operator {
    /// Connects to the nodes of the settings.
    ///
    /// # Errors
    ///
    /// [`SettingsError`] names the setting that is wrong.
    pub fn new(settings: &RedlockSettings) -> Result<Self, SettingsError> {
        let metrics = Arc::new(Metrics::for_redlock());
        let peers = peers(settings, &Arc::new(Wakeups::default()), &metrics)?;
        let patience = settings.nodes[0].command_timeout;
        let nodes = Nodes::new(peers, settings, None);
        Ok(Self { nodes, settings: settings.clone(), patience })
    }

    /// The status of the nodes. Changes nothing.
    ///
    /// # Cancel safety
    ///
    /// Safe.
    pub async fn status(&self) -> Vec<NodeStatus> {
        let all = (0..self.nodes.quorum().nodes()).map(|node| async move {
            let state = self.state(node).await.unwrap_or_else(NodeState::Away);
            NodeStatus { node: self.nodes.peer(node).name().to_owned(), state }
        });
        join_all(all).await
    }

    /// Makes a node vote at once, whatever it may have forgotten. Returns the effect, for people.
    ///
    /// # Errors
    ///
    /// One sentence with the reason.
    ///
    /// # Cancel safety
    ///
    /// The node may or may not vote afterwards.
    pub async fn admit(&self, name: &str) -> Result<String, String> {
        let all = 0..self.nodes.quorum().nodes();
        let node = all.clone().find(|&node| self.nodes.peer(node).name() == name);
        let names = || all.clone().map(|node| self.nodes.peer(node).name()).collect::<Vec<_>>();
        let node = node
            .ok_or_else(|| format!("`{name}` is not a node: name one of {}", names().join(", ")))?;
        let admitted = self.nodes.ask_guard(node, &ADMIT, self.patience).await;
        let mut reply = admitted.map_err(|error| format!("{name}: {}", error.reason))?;
        match reply.word() {
            "voting" => Ok(format!("{name} already votes")),
            "admitted" => {
                let left = natural(&mut reply).unwrap_or_default();
                Ok(format!(
                    "{name} votes. Leases that it has forgotten may be granted twice, for at most \
                     {left} ms"
                ))
            }
            _ => Err(format!(
                "{name} serves instances with other settings: stop them, and it votes once their \
                 last leases have expired"
            )),
        }
    }

    async fn state(&self, node: usize) -> Result<NodeState, String> {
        let info: String = self.ask(node, &["INFO", "server"]).await?;
        let run_id = info.lines().find_map(|line| line.strip_prefix("run_id:")).unwrap_or_default();
        let key = guard(self.nodes.key_prefix());
        let known: Option<String> = self.ask(node, &["GET", &key]).await?;
        let known = known.and_then(|text| Guard::parse(&text));
        let Some(guard) = known else { return Ok(NodeState::Unseen) };
        if guard.run_id != run_id && self.settings.restarted == Restarted::Doubted {
            return Ok(NodeState::Unseen);
        }
        let longest_lease = Duration::from_millis(guard.longest_lease_ms);
        let own = self.settings.rules.longest_lease.as_duration() == longest_lease
            && guard.nodes == self.settings.nodes.len();
        if !own {
            return Ok(NodeState::Foreign(longest_lease, guard.nodes));
        }
        let (seconds, micros): (u64, u64) = self.ask(node, &["TIME"]).await?;
        let left = guard.votes_from.saturating_sub(seconds * 1_000 + micros / 1_000);
        Ok(match left {
            0 => NodeState::Voting,
            left => NodeState::Waiting(Duration::from_millis(left)),
        })
    }

    /// Asks a node without a script, so that nothing is written.
    async fn ask<T: FromRedisValue>(&self, node: usize, words: &[&str]) -> Result<T, String> {
        let redis = self.nodes.peer(node).node().ok_or("not a Redis")?;
        let mut command = redis::cmd(words[0]);
        command.arg(&words[1..]);
        let answer = redis.query(&command).await.map_err(|error| error.to_string())?;
        redis::from_redis_value(answer).map_err(|error| error.to_string())
    }
}

impl fmt::Debug for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operator").field("nodes", &self.nodes.quorum().nodes()).finish()
    }
}
