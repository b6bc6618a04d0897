//! `make bench`: the service beside its peers, on one machine in one run.
//!
//! Each round loads every scenario in turn, so that what else the machine does falls on all of
//! them; what counts is the ratio within a round. `LOCKKEEPER_BENCH_ROUNDS` and
//! `LOCKKEEPER_BENCH_SECONDS` make it longer; `LOCKKEEPER_BENCH_BEFORE` is the binary of an older
//! build, which is measured beside it. It fails on a wrong answer and never on a figure. The
//! service is the one that is built beside this program.

#![expect(clippy::unwrap_used, reason = "it ends where something is not as it should be")]

mod bare;
mod cpu;
mod disk;
mod growth;
mod hook;
mod line;
mod load;
mod picture;
mod rate;
mod report;
mod servers;

use std::path::{Path, PathBuf};

use crate::load::{Load, Peer, Sample, Work};
use crate::rate::Asked;
use crate::report::Row;
use crate::servers::{Redis, Server};

/// The same allocator as the service's, for the bare route.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The argument that makes this program the bare route.
const BARE: &str = "--bare-route";

/// The arguments with which only one thing is measured: those who wait; leases that pile up; leases
/// that come and go; latency at given rates; the hook of a coding agent.
const ONLY: [(&str, fn()); 5] = [
    ("line", measure_line),
    ("growth", measure_growth),
    ("churn", measure_churn),
    ("rate", measure_rate),
    ("hook", measure_hook),
];

/// What is measured.
struct Scenario {
    name: &'static str,
    target: Target,
    peer: Peer,
    work: Work,
}

/// Where it is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Target {
    Bare,
    Webdis,
    Redis,
    /// The service that logs no line for each request.
    RedisQuiet,
    Etcd,
    /// A new service on an empty directory for each run.
    Embedded,
    /// A new service on three new Redis nodes for each run.
    Redlock,
    /// The build before, on Redis.
    RedisBefore,
    /// The build before, on an empty directory for each run.
    EmbeddedBefore,
}

impl Target {
    /// Returns whether it is the service of an older build.
    fn is_before(self) -> bool {
        matches!(self, Self::RedisBefore | Self::EmbeddedBefore)
    }
}

const SCENARIOS: [Scenario; 44] = [
    scenario("bare axum route", Target::Bare, Peer::Bare, Work::Acquire),
    scenario("webdis SET NX PX", Target::Webdis, Peer::Webdis, Work::Acquire),
    scenario("webdis, the service's script", Target::Webdis, Peer::Script, Work::Acquire),
    scenario("lockkeeper/redis acquire", Target::Redis, Peer::Lockkeeper, Work::Acquire),
    scenario("  the same, log.level = warn", Target::RedisQuiet, Peer::Lockkeeper, Work::Acquire),
    scenario("lockkeeper/embedded acquire", Target::Embedded, Peer::Lockkeeper, Work::Acquire),
    scenario("lockkeeper/redlock acquire", Target::Redlock, Peer::Lockkeeper, Work::Acquire),
    scenario("a new connection each, bare route", Target::Bare, Peer::Bare, Work::Fresh),
    scenario("  webdis SET NX PX", Target::Webdis, Peer::Webdis, Work::Fresh),
    scenario("  lockkeeper/redis", Target::Redis, Peer::Lockkeeper, Work::Fresh),
    scenario("  lockkeeper/embedded", Target::Embedded, Peer::Lockkeeper, Work::Fresh),
    scenario("webdis SET + DEL, 64", Target::Webdis, Peer::Webdis, Work::Cycle(64)),
    scenario("lockkeeper/redis, 64", Target::Redis, Peer::Lockkeeper, Work::Cycle(64)),
    scenario("lockkeeper/embedded, 64", Target::Embedded, Peer::Lockkeeper, Work::Cycle(64)),
    scenario("etcd lock + unlock, 64", Target::Etcd, Peer::Etcd, Work::Cycle(64)),
    scenario("webdis SET + DEL, 16", Target::Webdis, Peer::Webdis, Work::Cycle(16)),
    scenario("lockkeeper/redis, 16", Target::Redis, Peer::Lockkeeper, Work::Cycle(16)),
    scenario("lockkeeper/embedded, 16", Target::Embedded, Peer::Lockkeeper, Work::Cycle(16)),
    scenario("etcd lock + unlock, 16", Target::Etcd, Peer::Etcd, Work::Cycle(16)),
    scenario("webdis SET + DEL, 1", Target::Webdis, Peer::Webdis, Work::Cycle(1)),
    scenario("lockkeeper/redis, 1", Target::Redis, Peer::Lockkeeper, Work::Cycle(1)),
    scenario("lockkeeper/embedded, 1", Target::Embedded, Peer::Lockkeeper, Work::Cycle(1)),
    scenario("etcd lock + unlock, 1", Target::Etcd, Peer::Etcd, Work::Cycle(1)),
    scenario("lockkeeper/redlock, 1", Target::Redlock, Peer::Lockkeeper, Work::Cycle(1)),
    scenario("redis, a reader beside 1", Target::Redis, Peer::Lockkeeper, Work::Beside(1)),
    scenario("  beside 100", Target::Redis, Peer::Lockkeeper, Work::Beside(100)),
    scenario("  beside 999", Target::Redis, Peer::Lockkeeper, Work::Beside(999)),
    scenario("embedded, a reader beside 1", Target::Embedded, Peer::Lockkeeper, Work::Beside(1)),
    scenario("  beside 100", Target::Embedded, Peer::Lockkeeper, Work::Beside(100)),
    scenario("  beside 999", Target::Embedded, Peer::Lockkeeper, Work::Beside(999)),
    scenario("redis, 3 of 8 units", Target::Redis, Peer::Lockkeeper, Work::Units),
    scenario("embedded, 3 of 8 units", Target::Embedded, Peer::Lockkeeper, Work::Units),
    scenario("redis, 2 keys in one claim", Target::Redis, Peer::Lockkeeper, Work::Several(2)),
    scenario("  16 keys", Target::Redis, Peer::Lockkeeper, Work::Several(16)),
    scenario("embedded, 2 keys in one claim", Target::Embedded, Peer::Lockkeeper, Work::Several(2)),
    scenario("  16 keys", Target::Embedded, Peer::Lockkeeper, Work::Several(16)),
    scenario("before/redis acquire", Target::RedisBefore, Peer::Lockkeeper, Work::Acquire),
    scenario("before/redis, 64", Target::RedisBefore, Peer::Lockkeeper, Work::Cycle(64)),
    scenario("before/redis, 16", Target::RedisBefore, Peer::Lockkeeper, Work::Cycle(16)),
    scenario("before/redis, 1", Target::RedisBefore, Peer::Lockkeeper, Work::Cycle(1)),
    scenario("before/embedded acquire", Target::EmbeddedBefore, Peer::Lockkeeper, Work::Acquire),
    scenario("before/embedded, 64", Target::EmbeddedBefore, Peer::Lockkeeper, Work::Cycle(64)),
    scenario("before/embedded, 16", Target::EmbeddedBefore, Peer::Lockkeeper, Work::Cycle(16)),
    scenario("before/embedded, 1", Target::EmbeddedBefore, Peer::Lockkeeper, Work::Cycle(1)),
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
    before: Option<Server>,
    etcd: Server,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [first, port] if first == BARE => bare::serve(port.parse().unwrap()),
        [only] => match ONLY.iter().find(|(name, _)| name == only) {
            Some((_, measure)) => measure(),
            None => panic!("{only} is none of {:?}", ONLY.map(|(name, _)| name)),
        },
        _ => {
            measure();
            measure_line();
            measure_rate();
            measure_hook();
        }
    }
}

/// Where this program is, and the service: on a disk. A temporary directory may be in memory.
fn on_disk() -> PathBuf {
    let program = std::env::current_exe().unwrap();
    program.parent().unwrap().to_owned()
}

fn measure() {
    let rounds = number("LOCKKEEPER_BENCH_ROUNDS", 5);
    let seconds = number("LOCKKEEPER_BENCH_SECONDS", 2);
    report::print_machine();
    println!(
        "{rounds} rounds of {seconds} s each after a warm-up, interleaved. Acquires are sent over {} \n\
         connections, cycles of acquire and release over as many as the row says.",
        load::CONNECTIONS
    );
    println!("a page of 4 KiB written and synchronised: {:.0} us", disk::sync_micros());
    let redis = Redis::start();
    let directory = tempfile::tempdir().unwrap();
    let disk = tempfile::tempdir_in(on_disk()).unwrap();
    let servers = Servers::start(&redis, directory.path(), disk.path());
    let mut load = Load::new(&redis);
    let measured = SCENARIOS.iter().filter(|one| before().is_some() || !one.target.is_before());
    let mut rows: Vec<Row<'_>> =
        measured.map(|scenario| Row { scenario, samples: Vec::new() }).collect();
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
    let disk = tempfile::tempdir_in(on_disk()).unwrap();
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

/// Measures growth, and draws it.
fn measure_growth() {
    on_each_store(growth::measure);
}

/// Measures what is left of leases that come and go.
fn measure_churn() {
    on_each_store(|stores, load| {
        stores.iter().for_each(|(name, server)| growth::churn(name, server, load))
    });
}

fn on_each_store(measure: impl Fn(&[(&'static str, Server)], &mut Load<'_>)) {
    report::print_machine();
    let redis = Redis::start();
    let disk = tempfile::tempdir_in(on_disk()).unwrap();
    let embedded = format!("embedded:{}", disk.path().display());
    let stores = [("redis", redis.url()), ("embedded", embedded)];
    let stores = stores.map(|(name, store)| (name, Server::lockkeeper(&[&store], &[])));
    measure(&stores, &mut Load::new(&redis));
}

/// Measures latency at given rates.
fn measure_rate() {
    let rounds = number("LOCKKEEPER_BENCH_ROUNDS", 5);
    let seconds = number("LOCKKEEPER_BENCH_SECONDS", 1);
    report::print_machine();
    let redis = Redis::start();
    let (directory, disk) =
        (tempfile::tempdir().unwrap(), tempfile::tempdir_in(on_disk()).unwrap());
    let servers = Servers::start(&redis, directory.path(), disk.path());
    let store = format!("embedded:{}", disk.path().join("embedded").display());
    let embedded = Server::lockkeeper(&[&store], &[]);
    let acquire = |key: &str| {
        format!("POST /locks/{key}?ttl=5s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
    };
    let set =
        |key: &str| format!("GET /SET/{key}/1/NX/PX/5000 HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let all = [
        Asked { name: "bare axum route", server: &servers.bare, request: acquire },
        Asked { name: "webdis, SET NX PX", server: &servers.webdis, request: set },
        Asked { name: "lockkeeper on Redis", server: &servers.service, request: acquire },
        Asked { name: "lockkeeper, embedded store", server: &embedded, request: acquire },
    ];
    rate::measure(&all, (rounds, seconds), &on_disk());
}

/// Measures the hook of a coding agent.
fn measure_hook() {
    let disk = tempfile::tempdir_in(on_disk()).unwrap();
    let store = format!("embedded:{}", disk.path().display());
    hook::measure(number("LOCKKEEPER_BENCH_ROUNDS", 5), &Server::lockkeeper(&[&store], &[]));
}

impl Servers {
    fn start(redis: &Redis, directory: &Path, disk: &Path) -> Self {
        Self {
            bare: Server::bare(),
            webdis: Server::webdis(redis, directory),
            service: Server::lockkeeper(&[&redis.url()], &[]),
            etcd: Server::etcd(disk),
            quiet: Server::lockkeeper(&[&redis.url()], &[("LOCKKEEPER_LOG_LEVEL", "warn")]),
            before: before().map(|program| Server::service(&program, &[&redis.url()], &[])),
        }
    }

    fn load(&self, scenario: &Scenario, load: &mut Load<'_>, seconds: u64) -> Sample {
        let mut run = |server: &Server| load.run(server, scenario.peer, scenario.work, seconds);
        match scenario.target {
            Target::Bare => run(&self.bare),
            Target::Webdis => run(&self.webdis),
            Target::Redis => run(&self.service),
            Target::RedisQuiet => run(&self.quiet),
            Target::Etcd => run(&self.etcd),
            Target::RedisBefore => run(self.before.as_ref().expect("it is measured")),
            Target::Embedded | Target::EmbeddedBefore => {
                let directory = tempfile::tempdir_in(on_disk()).unwrap();
                let store = format!("embedded:{}", directory.path().display());
                let older = before().filter(|_| scenario.target.is_before());
                run(&Server::service(&older.unwrap_or_else(servers::lockkeeper), &[&store], &[]))
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

/// The binary of an older build, to be measured as well.
fn before() -> Option<PathBuf> {
    std::env::var_os("LOCKKEEPER_BENCH_BEFORE").map(PathBuf::from)
}

/// A number from the environment, at least 1.
fn number(variable: &str, default: u64) -> u64 {
    let Ok(text) = std::env::var(variable) else { return default };
    let number = text.parse().ok().filter(|&number| number > 0);
    number.unwrap_or_else(|| panic!("{variable} has to be a whole number from 1 on, not {text:?}"))
}
