//! The settings of the store.

use std::time::Duration;

use crate::lock::prefixes::Prefixes;
use crate::lock::table::Table;
use crate::lock::time::Ttl;

/// The time that a commit may take without shortening a new lease: the lease lasts this much longer
/// than its TTL. A healthy disk takes less.
const SLACK: Duration = Duration::from_millis(100);

/// The settings of the embedded store.
#[derive(Clone, Debug)]
pub struct EmbeddedSettings {
    /// The time for which an absent claim keeps its place in line.
    pub position_kept: Ttl,
    /// The time limit of a call.
    pub command_timeout: Duration,
    /// The longest time that a lease lasts.
    pub prefixes: Prefixes,
}

impl EmbeddedSettings {
    /// Applies these settings to a table.
    pub(super) fn rules(&self, table: Table) -> Table {
        table.keeping_positions(self.position_kept).with_terms(self.prefixes.clone(), SLACK)
    }
}
