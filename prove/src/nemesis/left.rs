//! What is left once every client has gone and every lease is over.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use serde_json::Value;
use tokio::time::{Instant, sleep};

use crate::history::{Left, Line};
use crate::http::Connection;
use crate::nemesis::Nemesis;
use crate::servers::{Site, serves};

/// The longest place in line of a claim that is away, which is longer than any TTL with its linger; the
/// longest step of a clock; and a moment.
const ALL_OVER: Duration = Duration::from_secs(8);

/// How many more descriptors an instance may have than before the load: connections to its store that
/// come and go.
const DESCRIPTORS: u64 = 24;

/// How many more KiB of memory it may have than before the load.
const MEMORY_KIB: u64 = 128 * 1024;

/// How often a key is asked for: on a busy machine a store may not answer in time.
const TRIES: usize = 5;

/// What `PTTL` says of a key without an end; of a key that has just ended it says -2.
const ENDLESS: i64 = -1;

/// The longest that Redis keeps a line that nobody joins.
const LINE_MS: i64 = 120_000;

/// The most fields of a line's crew: instances, each with a new name after a restart, for a minute.
const CREW: u64 = 24;

/// What an instance had before the load.
#[derive(Clone, Copy, Debug)]
pub(super) struct Baseline {
    descriptors: u64,
    memory_kib: u64,
}

/// Returns what each instance has now.
pub(super) fn baseline(site: &Site) -> Vec<Baseline> {
    let counted = site.instances.iter().map(|instance| {
        let process = &instance.process;
        Baseline { descriptors: process.descriptors(), memory_kib: process.memory_kib() }
    });
    counted.collect()
}

impl Nemesis<'_> {
    /// Mends everything, waits until everything is over, and records what is left.
    pub(crate) async fn leftovers(&mut self, keys: u32) -> io::Result<()> {
        self.revive().await?;
        self.site.until_it_serves().await?;
        sleep(ALL_OVER).await;
        let (mut held, mut waiters) = (0, 0);
        for key in 0..keys {
            let look = self.looked(key).await?;
            held += u64::from(look["held"] == true);
            waiters += look["waiters"].as_u64().unwrap_or(0);
        }
        self.note_left("redis fields of a crew", self.crew, CREW);
        self.note_left("held", held, 0);
        self.note_left("waiters", waiters, 0);
        let mut refused = 0;
        for key in 0..keys {
            refused += u64::from(!is_free(self.site.instances[0].address(), key).await);
        }
        self.note_left("keys that cannot be acquired", refused, 0);
        if !self.site.servers.is_empty() {
            let (mut endless, mut lasting, mut locks) = (0, 0, 0);
            for (name, left_ms) in self.names() {
                if left_ms == ENDLESS && !name.starts_with("lk//guard:") {
                    eprintln!("without an end: {name}");
                    endless += 1;
                }
                // Of an instance that died the line remembers those who waited there, for two minutes.
                let line = ["/line//", "/crew//", "/who//"].iter().any(|part| name.contains(part));
                lasting += u64::from(line && left_ms > LINE_MS);
                locks += u64::from(name.starts_with("lock:"));
            }
            self.note_left("redis keys without an end", endless, 0);
            self.note_left("redis lines that last", lasting, 0);
            self.note_left("redis locks", locks, 0);
        }
        let now = baseline(self.site);
        for (now, before) in now.iter().zip(&self.baseline) {
            self.note_left("descriptors", now.descriptors, before.descriptors + DESCRIPTORS);
            self.note_left("memory", now.memory_kib, before.memory_kib + MEMORY_KIB);
        }
        Ok(())
    }

    /// Measures the lists of the instances that wait for each key, which last as long as its line.
    pub(super) fn measure_crews(&mut self) {
        for server in &self.site.servers {
            let names: io::Result<Vec<String>> = server.run(&["KEYS", "*/crew//*"]);
            let fields = names.unwrap_or_default().into_iter().map(|name| {
                let fields: io::Result<u64> = server.run(&["HLEN", &name]);
                fields.unwrap_or(0)
            });
            self.crew = fields.fold(self.crew, u64::max);
        }
    }

    fn note_left(&self, what: &str, count: u64, allowed: u64) {
        self.recorder.write(Line::Left(Left { what: what.to_owned(), count, allowed }));
    }

    /// Returns the answer to a look, which every instance has to give by now.
    async fn looked(&self, key: u32) -> io::Result<Value> {
        let address = self.site.instances[0].address();
        let end = Instant::now() + Duration::from_secs(10);
        loop {
            let mut connection = Connection::open(address).await?;
            let (status, body) = connection.call(&format!("GET /locks/k{key}"), None).await?;
            if status == 200 {
                return Ok(serde_json::from_slice(&body)?);
            }
            if Instant::now() > end {
                return Err(io::Error::other(format!("a look is answered {status}")));
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// Returns the keys of all servers with what is left of each, in milliseconds.
    fn names(&self) -> Vec<(String, i64)> {
        let mut all = Vec::new();
        for server in &self.site.servers {
            let names: io::Result<Vec<String>> = server.run(&["KEYS", "*"]);
            for name in names.unwrap_or_default() {
                let left: i64 = server.run(&["PTTL", &name]).unwrap_or(0);
                all.push((name, left));
            }
        }
        all
    }
}

/// Whether a key is granted at once and given back, by which the store also forgets who waited for it.
async fn is_free(address: SocketAddr, key: u32) -> bool {
    let (key, token) = (format!("k{key}"), format!("token-of-the-last-one-{key}"));
    for _ in 0..TRIES {
        if let Ok(true) = serves(address, &key, &token).await {
            return true;
        }
    }
    false
}
