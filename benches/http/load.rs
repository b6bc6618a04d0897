//! Load by wrk, and whether all of it was answered as it should be.

use std::collections::BTreeMap;
use std::fs;
use std::process::Stdio;

use tempfile::TempDir;

use crate::servers::Redis;
use crate::servers::Server;
use crate::servers::command;

/// Clients at a time, over two threads of wrk.
pub(crate) const CONNECTIONS: u64 = 64;

/// A release follows its acquire by so many acquires of the same thread of wrk. Its 32 connections
/// are answered some 30 times in between, so that the acquire has been answered whatever overtakes
/// it.
const LAG: u64 = 512;

const SCRIPT: &str = include_str!("load.lua");

/// What the clients do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Each request takes a key that nobody has used.
    Acquire,
    /// The same, and the keys are given up again.
    Cycle,
}

/// Whose words the clients speak.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Peer {
    /// The bare route; it counts nothing.
    Bare,
    /// `SET key value NX PX ttl`, and `DEL key`.
    Webdis,
    /// `POST` and `DELETE`.
    Lockkeeper,
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
}

/// Sends load; the scripts are in a directory of its own.
pub(crate) struct Load<'a> {
    directory: TempDir,
    redis: &'a Redis,
    runs: u64,
}

/// What wrk has counted.
struct Answered {
    requests: u64,
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
        let outcomes = || match peer {
            Peer::Lockkeeper => server.outcomes(),
            Peer::Bare | Peer::Webdis => BTreeMap::new(),
        };
        let before = (server.cpu_micros(), self.redis.server.cpu_micros(), outcomes());
        let answered = self.wrk(server.port, peer, work, seconds);
        let after = (server.cpu_micros(), self.redis.server.cpu_micros(), outcomes());
        let operations = match peer {
            Peer::Bare => answered.requests,
            Peer::Webdis => webdis_operations(answered.requests, self.redis.keys(), work),
            Peer::Lockkeeper => operations(answered.requests, &before.2, &after.2, work),
        };
        let requests = answered.requests as f64;
        Sample {
            requests: requests / answered.seconds,
            operations: operations as f64 / answered.seconds,
            server_micros: (after.0 - before.0) as f64 / requests,
            redis_micros: (after.1 - before.1) as f64 / requests,
        }
    }

    fn wrk(&mut self, port: u16, peer: Peer, work: Work, seconds: u64) -> Answered {
        self.runs += 1;
        let name = if peer == Peer::Webdis { "webdis" } else { "lockkeeper" };
        let cycle = work == Work::Cycle;
        let tag = format!("bench-{}", self.runs);
        let head = format!("TAG, PEER, CYCLE, LAG = {tag:?}, {name:?}, {cycle}, {LAG}\n");
        let script = self.directory.path().join("load.lua");
        fs::write(&script, head + SCRIPT).unwrap();
        let output = command("wrk")
            .args(["--threads", "2", "--connections", &CONNECTIONS.to_string()])
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
        assert!(requests > 0 && errors == 0, "{peer:?}, {work:?}: not all is well: {text}");
        Answered { requests, seconds: micros as f64 / 1e6 }
    }
}

/// What webdis has done, told by the keys that are left: it answers 200 whatever happened.
fn webdis_operations(requests: u64, keys: u64, work: Work) -> u64 {
    let what = format!("webdis answered {requests} requests and left {keys} keys");
    match work {
        Work::Acquire => {
            assert!(settled(requests).contains(&keys), "{what}");
            requests
        }
        Work::Cycle => {
            // What is given up late, by each of the two threads, and what was under way.
            assert!(keys <= 2 * (LAG + 1) + CONNECTIONS, "{what}");
            requests.saturating_sub(keys) / 2
        }
    }
}

/// What the service has done by its own count, which has to be all that was answered, done well.
fn operations(
    requests: u64,
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
    assert!(counts.values().all(|&count| count == 0), "{what}");
    assert!(settled(requests).contains(&(granted + released)), "{what}");
    match work {
        Work::Acquire => requests.min(granted),
        Work::Cycle => released,
    }
}

/// How much may have been done when so much was answered: wrk leaves with requests under way.
fn settled(requests: u64) -> std::ops::RangeInclusive<u64> {
    requests..=requests + CONNECTIONS
}
