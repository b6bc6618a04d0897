//! The operator's commands: the status of the nodes, and letting one vote at once.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;

use crate::lock::error::Verb;
use crate::lock::wakeup::Wakeups;
use crate::metrics::Metrics;
use crate::store::redis::SettingsError;
use crate::store::redis::script::script;
use crate::store::redlock::nodes::{Nodes, natural};
use crate::store::redlock::{RedlockSettings, peers};

script!(STATUS, Verb::Upkeep, 1: "prelude.lua" "status.lua");
script!(ADMIT, Verb::Upkeep, 1: "prelude.lua" "guard.lua" "admit.lua");

/// The nodes of the settings, for an operator.
pub struct Operator {
    nodes: Nodes,
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
    /// It cannot note that it votes, because Redis refuses writes, for this reason.
    Refusing(String),
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
            Self::Refusing(why) => {
                write!(f, "refusing: cannot vote, because it refuses writes: {why}")
            }
            Self::Away(why) => write!(f, "unreachable: {why}"),
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
        let metrics = Arc::new(Metrics::for_redlock());
        let peers = peers(settings, &Arc::new(Wakeups::default()), &metrics)?;
        let patience = settings.nodes[0].command_timeout;
        let nodes = Nodes::new(peers, settings, None);
        Ok(Self { nodes, patience })
    }

    /// The status of the nodes. Changes nothing.
    ///
    /// # Cancel safety
    ///
    /// Safe.
    pub async fn status(&self) -> Vec<NodeStatus> {
        let all = (0..self.nodes.quorum().nodes()).map(|node| async move {
            NodeStatus {
                node: self.nodes.peer(node).name().to_owned(),
                state: self.state(node).await,
            }
        });
        join_all(all).await
    }

    /// Makes a node vote at once, whatever it may have forgotten, or serve these settings from now
    /// on, if it serves others. Returns the effect, for people.
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
        let mut reply =
            admitted.map_err(|error| format!("{name}: {}", self.nodes.peer(node).why(&error)))?;
        match reply.word() {
            "voting" => Ok(format!("{name} already votes")),
            "admitted" => {
                let left = natural(&mut reply).unwrap_or_default();
                Ok(format!(
                    "{name} votes. Leases that it has forgotten may be granted twice, for at most \
                     {left} ms"
                ))
            }
            "taken" => {
                let left = natural(&mut reply).unwrap_or_default();
                Ok(format!(
                    "{name} serves these settings from now on. It votes in {left} ms, when the \
                     leases of the instances with its former ones have expired: these have to be \
                     stopped. A second `admit` does not wait"
                ))
            }
            "refuses" => {
                let why = reply.number().and_then(|_| reply.text()).unwrap_or_default();
                Err(format!("{name} cannot vote, because it refuses writes: {why}"))
            }
            _ => Err(format!("{name}: strange answer")),
        }
    }

    async fn state(&self, node: usize) -> NodeState {
        let asked = self.nodes.ask_guard(node, &STATUS, self.patience).await;
        let mut reply = match asked {
            Ok(reply) => reply,
            Err(error) => return NodeState::Away(self.nodes.peer(node).why(&error)),
        };
        let mut next = || natural(&mut reply).unwrap_or_default();
        let (waits, longest_lease) = (Duration::from_millis(next()), Duration::from_millis(next()));
        let nodes = next() as usize;
        match reply.word() {
            "voting" => NodeState::Voting,
            "waiting" => NodeState::Waiting(waits),
            "unseen" => NodeState::Unseen,
            "refuses" => NodeState::Refusing(reply.text().unwrap_or_default()),
            _ => NodeState::Foreign(longest_lease, nodes),
        }
    }
}

impl fmt::Debug for Operator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Operator").field("nodes", &self.nodes.quorum().nodes()).finish()
    }
}
