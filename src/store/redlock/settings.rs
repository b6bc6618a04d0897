//! The settings of a store on several nodes: the nodes, time limits, and the clocks.

use std::time::Duration;

use crate::lock::time::{Ttl, wall_clock_micros};
use crate::platform::clock::since_boot;
use crate::store::redis::RedisSettings;

/// The settings of the store.
#[derive(Clone)]
pub struct RedlockSettings {
    /// The nodes: independent, and the same list for every instance.
    pub nodes: Vec<RedisSettings>,
    /// The trust in a node that has restarted with its data.
    pub restarted: Restarted,
    /// The time limits.
    pub rules: Rules,
}

/// The trust in a node that has restarted with its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restarted {
    /// The data may be old, as Redis' snapshots are: it has to wait.
    Doubted,
    /// Every write was synced before it was answered (`appendfsync always`): it votes at once.
    Trusted,
}

/// The time limits.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// The answer of one node; less for leases so short that this exceeds a twentieth of them.
    pub node_timeout: Duration,
    /// The longest lease: a node that may have forgotten leases does not vote for this long.
    pub longest_lease: Ttl,
}

/// The clocks of the service.
pub(super) trait Time: Send + Sync {
    /// The time since a fixed moment; never steps, and keeps running in suspend.
    fn monotonic(&self) -> Duration;

    /// Microseconds since 1970; proposes fencing tokens.
    fn wall_micros(&self) -> u64;
}

pub(super) struct Machine;

impl Time for Machine {
    fn monotonic(&self) -> Duration {
        since_boot()
    }

    fn wall_micros(&self) -> u64 {
        wall_clock_micros()
    }
}
