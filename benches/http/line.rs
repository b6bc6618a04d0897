//! Those who wait: how fast a key is handed from one to the next, how long a writer waits among
//! readers, and the memory of a connection.

use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::report::{percentile, spread};
use crate::servers::Server;

/// The numbers of waiting requests whose hand-offs are measured, and of the keys that they wait for.
const LINES: [(usize, usize); 4] = [(10, 1), (1_000, 1), (8_000, 1), (4_000, 1_000)];

/// The hand-offs of a run, and the acquires that they are compared with.
const TURNS: usize = 300;

/// The readers that a writer waits for, and those that wait for a writer.
const READERS: (usize, usize) = (16, 1_000);

/// All runs of one kind.
struct Row {
    store: &'static str,
    what: String,
    /// The median and the 99th percentile of each run, in milliseconds.
    times: Vec<(f64, f64)>,
    /// The memory of an idle and of a waiting connection in each run, in KB.
    memory: Vec<(f64, f64)>,
}

/// Measures all of it so many times, on new servers that `start` makes for the store of this name,
/// and prints the table.
pub(crate) fn measure(rounds: u64, stores: [&'static str; 2], start: impl Fn(&str) -> Server) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut rows: Vec<Row> = Vec::new();
    let mut note = |store, what: String, times, memory: Option<(f64, f64)>| {
        let row = match rows.iter().position(|row| row.store == store && row.what == what) {
            Some(place) => &mut rows[place],
            None => {
                rows.push(Row { store, what, times: Vec::new(), memory: Vec::new() });
                rows.last_mut().unwrap()
            }
        };
        row.times.push(times);
        row.memory.extend(memory);
    };
    for _ in 0..rounds {
        for store in stores {
            let times = runtime.block_on(acquires(&start(store)));
            note(store, "an acquire of a free key".to_owned(), times, None);
            for (waiters, keys) in LINES {
                let (times, memory) = runtime.block_on(hand_offs(&start(store), waiters, keys));
                let keys = if keys > 1 { &format!(" for {keys} keys") } else { "" };
                note(store, format!("a hand-off, {waiters} wait{keys}"), times, Some(memory));
            }
            let times = runtime.block_on(writers(&start(store)));
            note(store, format!("a writer among {} readers", READERS.0), times, None);
            let times = runtime.block_on(readers(&start(store)));
            note(store, format!("{} readers behind a writer", READERS.1), times, None);
        }
    }
    print(&rows);
}

fn print(rows: &[Row]) {
    println!(
        "\n{:<48} {:>24} {:>24} {:>20} {:>20}",
        "median (min..max)", "p50 ms", "p99 ms", "idle KB", "waiting KB"
    );
    for row in rows {
        let times = |of: fn(&(f64, f64)) -> f64| spread(row.times.iter().map(of), 2);
        let memory = |of: fn(&(f64, f64)) -> f64| match &row.memory[..] {
            // A few connections do not show what one costs.
            [(idle, _), ..] if *idle > 0.0 => spread(row.memory.iter().map(of), 1),
            _ => "-".to_owned(),
        };
        println!(
            "{:<48} {:>24} {:>24} {:>20} {:>20}",
            format!("{}: {}", row.store, row.what),
            times(|(median, _)| *median),
            times(|(_, late)| *late),
            memory(|(idle, _)| *idle),
            memory(|(_, waiting)| *waiting),
        );
    }
    println!("\nA row of many readers has the time until half of them and 99 of 100 have the key.");
}

/// The times of acquires over one connection, each of a key of its own.
async fn acquires(server: &Server) -> (f64, f64) {
    let mut client = Client::new(server).await;
    let mut times = Vec::new();
    for turn in 0..TURNS {
        let began = Instant::now();
        client.grant(&format!("/locks/free-{turn}")).await;
        times.push(began.elapsed());
    }
    middle_and_end(times)
}

/// The times from a release to the answer of the next in line, key after key, and the memory of an
/// idle and of a waiting connection.
async fn hand_offs(server: &Server, waiters: usize, keys: usize) -> ((f64, f64), (f64, f64)) {
    let mut driver = Client::new(server).await;
    let names: Vec<_> = (0..keys).map(|key| format!("/locks/line-{key}")).collect();
    let mut tokens = Vec::new();
    for name in &names {
        tokens.push(driver.grant(&format!("{name}?ttl=10m")).await);
    }
    let at_first = server.resident_kb();
    let mut clients = Vec::new();
    for _ in 0..waiters {
        let mut client = Client::new(server).await;
        client.ask("GET", &names[0], "").await;
        clients.push(client);
    }
    let idle = server.resident_kb();
    let (granted, mut grants) = mpsc::unbounded_channel();
    let mut line = JoinSet::new();
    for (mut client, name) in clients.into_iter().zip(names.iter().cycle()) {
        let (granted, claim) = (granted.clone(), format!("{name}?wait=25s&ttl=10m"));
        line.spawn(async move {
            loop {
                let token = client.grant(&claim).await;
                if granted.send((Instant::now(), token)).is_err() {
                    return;
                }
            }
        });
    }
    let of_each = (waiters / keys) as u64;
    for name in &names {
        driver.until_waiters(name, of_each).await;
    }
    let waiting = server.resident_kb();
    let mut times = Vec::new();
    for turn in 0..TURNS {
        let (name, token) = (&names[turn % keys], &mut tokens[turn % keys]);
        let began = Instant::now();
        let (_, grant) = tokio::join!(driver.ask("DELETE", name, token), grants.recv());
        let (at, next) = grant.unwrap();
        times.push(at - began);
        *token = next;
        driver.until_waiters(name, of_each).await;
    }
    line.shutdown().await;
    let each = |kb: f64| if waiters < 1_000 { 0.0 } else { (kb - at_first) / waiters as f64 };
    (middle_and_end(times), (each(idle), each(waiting)))
}

/// The waits of a writer while readers come and go.
async fn writers(server: &Server) -> (f64, f64) {
    let mut line = JoinSet::new();
    for _ in 0..READERS.0 {
        let mut reader = Client::new(server).await;
        line.spawn(async move {
            loop {
                let token = reader.grant("/locks/line?shared=true&wait=25s").await;
                reader.ask("DELETE", "/locks/line", &token).await;
            }
        });
    }
    let mut writer = Client::new(server).await;
    let mut times = Vec::new();
    for _ in 0..TURNS {
        let began = Instant::now();
        let token = writer.grant("/locks/line?wait=25s").await;
        times.push(began.elapsed());
        writer.ask("DELETE", "/locks/line", &token).await;
    }
    line.shutdown().await;
    middle_and_end(times)
}

/// The times from the release of a writer to the answers of the readers behind it.
async fn readers(server: &Server) -> (f64, f64) {
    let mut writer = Client::new(server).await;
    let token = writer.grant("/locks/line").await;
    let mut line = JoinSet::new();
    for _ in 0..READERS.1 {
        let mut reader = Client::new(server).await;
        line.spawn(async move {
            reader.grant("/locks/line?shared=true&wait=25s").await;
            Instant::now()
        });
    }
    writer.until_waiters("/locks/line", READERS.1 as u64).await;
    let began = Instant::now();
    writer.ask("DELETE", "/locks/line", &token).await;
    let answered = line.join_all().await;
    middle_and_end(answered.into_iter().map(|at| at.saturating_duration_since(began)).collect())
}

/// The median and the 99th percentile, in milliseconds.
fn middle_and_end(times: Vec<Duration>) -> (f64, f64) {
    let times: Vec<_> = times.into_iter().map(|time| time.as_secs_f64() * 1e3).collect();
    (percentile(&times, 50), percentile(&times, 99))
}

/// A connection that asks one thing after the other.
struct Client(BufReader<TcpStream>);

impl Client {
    async fn new(server: &Server) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", server.port)).await.unwrap();
        stream.set_nodelay(true).unwrap();
        Self(BufReader::with_capacity(1024, stream))
    }

    /// Acquires a key, which has to be granted, and returns the token.
    async fn grant(&mut self, path: &str) -> String {
        let (status, body) = self.ask("POST", path, "").await;
        assert_eq!(status, 201, "{path}: {body}");
        body["token"].as_str().unwrap().to_owned()
    }

    async fn until_waiters(&mut self, path: &str, waiters: u64) {
        while self.ask("GET", path, "").await.1["waiters"] != waiters {
            tokio::task::yield_now().await;
        }
    }

    async fn ask(&mut self, method: &str, path: &str, token: &str) -> (u16, Value) {
        let token = if token.is_empty() { "" } else { &format!("Lock-Token: {token}\r\n") };
        let head = format!("{method} {path} HTTP/1.1\r\nHost: localhost\r\n{token}");
        let head = head + "Content-Length: 0\r\n\r\n";
        self.0.get_mut().write_all(head.as_bytes()).await.unwrap();
        let (mut status, mut length, mut line) = (0, 0, String::new());
        loop {
            line.clear();
            self.0.read_line(&mut line).await.unwrap();
            let line = line.trim_end().to_ascii_lowercase();
            if let Some(rest) = line.strip_prefix("http/1.1 ") {
                status = rest[..3].parse().unwrap();
            } else if let Some(rest) = line.strip_prefix("content-length: ") {
                length = rest.parse().unwrap();
            } else if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).await.unwrap();
        (status, serde_json::from_slice(&body).unwrap_or_default())
    }
}
