//! Growth: acquires of new keys while more and more leases last.

use crate::load::{Load, Peer, Work};
use crate::servers::Server;

/// The leases at which it ends.
const LIVE: f64 = 1_000_000.0;

/// The length of a step, in seconds.
const STEP: u64 = 3;

/// Takes keys until so many are held, and prints what each step of a few seconds has shown.
pub(crate) fn measure(store: &str, server: &Server, load: &mut Load<'_>) {
    println!(
        "\n{:<10} {:>12} {:>12} {:>12} {:>12} {:>12}",
        store, "leases", "per second", "server us", "Redis us", "memory MB"
    );
    let mut leases = 0.0;
    while leases < LIVE {
        let sample = load.go_on(server, Peer::Lockkeeper, Work::Keep, STEP);
        println!(
            "{:<10} {leases:>12.0} {:>12.0} {:>12.1} {:>12.1} {:>12.0}",
            "",
            sample.operations,
            sample.server_micros,
            sample.redis_micros,
            server.resident_kb() / 1000.0
        );
        leases += sample.operations * STEP as f64;
    }
}
