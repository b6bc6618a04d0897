//! What the tests stand on: real services, real servers, and a client that sends what it is told.

pub(crate) mod certificates;
pub(crate) mod fenced;
pub(crate) mod fleet;
pub(crate) mod gate;
pub(crate) mod http;
pub(crate) mod openapi;
pub(crate) mod packages;
pub(crate) mod peers;
pub(crate) mod process;
pub(crate) mod raw;
pub(crate) mod redis;
pub(crate) mod script;
pub(crate) mod service;
pub(crate) mod wire;

pub(crate) use crate::support::http::{Answer, Http};
pub(crate) use crate::support::openapi::Checked;
pub(crate) use crate::support::process::Process;
pub(crate) use crate::support::redis::Redis;
pub(crate) use crate::support::script::Script;
pub(crate) use crate::support::service::Service;

use std::time::{Duration, Instant};

use tempfile::TempDir;

/// An address at which nothing listens, whatever else is on the machine; a port that is free may not
/// stay so.
pub(crate) const NOWHERE: &str = "127.0.0.1:1";

/// How long a test waits for what should come at once, on a machine that is busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A directory in memory, where there is room: what writes to the disk holds up no store in it.
pub(crate) fn in_memory() -> TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Asks again until `question` is answered with something, for at most `patience`.
pub(crate) async fn eventually<T, F: Future<Output = Option<T>>>(
    patience: Duration,
    mut question: impl FnMut() -> F,
) -> T {
    let began = Instant::now();
    loop {
        if let Some(answer) = question().await {
            return answer;
        }
        assert!(began.elapsed() < patience, "not within {patience:?}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}
