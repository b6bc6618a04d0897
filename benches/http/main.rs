//! `make bench`: the service beside its peers, on one machine in one run.
//!
//! Each round loads every scenario in turn, so that what else the machine does falls on all of
//! them; what counts is the ratio within a round. `LOCKKEEPER_BENCH_ROUNDS` and
//! `LOCKKEEPER_BENCH_SECONDS` make it longer. It fails on a wrong answer and never on a figure.

#![expect(clippy::unwrap_used, reason = "it ends where something is not as it should be")]

mod bare;
mod cpu;
mod growth;
mod line;
mod load;
mod report;
mod servers;

use std::path::Path;

use crate::load::{Load, Peer, Sample, Work};
use crate::report::Row;
use crate::servers::{Redis, Server};

/// The same allocator as the service's, for the bare route.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The argument that makes this program the bare route.
const BARE: &str = "--bare-route";

/// The arguments with which only those who wait, or only growth, are measured.
const LINE: &str = "line";
const GROWTH: &str = "growth";

/// Below the build, which is on a disk: a temporary directory may be in memory.
const ON_DISK: &str = env!("CARGO_TARGET_TMPDIR");

/// What is measured.
struct Scenario {
    name: &'static str,
    target: Target,
    peer: Peer,
    work: Work,
}

/// Where it is measured.
#[derive(Clone, Copy)]
enum Target {
    Bare,
    Webdis,
    Redis,
    /// The service that logs no line for each request.
    RedisQuiet,
    /// A new service on an empty directory for each run.
    Embedded,
    /// A new service on three new Redis nodes for each run.
    Redlock,
}

const SCENARIOS: [Scenario; 19] = [
    scenario("bare axum route", Target::Bare, Peer::Bare, Work::Acquire),
    scenario("webdis SET NX PX", Target::Webdis, Peer::Webdis, Work::Acquire),
    scenario("webdis, the service's script", Target::Webdis, Peer::Script, Work::Acquire),
    scenario("lockkeeper/redis acquire", Target::Redis, Peer::Lockkeeper, Work::Acquire),
    scenario("  the same, log.level = warn", Target::RedisQuiet, Peer::Lockkeeper, Work::Acquire),
    scenario("lockkeeper/embedded acquire", Target::Embedded, Peer::Lockkeeper, Work::Acquire),
    scenario(
        "lockkeeper/redlock, 3 nodes, acquire",
        Target::Redlock,
        Peer::Lockkeeper,
        Work::Acquire,
    ),
    scenario("webdis SET NX PX + DEL", Target::Webdis, Peer::Webdis, Work::Cycle),
    scenario("lockkeeper/redis acquire + release", Target::Redis, Peer::Lockkeeper, Work::Cycle),
    scenario(
        "lockkeeper/embedded acquire + release",
        Target::Embedded,
        Peer::Lockkeeper,
        Work::Cycle,
    ),
    scenario("webdis, one connection", Target::Webdis, Peer::Webdis, Work::Turns),
    scenario("lockkeeper/redis, one connection", Target::Redis, Peer::Lockkeeper, Work::Turns),
    scenario("  a reader beside 1", Target::Redis, Peer::Lockkeeper, Work::Beside(1)),
    scenario("  a reader beside 100", Target::Redis, Peer::Lockkeeper, Work::Beside(100)),
    scenario("  a reader beside 999", Target::Redis, Peer::Lockkeeper, Work::Beside(999)),
    scenario(
        "lockkeeper/embedded, one connection",
        Target::Embedded,
        Peer::Lockkeeper,
        Work::Turns,
    ),
    scenario("  a reader beside 1", Target::Embedded, Peer::Lockkeeper, Work::Beside(1)),
    scenario("  a reader beside 100", Target::Embedded, Peer::Lockkeeper, Work::Beside(100)),
    scenario("  a reader beside 999", Target::Embedded, Peer::Lockkeeper, Work::Beside(999)),
];

const fn scenario(name: &'static str, target: Target, peer: Peer, work: Work) -> Scenario {
    Scenario { name, target, peer, work }
}

/// The servers that serve all rounds.
struct Servers {
    bare: Server,
    webdis: Server,
    service: Server,
    quiet: Server,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [first, port] if first == BARE => bare::serve(port.parse().unwrap()),
        _ if arguments.iter().any(|argument| argument == "--bench") => {
            match arguments.iter().find(|argument| [LINE, GROWTH].contains(&argument.as_str())) {
                Some(only) if only == LINE => measure_line(),
                Some(_) => measure_growth(),
                None => {
                    measure();
                    measure_line();
                }
            }
        }
        _ => println!("measures nothing as a test: `make bench` does"),
    }
}

fn measure() {
    let rounds = number("LOCKKEEPER_BENCH_ROUNDS", 5);
    let seconds = number("LOCKKEEPER_BENCH_SECONDS", 3);
    report::print_machine();
    println!(
        "{} connections, {rounds} rounds of {seconds} s each after a warm-up, interleaved",
        load::CONNECTIONS
    );
    let redis = Redis::start();
    let directory = tempfile::tempdir().unwrap();
    let servers = Servers::start(&redis, directory.path());
    let mut load = Load::new(&redis);
    let mut rows: Vec<Row<'_>> =
        SCENARIOS.iter().map(|scenario| Row { scenario, samples: Vec::new() }).collect();
    for row in &rows {
        servers.load(row.scenario, &mut load, 1);
    }
    for round in 0..rounds {
        // Another one begins each time: what comes first may have the cooler machine.
        rows.rotate_left(usize::from(round > 0));
        for row in &mut rows {
            row.samples.push(servers.load(row.scenario, &mut load, seconds));
        }
    }
    let turned = rounds.saturating_sub(1) as usize % rows.len();
    rows.rotate_right(turned);
    report::print(&rows);
}

/// Measures those who wait.
fn measure_line() {
    let rounds = number("LOCKKEEPER_BENCH_ROUNDS", 5);
    let redis = Redis::start();
    let disk = tempfile::tempdir_in(ON_DISK).unwrap();
    line::measure(rounds, ["redis", "embedded"], |store| match store {
        "redis" => {
            redis.flush();
            Server::lockkeeper(&[&redis.url()], &[])
        }
        _ => {
            let directory = tempfile::tempdir_in(&disk).unwrap().keep();
            Server::lockkeeper(&[&format!("embedded:{}", directory.display())], &[])
        }
    });
}

/// Measures growth.
fn measure_growth() {
    report::print_machine();
    let redis = Redis::start();
    let disk = tempfile::tempdir_in(ON_DISK).unwrap();
    let mut load = Load::new(&redis);
    for store in [redis.url(), format!("embedded:{}", disk.path().display())] {
        let name = store.split(':').next().unwrap_or_default();
        growth::measure(name, &Server::lockkeeper(&[&store], &[]), &mut load);
    }
}

impl Servers {
    fn start(redis: &Redis, directory: &Path) -> Self {
        Self {
            bare: Server::bare(),
            webdis: Server::webdis(redis, directory),
            service: Server::lockkeeper(&[&redis.url()], &[]),
            quiet: Server::lockkeeper(&[&redis.url()], &[("LOCKKEEPER_LOG_LEVEL", "warn")]),
        }
    }

    fn load(&self, scenario: &Scenario, load: &mut Load<'_>, seconds: u64) -> Sample {
        let mut run = |server: &Server| load.run(server, scenario.peer, scenario.work, seconds);
        match scenario.target {
            Target::Bare => run(&self.bare),
            Target::Webdis => run(&self.webdis),
            Target::Redis => run(&self.service),
            Target::RedisQuiet => run(&self.quiet),
            Target::Embedded => {
                let directory = tempfile::tempdir_in(ON_DISK).unwrap();
                let store = format!("embedded:{}", directory.path().display());
                run(&Server::lockkeeper(&[&store], &[]))
            }
            Target::Redlock => {
                let nodes = [Redis::start(), Redis::start(), Redis::start()];
                let urls = nodes.each_ref().map(Redis::url);
                let urls = urls.each_ref().map(String::as_str);
                Server::admit(&urls);
                run(&Server::lockkeeper(&urls, &[]))
            }
        }
    }
}

/// A number from the environment, at least 1.
fn number(variable: &str, default: u64) -> u64 {
    let Ok(text) = std::env::var(variable) else { return default };
    let number = text.parse().ok().filter(|&number| number > 0);
    number.unwrap_or_else(|| panic!("{variable} has to be a whole number from 1 on, not {text:?}"))
}
