//! All instances are replaced, one after another, under load: no request of a client that follows
//! the contract fails, and no key is held twice.

use std::error::Error;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::timeout;

use crate::support::{Answer, Http, Redis, eventually};
use crate::waiting::{PATIENCE, process};

/// The keys that many clients want for short.
const WANTED: [&str; 2] = ["rolls/a", "rolls/b"];
/// The keys that a stream has throughout, while others wait for them.
const KEPT: [&str; 3] = ["kept/a", "kept/b", "kept/c"];

/// The instances at a time, and how often all of them are replaced.
const INSTANCES: usize = 3;
const ROUNDS: usize = 2;

/// What the clients know and find out.
struct Load {
    /// The instances, also while one of them ends.
    known: Mutex<Vec<Http>>,
    /// Whether somebody is at work under each wanted key.
    at_work: [AtomicBool; WANTED.len()],
    /// Requests that were sent to another instance.
    sent_on: AtomicUsize,
    /// Leases of streams that went on through another instance.
    moved: AtomicUsize,
    over: watch::Sender<bool>,
}

impl Load {
    fn any(&self) -> Http {
        let known = self.known.lock().unwrap();
        known[fastrand::usize(..known.len())].clone()
    }

    fn is_over(&self) -> bool {
        *self.over.borrow()
    }

    /// Asks until an instance answers that does not end, and tells whether an earlier request may
    /// have taken effect.
    async fn ask(&self, token: &str, method: &str, path: &str) -> (Answer, bool) {
        let unanswered = AtomicBool::new(false);
        let answer = eventually(PATIENCE, async || {
            let Ok(answer) = self.any().token(token).try_send(method, path, "").await else {
                unanswered.store(true, Ordering::Relaxed);
                return None;
            };
            let (status, code) = answer.told();
            let goes_on = status == 503 && ["draining", "not_ready"].contains(&code.as_str());
            self.sent_on.fetch_add(usize::from(goes_on), Ordering::Relaxed);
            (!goes_on).then_some(answer)
        })
        .await;
        (answer, unanswered.into_inner())
    }

    /// Waits in line for the key; false if it is still held after a while.
    async fn acquires(&self, key: &str, token: &str) -> bool {
        let (answer, _) = self.ask(token, "POST", &format!("/locks/{key}?wait=3s&ttl=10m")).await;
        match answer.told() {
            (200 | 201, _) => true,
            (409, code) if code == "lock_held" => false,
            _ => panic!("{answer:?}"),
        }
    }

    async fn releases(&self, key: &str, token: &str) {
        let (answer, repeated) = self.ask(token, "DELETE", &format!("/locks/{key}")).await;
        let was_released = repeated && answer.told() == (409, "lock_lost".into());
        assert!(answer.status == 204 || was_released, "{answer:?}");
    }
}

/// Takes a wanted key again and again.
async fn works(load: Arc<Load>, number: usize) {
    let at = number % WANTED.len();
    let (key, at_work) = (WANTED[at], &load.at_work[at]);
    for round in 0.. {
        let token = format!("token-of-worker-{number}-{round}");
        let acquired = async { while !load.acquires(key, &token).await {} };
        timeout(PATIENCE, acquired).await.unwrap_or_else(|_| panic!("{key} is held for ever"));
        assert!(!at_work.swap(true, Ordering::SeqCst), "{key} is held twice");
        let (kept, _) = load.ask(&token, "PUT", &format!("/locks/{key}/refresh")).await;
        assert_eq!(kept.status, 200, "{kept:?}");
        assert!(at_work.swap(false, Ordering::SeqCst), "{key} was held twice");
        load.releases(key, &token).await;
        if load.is_over() {
            return;
        }
    }
}

/// Keeps a key by a stream, which goes on elsewhere when its instance ends.
async fn keeps(load: Arc<Load>, key: &'static str) {
    let token = format!("token-of-the-stream-of-{key}");
    let mut over = load.over.subscribe();
    let mut fencing_token = None;
    loop {
        let mut stream = eventually(PATIENCE, async || {
            hold(&load.any(), key, &token, fencing_token).await.unwrap_or_default()
        })
        .await;
        let first = event(&mut stream).await;
        assert_eq!(first["event"], "acquired", "{first}");
        let lease = first["fencing_token"].as_u64().unwrap();
        assert!(fencing_token < Some(lease), "it is a new lease in the place of the old one");
        fencing_token = Some(lease);
        let mut next = Value::Null;
        while next["event"] != "draining" {
            assert!(next.is_null() || next["event"] == "alive", "{next}");
            tokio::select! {
                heard = event(&mut stream) => next = heard,
                _ = over.changed() => return,
            }
        }
        load.moved.fetch_add(1, Ordering::Relaxed);
    }
}

/// Opens a stream; none if the instance ends.
async fn hold(
    http: &Http,
    key: &str,
    token: &str,
    resumes: Option<u64>,
) -> Result<Option<Stream>, Failure> {
    let named = resumes.map_or_else(String::new, |number| format!("&fencing_token={number}"));
    let mut stream = TcpStream::connect(http.address).await?;
    let head = format!("POST /hold/{key}?ttl=10m{named} HTTP/1.0\r\nlock-token: {token}\r\n\r\n");
    stream.write_all(head.as_bytes()).await?;
    let (mut stream, mut head) = (BufReader::new(stream), String::new());
    while !head.ends_with("\r\n\r\n") {
        if stream.read_line(&mut head).await? == 0 {
            return Ok(None);
        }
    }
    let status = head.split(' ').nth(1).unwrap();
    assert!(["200", "503"].contains(&status), "{head}");
    Ok((status == "200").then_some(stream))
}

type Stream = BufReader<TcpStream>;
type Failure = Box<dyn Error + Send + Sync>;

async fn is_held(http: &Http, key: &str) -> bool {
    http.get(&format!("/locks/{key}")).await.field("held") == true
}

async fn event(stream: &mut Stream) -> Value {
    let mut line = String::new();
    stream.read_line(&mut line).await.unwrap();
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line:?}"))
}

/// Waits for a key that a stream keeps, and gets it only once that has ended.
async fn waits(load: Arc<Load>, key: &'static str) {
    let token = format!("token-of-who-waits-for-{key}");
    let acquired = async { while !load.acquires(key, &token).await {} };
    acquired.await;
    assert!(load.is_over(), "{key} is held twice");
    load.releases(key, &token).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn instances_are_replaced_one_by_one_and_no_client_fails() {
    let redis = Redis::start();
    let mut instances = Vec::new();
    for _ in 0..INSTANCES {
        instances.push(process(&redis.url(), &[]).await);
    }
    let load = Arc::new(Load {
        known: Mutex::new(instances.iter().map(|one| one.http()).collect()),
        at_work: Default::default(),
        sent_on: AtomicUsize::new(0),
        moved: AtomicUsize::new(0),
        over: watch::Sender::new(false),
    });
    let mut clients = JoinSet::new();
    (0..6).for_each(|number| _ = clients.spawn(works(load.clone(), number)));
    for key in KEPT {
        clients.spawn(keeps(load.clone(), key));
        let http = instances[0].http();
        eventually(PATIENCE, async || is_held(&http, key).await.then_some(())).await;
        clients.spawn(waits(load.clone(), key));
    }
    for _ in 0..ROUNDS * INSTANCES {
        let new = process(&redis.url(), &[]).await;
        load.known.lock().unwrap().push(new.http());
        instances.push(new);
        let old = instances.remove(0);
        let http = old.http();
        let waiting = async || http.figure("lockkeeper_waiters").await > 0.0;
        eventually(PATIENCE, async || waiting().await.then_some(())).await;
        old.signal("TERM");
        let ended = spawn_blocking(move || old.wait()).await.unwrap();
        assert_eq!(ended, Some(0), "not all requests were answered");
        load.known.lock().unwrap().retain(|one| one.address != http.address);
        // A client that failed says so now, not when the others give up.
        if let Some(failed) = clients.try_join_next() {
            failed.unwrap();
        }
    }
    load.over.send_replace(true);
    clients.join_all().await;
    let [sent_on, moved] = [&load.sent_on, &load.moved].map(|count| count.load(Ordering::Relaxed));
    assert!(sent_on > 0 && moved >= KEPT.len(), "{sent_on} sent on, {moved} streams moved");
    eprintln!("{sent_on} requests were sent to another instance, {moved} streams moved");
    let left = load.any().get("/locks").await;
    assert_eq!(left.field("locks"), Value::Array(Vec::new()));
}
