//! Other programs that take locks: on Redis directly, by the recipes and libraries that applications
//! use, or over HTTP. And a service that shares a Redis with them.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::packages::{INTEROP, TESTS, node_modules, python, venv};
use crate::support::process::command;
use crate::support::{Http, Process, Redis, eventually};

/// A lease that is to end by itself within a test.
const SHORT: Duration = Duration::from_millis(400);

/// How much earlier than its TTL a lease on Redis may seem to end: its clock has whole milliseconds.
const ROUNDING: Duration = Duration::from_millis(2);

const PATIENCE: Duration = Duration::from_secs(30);

/// A service and the Redis that it shares with applications.
pub(crate) struct Site {
    pub(crate) redis: Redis,
    process: Process,
}

impl Site {
    pub(crate) fn start(variables: &[(&str, &str)]) -> Self {
        let redis = Redis::start();
        // The workers take the machine for themselves.
        let patient = [("LOCKKEEPER_REDIS_COMMAND_TIMEOUT", "10s")];
        let process = Process::start(&redis.url(), &[variables, &patient].concat());
        Self { redis, process }
    }

    pub(crate) fn http(&self) -> Http {
        self.process.http()
    }

    pub(crate) fn port(&self) -> String {
        self.redis.port().to_string()
    }

    pub(crate) fn url(&self) -> String {
        self.http().url()
    }

    /// What a process has to show for the lock, if it got it.
    pub(crate) fn acquire(&self, recipe: &str, key: &str, ttl_ms: u64) -> Option<String> {
        let taken = step(recipe, &self.port(), &["acquire", key, &ttl_ms.to_string()]);
        Some(taken).filter(|proof| proof != "held")
    }

    pub(crate) fn release(&self, recipe: &str, key: &str, proof: &str) -> String {
        step(recipe, &self.port(), &["release", key, proof])
    }

    /// How many commands Redis has run that can take a lock.
    pub(crate) fn asked(&self) -> u64 {
        let stats: String = self.redis.run("INFO commandstats");
        let calls = ["set", "eval", "evalsha"].map(|name| {
            let line =
                stats.lines().find_map(|line| line.strip_prefix(&format!("cmdstat_{name}:calls=")));
            line.map_or(0, |line| line.split(',').next().unwrap().parse::<u64>().unwrap())
        });
        calls.iter().sum()
    }

    pub(crate) async fn told(&self, method: &str, path: &str) -> (u16, String) {
        self.http().send(method, path, "").await.told()
    }

    pub(crate) async fn excludes_until_release(&self, recipe: &str) {
        let key = &format!("first/{recipe}");
        let path = format!("/locks/{key}");
        let proof = self.acquire(recipe, key, 60_000).unwrap();
        assert_eq!(self.told("POST", &path).await, (409, "lock_held".into()));
        assert_eq!(self.acquire(recipe, key, 60_000), None);
        let look = self.http().get(&path).await.json();
        assert_eq!((look["held"].as_bool(), look.get("owner")), (Some(true), None));
        let other = self.http().token("a-token-of-somebody-else");
        assert_eq!(other.delete(&path).await.told(), (409, "lock_lost".into()));
        assert_eq!(self.told("POST", &path).await, (409, "lock_held".into()));
        assert_eq!(self.release(recipe, key, &proof), "released");
        assert_eq!(self.told("POST", &path).await.0, 201);
    }

    pub(crate) async fn is_excluded_until_release(&self, recipe: &str) {
        let key = &format!("second/{recipe}");
        let path = format!("/locks/{key}");
        let token = self.http().post(&path, "").await.text("token");
        let holder = self.http().token(&token);
        assert_eq!(self.acquire(recipe, key, 60_000), None);
        assert_eq!(holder.put(&format!("{path}/refresh"), "").await.status, 200);
        assert_eq!(self.acquire(recipe, key, 60_000), None);
        assert_eq!(holder.get(&path).await.field("mine"), true);
        assert_eq!(holder.delete(&path).await.status, 204);
        let proof = self.acquire(recipe, key, 60_000).unwrap();
        assert_eq!(holder.delete(&path).await.told(), (409, "lock_lost".into()));
        assert_eq!(self.release(recipe, key, &proof), "released");
    }

    pub(crate) async fn is_excluded_while_leases_share_the_key(&self, recipe: &str) {
        let key = &format!("shared/{recipe}");
        let path = format!("/locks/{key}");
        let shared = format!("{path}?ttl=1h&slots=2");
        for _ in 0..2 {
            let tokens = [(); 2].map(async |()| self.http().post(&shared, "").await.text("token"));
            let tokens = futures_util::future::join_all(tokens).await;
            assert_eq!(self.acquire(recipe, key, 60_000), None);
            for token in tokens {
                assert_eq!(self.release(recipe, key, &token), "lost");
                assert_eq!(self.acquire(recipe, key, 60_000), None);
                assert_eq!(self.http().token(&token).delete(&path).await.status, 204);
            }
            let proof = self.acquire(recipe, key, 60_000).unwrap();
            assert_eq!(self.told("POST", &shared).await, (409, "lock_held".into()));
            assert_eq!(self.release(recipe, key, &proof), "released");
        }
    }

    pub(crate) async fn is_excluded_until_expiry(&self, recipe: &str) {
        let key = &format!("third/{recipe}");
        let path = format!("/locks/{key}");
        let began = Instant::now();
        let form = format!(r#"{{"ttl_ms":{}}}"#, SHORT.as_millis());
        let holder = self.http().token(&self.http().post(&path, &form).await.text("token"));
        let taken = eventually(PATIENCE, async || self.acquire(recipe, key, 60_000)).await;
        assert!(began.elapsed() + ROUNDING >= SHORT, "{recipe} had it {:?} on", began.elapsed());
        let refreshed = holder.put(&format!("{path}/refresh"), "").await;
        assert_eq!(refreshed.told(), (409, "lock_lost".into()));
        assert_eq!(holder.delete(&path).await.told(), (409, "lock_lost".into()));
        assert_eq!(self.told("POST", &path).await, (409, "lock_held".into()));
        assert_eq!(self.release(recipe, key, &taken), "released");
    }

    pub(crate) async fn excludes_until_expiry(&self, recipe: &str) {
        let key = &format!("fourth/{recipe}");
        let path = format!("/locks/{key}");
        let began = Instant::now();
        let proof = self.acquire(recipe, key, SHORT.as_millis().try_into().unwrap()).unwrap();
        let granted = eventually(PATIENCE, async || {
            let answer = self.http().post(&path, "").await;
            (answer.status == 201).then_some(answer)
        });
        let token = granted.await.text("token");
        assert!(began.elapsed() + ROUNDING >= SHORT, "{recipe} ended {:?} on", began.elapsed());
        assert_eq!(self.release(recipe, key, &proof), "lost");
        assert_eq!(self.http().token(&token).get(&path).await.field("mine"), true);
    }
}

/// What one step of a recipe prints; `place` is a port of Redis, several with commas, or a base URL.
pub(crate) fn step(recipe: &str, place: &str, words: &[&str]) -> String {
    said(script(recipe, "recipe").args([recipe, place]).args(words))
}

/// What a file says after all these workers added one to it so many times each.
pub(crate) fn counted(workers: &[(&str, &str)], rounds: u32) -> u64 {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("counter");
    std::fs::write(&file, "0").unwrap();
    let prepared = workers.iter().map(|(recipe, place)| {
        let mut worker = script(recipe, "worker");
        worker.args([recipe, place, "counter"]).arg(&file).arg(rounds.to_string());
        worker.stdout(Stdio::piped()).stderr(Stdio::piped());
        worker
    });
    // What they need is installed before the first of them begins.
    let prepared: Vec<_> = prepared.collect();
    let running: Vec<_> = prepared.into_iter().map(|mut worker| worker.spawn().unwrap()).collect();
    for worker in running {
        let done = worker.wait_with_output().unwrap();
        assert!(done.status.success(), "{done:?}");
    }
    std::fs::read_to_string(&file).unwrap().parse().unwrap()
}

/// What a script of `tests/php` prints, if all went well.
pub(crate) fn php(script: &str, arguments: &[&str]) -> String {
    said(php_script(script).args(arguments))
}

/// `recipe` or `worker` in the language that a recipe is written in.
fn script(recipe: &str, name: &str) -> Command {
    let interop = Path::new(TESTS).join("interop");
    match recipe {
        "redis-py" | "redlock-py" => {
            let mut python = command(python(&venv(INTEROP)));
            python.env("PYTHONDONTWRITEBYTECODE", "1");
            python.arg(interop.join("python").join(name).with_extension("py"));
            python
        }
        "node-redlock-4" | "node-redlock-5" => {
            let mut node = command("node");
            node.env("NODE_PATH", node_modules("interop"));
            node.arg(interop.join("node").join(name).with_extension("js"));
            node
        }
        _ => php_script(&format!("{name}.php")),
    }
}

fn php_script(script: &str) -> Command {
    let mut php = command("php");
    php.args(["-d", "display_errors=stderr", "-d", "error_reporting=-1"]);
    php.arg(Path::new(TESTS).join("php").join(script));
    php
}

/// What a program prints, if it does not complain.
fn said(program: &mut Command) -> String {
    let done = program.output().unwrap();
    let [out, error] = [&done.stdout, &done.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(done.status.success() && error.is_empty(), "{program:?}: {out}{error}");
    out.trim().to_owned()
}
