//! HTTP/2: streams that end alone, clients that reset or do not read, limits, and the end.

use http_body_util::{BodyExt, Empty};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use serde_json::Value;
use tokio::task::{AbortHandle, JoinSet};

use crate::listeners::Secured;
use crate::listeners::frames::{
    DATA, Frames, HEADERS, INITIAL_WINDOW, PING, RST_STREAM, frame, request, reset,
};
use crate::support::{PATIENCE, eventually};

/// A client with one connection.
struct Client {
    sender: SendRequest<Empty<Bytes>>,
    connection: JoinSet<hyper::Result<()>>,
}

impl Client {
    async fn of(secured: &Secured) -> Self {
        let stream = secured.connect(&[b"h2"]).await;
        let (sender, driven) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        let mut connection = JoinSet::new();
        connection.spawn(driven);
        Self { sender, connection }
    }

    async fn send(&self, method: &str, path: &str) -> hyper::Result<Response<Incoming>> {
        let request = Request::builder().method(method).uri(format!("https://localhost{path}"));
        self.sender.clone().send_request(request.body(Empty::new()).unwrap()).await
    }

    async fn status(&self, method: &str, path: &str) -> u16 {
        self.send(method, path).await.unwrap().status().as_u16()
    }

    /// Sends a request in a task of its own.
    fn begin(&self, tasks: &mut JoinSet<u16>, method: &'static str, path: &str) -> AbortHandle {
        let request = Request::builder().method(method).uri(format!("https://localhost{path}"));
        let sent = self.sender.clone().send_request(request.body(Empty::new()).unwrap());
        tasks.spawn(async { sent.await.unwrap().status().as_u16() })
    }

    /// Whether a key is held.
    async fn is_held(&self, key: &str) -> bool {
        let answer = self.send("GET", &format!("/locks/{key}")).await.unwrap();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        serde_json::from_slice::<Value>(&body).unwrap()["held"] == true
    }

    /// A stream that holds a key, after its first line.
    async fn hold(&self, key: &str) -> Incoming {
        let answer = self.send("POST", &format!("/hold/{key}")).await.unwrap();
        assert_eq!(answer.status(), 200);
        let mut body = answer.into_body();
        assert!(line(&mut body).await.contains("acquired"));
        body
    }

    /// The waiting requests of the service.
    async fn waiters(&self) -> f64 {
        let answer = self.send("GET", "/metrics").await.unwrap();
        let body = answer.into_body().collect().await.unwrap().to_bytes();
        let text = String::from_utf8(body.to_vec()).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix("lockkeeper_waiters "));
        line.unwrap().parse().unwrap()
    }
}

/// The next part of a stream.
async fn line(body: &mut Incoming) -> String {
    let frame = tokio::time::timeout(PATIENCE, body.frame()).await.unwrap().unwrap().unwrap();
    String::from_utf8(frame.into_data().unwrap().to_vec()).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reset_stream_leaves_the_line_or_its_hold_and_the_others_go_on() {
    let secured = Secured::start(&[]);
    let client = Client::of(&secured).await;
    let (left, mut kept) = (client.hold("left").await, client.hold("kept").await);
    assert_eq!(client.status("POST", "/locks/taken").await, 201);
    let (mut others, mut ours) = (JoinSet::new(), JoinSet::new());
    let waiting = client.begin(&mut others, "POST", "/locks/taken?wait=25s");
    client.begin(&mut ours, "POST", "/locks/left?wait=25s");
    eventually(PATIENCE, async || (client.waiters().await == 2.0).then_some(())).await;
    waiting.abort();
    eventually(PATIENCE, async || (client.waiters().await == 1.0).then_some(())).await;
    drop(left);
    assert_eq!(ours.join_next().await.unwrap().unwrap(), 201);
    // The next line of the other stream is a sign of life, and the connection is the same.
    assert!(line(&mut kept).await.contains("alive"));
    assert!(client.is_held("kept").await);
    drop(kept);
    eventually(PATIENCE, async || (!client.is_held("kept").await).then_some(())).await;
    assert!(client.sender.is_ready(), "the connection was closed");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_end_of_the_connection_ends_all_its_streams() {
    let secured = Secured::start(&[]);
    let other = Client::of(&secured).await;
    let mut frames = Frames::begin(secured.connect(&[b"h2"]).await, &[]).await;
    for (stream, key) in [(1, "a"), (3, "b")] {
        frames.send(&request(stream, "POST", &format!("/hold/{key}"), &[])).await.unwrap();
        frames.until(DATA).await;
        assert!(other.is_held(key).await);
    }
    drop(frames);
    for key in ["a", "b"] {
        eventually(PATIENCE, async || (!other.is_held(key).await).then_some(())).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_releases_and_hangs_up_has_released() {
    let secured = Secured::start(&[]);
    let other = Client::of(&secured).await;
    for number in 0..100 {
        let path = format!("/locks/left{number}");
        let token = [("lock-token", "token-of-the-one-that-left")];
        let mut frames = Frames::begin(secured.connect(&[b"h2"]).await, &[]).await;
        frames.send(&request(1, "POST", &path, &token)).await.unwrap();
        frames.until(DATA).await;
        assert!(other.is_held(&format!("left{number}")).await);
        let mut release = request(3, "DELETE", &path, &token);
        if number % 2 == 1 {
            // With the token in a body: the head is not the end.
            let form = [("content-type", "application/x-www-form-urlencoded")];
            release = request(3, "DELETE", &path, &form);
            release[4] = 0x4;
            release.extend(frame(DATA, 0x1, 3, b"token=token-of-the-one-that-left"));
        }
        frames.send(&release).await.unwrap();
        drop(frames);
        eventually(PATIENCE, async || {
            (!other.is_held(&format!("left{number}")).await).then_some(())
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rapid_resets_close_the_connection() {
    let secured = Secured::start(&[]);
    let other = Client::of(&secured).await;
    assert_eq!(other.status("POST", "/locks/taken").await, 201);
    // Head and reset at once, as in the attack of 2023.
    let mut frames = Frames::begin(secured.connect(&[b"h2"]).await, &[]).await;
    let mut bytes = Vec::new();
    for stream in (1..4_001).step_by(2) {
        bytes.extend(request(stream, "POST", "/locks/taken?wait=25s", &[]));
        bytes.extend(reset(stream));
    }
    // It may be closed before all is sent.
    let _ = frames.send(&bytes).await;
    ended(frames).await;
    // Reset once the service has begun them.
    let mut frames = Frames::begin(secured.connect(&[b"h2"]).await, &[]).await;
    let (mut stream, mut batches) = (1, 0);
    while is_open(&mut frames).await {
        assert!(batches < 50, "it was never closed");
        let ours = (0..AT_ONCE).map(|number| stream + 2 * number);
        let begun: Vec<_> =
            ours.clone().flat_map(|id| request(id, "POST", "/locks/taken?wait=25s", &[])).collect();
        frames.send(&begun).await.unwrap();
        eventually(PATIENCE, async || (other.waiters().await == 150.0).then_some(())).await;
        frames.send(&ours.flat_map(reset).collect::<Vec<_>>()).await.unwrap();
        eventually(PATIENCE, async || (other.waiters().await == 0.0).then_some(())).await;
        (stream, batches) = (stream + 2 * AT_ONCE, batches + 1);
    }
    assert!(batches > 1, "closed for a few");
    assert_eq!(other.status("POST", "/locks/free").await, 201);
    eventually(PATIENCE, async || (other.waiters().await == 0.0).then_some(())).await;
}

/// Requests that are begun and reset together.
const AT_ONCE: u32 = 150;

/// Returns whether a connection still answers, twice.
async fn is_open(frames: &mut Frames) -> bool {
    for _ in 0..2 {
        let asked = frames.send(&frame(PING, 0, 0, b"whatever")).await;
        let answers = if asked.is_ok() { frames.until(PING).await } else { Vec::new() };
        if answers.last().is_none_or(|last| last.kind != PING) {
            return false;
        }
    }
    true
}

/// Waits for the end of a connection.
async fn ended(mut frames: Frames) {
    while frames.next().await.is_some() {}
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_is_cut_and_gives_its_place_in_the_lists_back() {
    let secured = Secured::start(&[("LOCKKEEPER_LIMITS_LISTS", "1")]);
    let client = Client::of(&secured).await;
    for number in 0..50 {
        let path = format!("/locks/{}{number:04}?ttl=1h", "%22".repeat(300));
        assert_eq!(client.status("POST", &path).await, 201);
    }
    let mut frames = Frames::begin(secured.connect(&[b"h2"]).await, &[(INITIAL_WINDOW, 1)]).await;
    frames.send(&request(1, "GET", "/locks?limit=1000", &[])).await.unwrap();
    let begun = frames.until(DATA).await;
    assert_eq!(begun.last().unwrap().payload.len(), 1, "{begun:?}");
    assert_eq!(client.status("GET", "/locks?limit=1").await, 429);
    ended(frames).await;
    eventually(PATIENCE, async || {
        (client.status("GET", "/locks?limit=1").await == 200).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn heads_hosts_and_the_number_of_requests_have_limits() {
    let secured = Secured::start(&[
        ("LOCKKEEPER_LIMITS_HEAD_BYTES", "8192"),
        ("LOCKKEEPER_LIMITS_CONNECTIONS_PER_ADDRESS", "3"),
    ]);
    let client = Client::of(&secured).await;
    let long = "a".repeat(9_000);
    for (header, value, status) in
        [("x-long", long.as_str(), 431), ("host", "elsewhere", 400), ("host", "localhost", 200)]
    {
        let request = Request::get("https://localhost/healthz").header(header, value);
        let answer = client.sender.clone().send_request(request.body(Empty::new()).unwrap()).await;
        assert_eq!(answer.unwrap().status(), status, "{header}");
    }
    let mut holds = vec![client.hold("a").await, client.hold("b").await, client.hold("c").await];
    let refused = client.send("POST", "/hold/d").await.unwrap_err();
    let reason = std::error::Error::source(&refused).unwrap().downcast_ref::<h2::Error>().unwrap();
    assert_eq!(reason.reason(), Some(h2::Reason::REFUSED_STREAM), "{refused:?}");
    holds.pop();
    eventually(PATIENCE, async || client.send("POST", "/hold/d").await.ok()).await;
    secured.service.logs("too many requests over HTTP/2").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_idle_connection_is_closed_and_a_busy_one_is_not() {
    let secured = Secured::start(&[("LOCKKEEPER_LIMITS_IDLE_TIME", "1s")]);
    let (busy, idle) = (Client::of(&secured).await, Client::of(&secured).await);
    let mut hold = busy.hold("a").await;
    assert_eq!(idle.status("GET", "/healthz").await, 200);
    let mut connection = idle.connection;
    let closed = tokio::time::timeout(PATIENCE, connection.join_next()).await.unwrap();
    closed.unwrap().unwrap().unwrap();
    assert!(line(&mut hold).await.contains("alive"));
    // One that never says a word.
    let silent = Frames::begin(secured.connect(&[b"h2"]).await, &[]).await;
    ended(silent).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_are_told_that_the_service_ends() {
    let secured = Secured::start(&[("LOCKKEEPER_LIMITS_SHUTDOWN_TIME", "60s")]);
    let (client, idle) = (Client::of(&secured).await, Client::of(&secured).await);
    assert_eq!(idle.status("GET", "/healthz").await, 200);
    let mut hold = client.hold("a").await;
    assert_eq!(client.status("POST", "/locks/taken").await, 201);
    let mut tasks = JoinSet::new();
    client.begin(&mut tasks, "POST", "/locks/taken?wait=25s");
    eventually(PATIENCE, async || (client.waiters().await == 1.0).then_some(())).await;
    secured.service.signal("TERM");
    assert!(line(&mut hold).await.contains("draining"));
    assert_eq!(tasks.join_next().await.unwrap().unwrap(), 503);
    assert!(hold.collect().await.unwrap().to_bytes().is_empty());
    let Secured { service, .. } = secured;
    assert_eq!(service.wait(), Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn raw_frames_are_answered_as_requests() {
    let secured = Secured::start(&[]);
    let mut frames = Frames::begin(secured.connect(&[b"h2"]).await, &[]).await;
    frames.send(&request(1, "GET", "/healthz", &[])).await.unwrap();
    let all = frames.until(DATA).await;
    assert!(all.iter().any(|one| (one.kind, one.stream) == (HEADERS, 1)), "{all:?}");
    assert!(all.iter().all(|one| one.kind != RST_STREAM), "{all:?}");
    assert_eq!(all.last().unwrap().payload, br#"{"status":"ok"}"#);
    assert_eq!(all.last().unwrap().flags & 1, 1, "{all:?}");
}
