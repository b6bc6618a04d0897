//! Leases that live as long as their connection, on both stores: what a listener is told, and what
//! becomes of the key when somebody goes.

mod ends;
mod gone;
mod lines;
mod losses;
pub(crate) mod proxies;
mod recipes;

use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::support::{Http, eventually};

/// Far more than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// What "at once" is on a machine that is busy, and less than any TTL here that a stream refreshes.
const SOON: Duration = Duration::from_millis(1_500);

const TOKEN: &str = "token-of-the-stream";
const OTHER: &str = "token-of-the-others";

/// Somebody who reads a stream.
pub(crate) struct Listener {
    head: String,
    stream: BufReader<TcpStream>,
}

impl Listener {
    /// Asks for a hold under [`TOKEN`].
    pub(crate) async fn open(http: &Http, target: &str) -> Self {
        Self::open_as(http, target, TOKEN).await
    }

    /// Asks for a hold under this token; done when there is an answer.
    pub(crate) async fn open_as(http: &Http, target: &str, token: &str) -> Self {
        Self::open_with(http, target, token, "").await
    }

    /// Asks for a hold, and sends these bytes behind.
    async fn open_with(http: &Http, target: &str, token: &str, behind: &str) -> Self {
        let mut listener = Self::send(http, target, token, behind).await;
        while !listener.head.ends_with("\r\n\r\n") {
            let line = listener.line().await.unwrap_or_else(|| panic!("{}", listener.head));
            listener.head.push_str(&line);
        }
        listener
    }

    /// The same, without an answer yet.
    async fn send(http: &Http, target: &str, token: &str, behind: &str) -> Self {
        let mut stream = TcpStream::connect(http.address).await.unwrap();
        let head =
            format!("POST /hold/{target} HTTP/1.1\r\nhost: localhost\r\nlock-token: {token}");
        stream.write_all(format!("{head}\r\n\r\n{behind}").as_bytes()).await.unwrap();
        Self { head: String::new(), stream: BufReader::new(stream) }
    }

    fn status(&self) -> &str {
        self.head.split(' ').nth(1).unwrap()
    }

    async fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        let read = self.stream.read_line(&mut line);
        let read = tokio::time::timeout(PATIENCE, read).await.expect("a line, or the end");
        (read.unwrap() > 0).then_some(line)
    }

    /// The next event; `None` at the end of the stream.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        let line = self.line().await?;
        Some(serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}")))
    }

    /// The next event, which has to be this one.
    pub(crate) async fn hears(&mut self, event: &str) -> Value {
        let next = self.next().await.unwrap_or_default();
        assert_eq!(next["event"], event, "{next}");
        next
    }

    /// The first event that is neither of those that may come any number of times.
    pub(crate) async fn hears_after_all(&mut self, event: &str) -> Value {
        loop {
            let next = self.next().await.unwrap_or_default();
            if next["event"] != "alive" && next["event"] != "waiting" {
                assert_eq!(next["event"], event, "{next}");
                return next;
            }
        }
    }

    /// Hears that the lease is lost so, and nothing after that.
    pub(crate) async fn loses(&mut self, reason: &str) {
        let lost = self.hears_after_all("lost").await;
        assert_eq!(lost["reason"], reason);
        assert_eq!(self.next().await, None);
    }
}

async fn is_held(http: &Http, key: &str) -> bool {
    http.get(&format!("/locks/{key}")).await.field("held") == true
}

/// Whether it is still held after a while in which it could have ended.
async fn stays_held(http: &Http, key: &str) -> bool {
    let path = format!("/locks/{key}?wait=500ms&ttl=100ms");
    Http::new(http.address).post(&path, "").await.status == 409
}

/// Until the key is free; gives how long that took.
async fn freed(http: &Http, key: &str) -> Duration {
    let began = Instant::now();
    eventually(PATIENCE, async || (!is_held(http, key).await).then_some(())).await;
    began.elapsed()
}

/// Until the figures have this line.
async fn counts(http: &Http, line: &str) {
    eventually(PATIENCE, async || {
        let figures = String::from_utf8(http.get("/metrics").await.body.to_vec()).unwrap();
        figures.lines().any(|one| one == line).then_some(())
    })
    .await;
}
