//! Load by wrk, and whether all of it was answered as it should be.

use std::collections::BTreeMap;
use std::fs;
use std::ops::Sub;
use std::process::Stdio;

use tempfile::TempDir;

use crate::cpu;
use crate::servers::{Redis, Server, command};

/// Clients at a time that acquire.
pub(crate) const CONNECTIONS: u64 = 64;

/// A release follows its acquire by so many acquires. Each connection is answered some eight times
/// in between, so that the acquire has been answered whatever overtakes it.
const LAG: u64 = 512;

const SCRIPT: &str = include_str!("load.lua");

/// What the clients do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Each request takes a key that nobody has used.
    Acquire,
    /// The same over a new connection for each request, as PHP does.
    Fresh,
    /// Acquires for ten minutes, so that none ends meanwhile.
    Keep,
    /// Each key is given up again, over so many connections.
    Cycle(u64),
    /// Over one connection, readers of one key that so many others share.
    Beside(u16),
    /// Over one connection, three of eight units of one key.
    Units,
    /// Over one connection, so many keys by one request, given up by another.
    Several(u64),
}

impl Work {
    fn connections(self) -> u64 {
        match self {
            Self::Acquire | Self::Fresh | Self::Keep => CONNECTIONS,
            Self::Cycle(connections) => connections,
            Self::Beside(_) | Self::Units | Self::Several(_) => 1,
        }
    }

    fn ttl(self) -> &'static str {
        if self == Self::Keep { "10m" } else { "60s" }
    }

    fn lag(self) -> u64 {
        if self.connections() > 1 { LAG } else { 0 }
    }

    /// Returns whether each key is given up again.
    fn gives_up(self) -> bool {
        !matches!(self, Self::Acquire | Self::Fresh | Self::Keep)
    }

    fn share(self) -> &'static str {
        match self {
            Self::Beside(_) => "&shared=true",
            Self::Units => "&slots=8&units=3",
            _ => "",
        }
    }

    /// The keys of a request.
    fn keys(self) -> u64 {
        if let Self::Several(keys) = self { keys } else { 1 }
    }
}

/// Whose words the clients speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// The bare route; it counts nothing.
    Bare,
    /// `SET key value NX PX ttl`, and `DEL key`.
    Webdis,
    /// The service's own script, sent by webdis: what the promises cost without the service.
    Script,
    /// `POST` and `DELETE`.
    Lockkeeper,
    /// `lock` and `unlock` of etcd, which are JSON over HTTP as well. All keys have one lease.
    Etcd,
}

impl Peer {
    /// What `load.lua` calls it.
    fn name(self) -> &'static str {
        match self {
            Self::Webdis => "webdis",
            Self::Script => "script",
            Self::Etcd => "etcd",
            Self::Bare | Self::Lockkeeper => "lockkeeper",
        }
    }
}

/// What a run has shown.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    /// Answers per second.
    pub(crate) requests: f64,
    /// Acquires per second, or acquires that were released again.
    pub(crate) operations: f64,
    /// Processor time of the server for a request, in microseconds.
    pub(crate) server_micros: f64,
    /// The same of Redis, whoever uses it.
    pub(crate) redis_micros: f64,
    /// How many processors had something else to do.
    pub(crate) others: f64,
}

/// Sends load; the scripts are in a directory of its own.
pub(crate) struct Load<'a> {
    directory: TempDir,
    redis: &'a Redis,
    runs: u64,
}

/// Processor time in microseconds.
#[derive(Clone, Copy)]
struct Used {
    server: f64,
    redis: f64,
    /// The children of this process that have ended: wrk, mostly.
    wrk: f64,
    /// All processes of the machine.
    all: f64,
}

impl Used {
    fn until_now(server: &Server, redis: &Redis) -> Self {
        Self {
            server: server.cpu_micros(),
            redis: redis.server.cpu_micros(),
            wrk: cpu::of_ended_children(),
            all: cpu::of_all(),
        }
    }
}

impl Sub for Used {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        Self {
            server: self.server - earlier.server,
            redis: self.redis - earlier.redis,
            wrk: self.wrk - earlier.wrk,
            all: self.all - earlier.all,
        }
    }
}

/// What wrk has counted.
struct Answered {
    requests: u64,
    /// Those of them that were refused.
    errors: u64,
    seconds: f64,
}

impl<'a> Load<'a> {
    pub(crate) fn new(redis: &'a Redis) -> Self {
        Self { directory: tempfile::tempdir().unwrap(), redis, runs: 0 }
    }

    /// Loads a server on a Redis without keys for so many seconds.
    ///
    /// # Panics
    ///
    /// If any answer was not what the work asks for.
    pub(crate) fn run(&mut self, server: &Server, peer: Peer, work: Work, seconds: u64) -> Sample {
        self.redis.flush();
        self.go_on(server, peer, work, seconds)
    }

    /// The same, beside the keys that there are.
    pub(crate) fn go_on(
        &mut self,
        server: &Server,
        peer: Peer,
        work: Work,
        seconds: u64,
    ) -> Sample {
        let tag = format!("bench-{}", self.runs);
        if let Work::Beside(others) = work {
            server.share(&tag, others);
        }
        let outcomes = || match peer {
            Peer::Lockkeeper => server.outcomes(),
            Peer::Bare | Peer::Webdis | Peer::Script | Peer::Etcd => BTreeMap::new(),
        };
        let revision = || if peer == Peer::Etcd { server.revision() } else { 0 };
        let first = revision();
        let before = outcomes();
        let began = Used::until_now(server, self.redis);
        let answered = self.wrk(server.port, (peer, work), &tag, seconds);
        let used = Used::until_now(server, self.redis) - began;
        let operations = match peer {
            Peer::Bare => answered.requests,
            Peer::Webdis => webdis_operations(answered.requests, self.redis.keys(), work),
            Peer::Script => script_operations(answered.requests, self.redis.keys()),
            Peer::Lockkeeper => operations(&answered, &before, &outcomes(), work),
            Peer::Etcd => etcd_operations(answered.requests, revision() - first),
        };
        let requests = answered.requests as f64;
        Sample {
            requests: requests / answered.seconds,
            operations: operations as f64 / answered.seconds,
            server_micros: used.server / requests,
            redis_micros: used.redis / requests,
            others: (used.all - used.server - used.redis - used.wrk).max(0.0)
                / (answered.seconds * 1e6),
        }
    }

    fn wrk(&mut self, port: u16, (peer, work): (Peer, Work), tag: &str, seconds: u64) -> Answered {
        self.runs += 1;
        let (name, sha, lag) = (peer.name(), self.redis.script(), work.lag());
        let (cycle, fresh) = (work.gives_up(), work == Work::Fresh);
        let (share, keys, ttl) = (work.share(), work.keys(), work.ttl());
        let head = format!(
            "TAG, PEER, CYCLE, LAG, SHA = {tag:?}, {name:?}, {cycle}, {lag}, {sha:?}\n\
             SHARE, KEYS, TTL, FRESH = {share:?}, {keys}, {ttl:?}, {fresh}\n"
        );
        let script = self.directory.path().join("load.lua");
        fs::write(&script, head + SCRIPT).unwrap();
        let output = command("wrk")
            .args(["--threads", "1", "--connections", &work.connections().to_string()])
            .args(["--timeout", "60s", "--duration", &format!("{seconds}s"), "--script"])
            .arg(&script)
            .arg(format!("http://127.0.0.1:{port}"))
            .stderr(Stdio::inherit())
            .output()
            .unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let result = text.lines().find_map(|line| line.strip_prefix("RESULT "));
        let result = result.unwrap_or_else(|| panic!("wrk has no result: {text}"));
        let numbers: Vec<u64> = result.split(' ').map(|number| number.parse().unwrap()).collect();
        let [requests, micros, errors] = numbers[..] else { panic!("no result: {result}") };
        // On a busy machine three nodes do not always answer in time, which is told.
        let most = if peer == Peer::Lockkeeper { requests / 100 } else { 0 };
        assert!(requests > 0 && errors <= most, "{peer:?}, {work:?}: not all is well: {text}");
        Answered { requests, errors, seconds: micros as f64 / 1e6 }
    }
}

/// What webdis has done, told by the keys that are left: it answers 200 whatever happened.
fn webdis_operations(requests: u64, keys: u64, work: Work) -> u64 {
    let what = format!("webdis answered {requests} requests and left {keys} keys");
    if !work.gives_up() {
        assert!(most_of(requests).contains(&keys), "{what}");
        return keys.min(requests);
    }
    // What wrk gives up late, and what was under way.
    assert!(keys <= work.lag() + 1 + CONNECTIONS, "{what}");
    assert!(keys + CONNECTIONS >= work.lag().min(requests), "{what}");
    requests.saturating_sub(keys) / 2
}

/// What webdis has done with the service's script: each grant leaves the lock and its record.
fn script_operations(requests: u64, keys: u64) -> u64 {
    let grants = keys / 2;
    let what = format!("webdis answered {requests} requests and left {keys} keys");
    assert!(most_of(requests).contains(&grants), "{what}");
    grants.min(requests)
}

/// What etcd has done: each lock and each unlock is a revision of its own.
fn etcd_operations(requests: u64, revisions: u64) -> u64 {
    assert!(settled(requests).contains(&revisions), "{requests} requests, {revisions} revisions");
    requests / 2
}

/// What the service has done by its own count, which has to be all that was answered.
fn operations(
    &Answered { requests, errors, .. }: &Answered,
    before: &BTreeMap<String, u64>,
    after: &BTreeMap<String, u64>,
    work: Work,
) -> u64 {
    const GRANTED: &str = "lockkeeper_acquire_total{outcome=\"granted\"}";
    const RELEASED: &str = "lockkeeper_release_total{outcome=\"ok\"}";
    let mut counts = after.clone();
    for (name, count) in before {
        *counts.get_mut(name).unwrap() -= count;
    }
    let what = format!("the service answered {requests} requests and counted {counts:?}");
    let granted = counts.remove(GRANTED).unwrap_or(0);
    let released = counts.remove(RELEASED).unwrap_or(0);
    assert!(counts.values().sum::<u64>() <= errors + CONNECTIONS, "{what}");
    let done = (granted + released) / work.keys();
    assert!(settled(requests - errors).contains(&done), "{what}");
    if work.gives_up() { released / work.keys() } else { requests.min(granted) }
}

/// The same by webdis, which answers a few of 10 000 requests without asking Redis.
fn most_of(requests: u64) -> std::ops::RangeInclusive<u64> {
    requests - requests / 1000..=requests + CONNECTIONS
}

/// How much may have been done when so much was answered: wrk leaves with requests under way.
fn settled(requests: u64) -> std::ops::RangeInclusive<u64> {
    requests..=requests + CONNECTIONS
}
