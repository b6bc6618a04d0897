//! The store on a single Redis on bad days.

mod away;
mod claims;
pub(crate) mod clock;
pub(crate) mod contest;
mod data;
mod foreign;
mod held_up;
mod line;
mod links;
mod lists;
pub(crate) mod login;
mod moving;
mod paused;
mod places;
mod rights;
mod servers;
mod shared;

use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

use crate::support::process::{command, unread};
use crate::support::{Answer, Http, Redis, Service};

/// Far more than anything here takes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// Longer than any test takes.
pub(crate) const LONG: Duration = Duration::from_secs(600);

/// A service on this Redis, with these variables as well.
async fn service(redis: &Redis, variables: &[(&str, &str)]) -> Service {
    let url = redis.url();
    let mut all = vec![("LOCKKEEPER_STORE", url.as_str())];
    all.extend_from_slice(variables);
    Service::start(&all, "").await
}

/// A library for LD_PRELOAD, built into this directory from the source of this name beside this file.
fn preloaded(name: &str, directory: &TempDir) -> PathBuf {
    let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it/redis_faults");
    let library = directory.path().join(name).with_extension("so");
    let built = command("cc")
        .args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(&library)
        .arg(beside.join(name).with_extension("c"))
        .status()
        .expect("cc is there: Rust links with it");
    assert!(built.success());
    library
}

/// Asks for a key with a token of the client's own.
pub(crate) async fn acquire(http: &Http, key: &str, token: &str, ttl: Duration) -> Answer {
    let body = format!(r#"{{"token":"{token}","ttl_ms":{}}}"#, ttl.as_millis());
    http.post(&format!("/locks/{key}"), &body).await
}

pub(crate) async fn refresh(http: &Http, key: &str, token: &str) -> Answer {
    http.token(token).put(&format!("/locks/{key}/refresh"), "").await
}

pub(crate) async fn release(http: &Http, key: &str, token: &str) -> Answer {
    http.token(token).delete(&format!("/locks/{key}")).await
}

pub(crate) async fn look(http: &Http, key: &str) -> Answer {
    http.get(&format!("/locks/{key}")).await
}

fn held() -> (u16, String) {
    (409, "lock_held".to_owned())
}

pub(crate) fn lost() -> (u16, String) {
    (409, "lock_lost".to_owned())
}

/// How often Redis has run a command.
pub(crate) fn calls_of(redis: &Redis, command: &str) -> u64 {
    let stats = redis.run::<String>("INFO commandstats");
    let calls = stats
        .lines()
        .find_map(|line| line.strip_prefix(&format!("cmdstat_{command}:calls=")))
        .and_then(|rest| rest.split(',').next());
    calls.map_or(0, |calls| calls.parse().unwrap())
}

/// Whether a Redis that stands still has a script to read, which is longer than any heartbeat.
pub(crate) fn is_left(redis: &Redis) -> bool {
    unread(redis.port()).into_iter().any(|(_, bytes)| bytes > 100)
}

pub(crate) fn unavailable() -> (u16, String) {
    (503, "store_unavailable".to_owned())
}
