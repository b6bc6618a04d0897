//! Growth: what acquires cost while more and more leases last, and what is left of leases that come
//! and go.

use crate::load::{CONNECTIONS, Load, Peer, Sample, Work};
use crate::on_disk;
use crate::picture::{Line, Picture};
use crate::servers::Server;

/// The leases at which it ends.
const LIVE: f64 = 1_000_000.0;

/// The leases that come and go.
const GONE: f64 = 10_000_000.0;

/// The length of a step, in seconds.
const STEP: u64 = 3;
const LONG_STEP: u64 = 30;

/// Takes keys until so many are held, prints what each step has shown, and draws it.
pub(crate) fn measure(stores: &[(&'static str, Server)], load: &mut Load<'_>) {
    let mut lines = Vec::new();
    for (name, server) in stores {
        let mut line = Line { name, points: Vec::new() };
        steps(name, server, (LIVE, "leases"), |done| {
            let sample = load.go_on(server, Peer::Lockkeeper, Work::Keep, STEP);
            line.points.push((done / 1e3, sample.server_micros));
            (sample, STEP)
        });
        lines.push(line);
    }
    let picture = Picture {
        title: "Processor time of the service for an acquire",
        across: "thousand leases that last",
        up: "us",
        logarithmic: false,
    };
    picture.draw(&lines, &on_disk().join("growth.svg"));
}

/// Takes and gives up keys, each once, and prints what each step has left.
pub(crate) fn churn(store: &str, server: &Server, load: &mut Load<'_>) {
    steps(store, server, (GONE, "pairs"), |_| {
        let sample = load.go_on(server, Peer::Lockkeeper, Work::Cycle(CONNECTIONS), LONG_STEP);
        (sample, LONG_STEP)
    });
}

/// Goes on until there were so many operations.
fn steps(
    store: &str,
    server: &Server,
    (until, what): (f64, &str),
    mut step: impl FnMut(f64) -> (Sample, u64),
) {
    println!(
        "\n{store:<10} {what:>12} {:>12} {:>12} {:>12} {:>12}",
        "per second", "server us", "Redis us", "memory MB"
    );
    let mut done = 0.0;
    while done < until {
        let (sample, seconds) = step(done);
        println!(
            "{:<10} {done:>12.0} {:>12.0} {:>12.1} {:>12.1} {:>12.0}",
            "",
            sample.operations,
            sample.server_micros,
            sample.redis_micros,
            server.resident_kb() / 1000.0
        );
        done += sample.operations * seconds as f64;
    }
}
