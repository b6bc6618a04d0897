//! `lockkeeper redlock`: how the nodes of a Redlock store stand, and letting one vote at once.

use clap::Subcommand;

use crate::config::Config;
use crate::server::operator;

/// What to do with the nodes.
#[derive(Debug, Subcommand)]
pub(super) enum Redlock {
    /// Print each node and whether it votes; exit code 0 if a majority does.
    Status,
    /// Let nodes vote at once that may have forgotten leases, instead of when they are over.
    Admit {
        /// The nodes, as `status` prints them.
        #[arg(value_name = "HOST:PORT", required = true)]
        nodes: Vec<String>,
    },
}

/// Asks or tells the nodes of the settings.
pub(super) fn redlock(what: &Redlock, config: &Config) -> Result<(), String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("no runtime: {error}"))?;
    runtime.block_on(async {
        let operator = operator(config).map_err(|error| error.to_string())?;
        match what {
            Redlock::Status => {
                let standings = operator.status().await;
                for standing in &standings {
                    println!("{}  {}", standing.node, standing.state);
                }
                let voting = standings.iter().filter(|node| node.state.votes()).count();
                if voting <= standings.len() / 2 {
                    return Err(format!("{voting} of {} nodes vote", standings.len()));
                }
            }
            Redlock::Admit { nodes } => {
                for node in nodes {
                    println!("{}", operator.admit(node).await?);
                }
            }
        }
        Ok(())
    })
}
