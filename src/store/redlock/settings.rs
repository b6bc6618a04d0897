//! What a store on several nodes has to know: the nodes, how long things take, and the clocks.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::lock::time::{Ttl, wall_clock_micros};
use crate::store::redis::RedisSettings;

/// What the store has to know.
#[derive(Clone)]
pub struct RedlockSettings {
    /// The nodes: independent of one another, and the same list for every instance.
    pub nodes: Vec<RedisSettings>,
    /// What a node is worth that has restarted with its data.
    pub restarted: Restarted,
    /// How long things take.
    pub rules: Rules,
}

/// What a node is worth that has restarted with its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restarted {
    /// The data may be old, as Redis' snapshots are: it has to wait.
    Doubted,
    /// Every write was synced before it was answered (`appendfsync always`): it votes at once.
    Trusted,
}

/// How long things take at most.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// One node; less for leases so short that this were more than a twentieth of them.
    pub node_timeout: Duration,
    /// The longest lease: so long a node that may have forgotten leases does not vote.
    pub longest_lease: Ttl,
}

/// The clocks of the service.
pub(super) trait Time: Send + Sync {
    /// Since some beginning; never steps, and goes on while the machine sleeps.
    fn monotonic(&self) -> Duration;

    /// Microseconds since 1970; proposes fencing tokens.
    fn wall_micros(&self) -> u64;
}

/// The machine's.
pub(super) struct Machine;

impl Time for Machine {
    fn monotonic(&self) -> Duration {
        let now = clock_gettime(ClockId::Boottime);
        Duration::try_from(now).unwrap_or_default()
    }

    fn wall_micros(&self) -> u64 {
        wall_clock_micros()
    }
}
