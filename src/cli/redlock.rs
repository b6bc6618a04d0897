//! `lockkeeper redlock`: shows the nodes of a Redlock store, and admits nodes to the vote.

use clap::Subcommand;

use crate::cli::runtime;
use crate::cli::voice::print;
use crate::config::Config;
use crate::server::operator;

/// The commands for nodes.
#[derive(Debug, Subcommand)]
pub(super) enum NodeCommand {
    /// Print each node and whether it votes; exit code 0 if a majority does.
    Status,
    /// Let nodes that may have forgotten leases vote at once, instead of after those leases. A node
    /// that serves instances with other settings serves these from now on, and votes after the
    /// leases of the others.
    Admit {
        /// Nodes as `status` prints them.
        #[arg(value_name = "HOST:PORT", required = true)]
        nodes: Vec<String>,
    },
}

/// Runs the command on the nodes of the settings.
pub(super) fn redlock(what: &NodeCommand, config: &Config) -> Result<(), String> {
    runtime::run(async {
        let operator = operator(config).map_err(|error| error.to_string())?;
        match what {
            NodeCommand::Status => {
                let standings = operator.status().await;
                for standing in &standings {
                    print(&format!("{}  {}\n", standing.node, standing.state))?;
                }
                let voting = standings.iter().filter(|node| node.state.votes()).count();
                if voting <= standings.len() / 2 {
                    return Err(format!("{voting} of {} nodes vote", standings.len()));
                }
            }
            NodeCommand::Admit { nodes } => {
                for node in nodes {
                    print(&format!("{}\n", operator.admit(node).await?))?;
                }
            }
        }
        Ok(())
    })?
}
