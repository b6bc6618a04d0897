//! The settings of the store.

use std::time::Duration;

use crate::lock::table::Table;
use crate::lock::time::Ttl;

/// How long a commit may take without costing the holder of a new lease anything of its TTL: the
/// lease lasts so much longer. Longer than a disk takes that is well.
const SLACK: Duration = Duration::from_millis(100);

/// How the embedded store is used.
#[derive(Clone, Copy, Debug)]
pub struct EmbeddedSettings {
    /// How long a claim that is away keeps its place in line.
    pub position_kept: Ttl,
    /// How long a call may take before it is given up.
    pub command_timeout: Duration,
}

impl EmbeddedSettings {
    /// A table by these rules.
    pub(super) fn rules(&self, table: Table) -> Table {
        table.keeping_positions(self.position_kept).with_slack(SLACK)
    }
}
