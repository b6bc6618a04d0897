//! Latency at a given rate: requests are due at even distances, whatever became of those before.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::load::CONNECTIONS;
use crate::picture::{Line, Picture};
use crate::report::{median, percentile};
use crate::servers::Server;

/// The requests per second, one rate after another.
const RATES: [u64; 7] = [1_000, 2_000, 5_000, 10_000, 15_000, 20_000, 25_000];

/// A server, and what it is asked for a key that nobody has used.
pub(crate) struct Asked<'a> {
    pub(crate) name: &'static str,
    pub(crate) server: &'a Server,
    pub(crate) request: fn(&str) -> String,
}

/// The median and the 99th percentile of each round, in milliseconds.
type Times = Vec<(f64, f64)>;

/// Measures all of them in turn, so many rounds of so many seconds for each rate; prints the table
/// and draws it in this directory.
pub(crate) fn measure(all: &[Asked<'_>], (rounds, seconds): (u64, u64), directory: &Path) {
    let mut times = vec![[const { Times::new() }; RATES.len()]; all.len()];
    for round in 0..rounds {
        for (place, rate) in RATES.into_iter().enumerate() {
            for (asked, times) in all.iter().zip(&mut times) {
                let tag = format!("rate-{round}-{rate}");
                times[place].push(at_rate(asked, rate, Duration::from_secs(seconds), &tag));
            }
        }
    }
    println!("\n{:<30} {:>12} {:>12} {:>12}", "median of rounds", "per second", "p50 ms", "p99 ms");
    let mut lines = Vec::new();
    for (asked, times) in all.iter().zip(&times) {
        let mut line = Line { name: asked.name, points: Vec::new() };
        for (rate, rounds) in RATES.into_iter().zip(times) {
            let middle = median(rounds.iter().map(|round| round.0));
            let late = median(rounds.iter().map(|round| round.1));
            println!("{:<30} {rate:>12} {middle:>12.2} {late:>12.2}", asked.name);
            line.points.push((rate as f64, middle));
        }
        lines.push(line);
    }
    let picture = Picture {
        title: "Acquires of free keys, median",
        across: "requests per second",
        up: "ms",
        logarithmic: true,
    };
    picture.draw(&lines, &directory.join("latency.svg"));
}

fn at_rate(asked: &Asked<'_>, rate: u64, lasts: Duration, tag: &str) -> (f64, f64) {
    let began = Instant::now() + Duration::from_millis(50);
    let between = Duration::from_secs(CONNECTIONS).div_f64(rate as f64);
    let times: Vec<f64> = std::thread::scope(|scope| {
        let clients = (0..CONNECTIONS).map(|client| {
            let first = began + between.mul_f64(client as f64 / CONNECTIONS as f64);
            scope.spawn(move || {
                one(asked, (first, began + lasts, between), &format!("{tag}-{client}"))
            })
        });
        let clients: Vec<_> = clients.collect();
        clients.into_iter().flat_map(|client| client.join().unwrap()).collect()
    });
    (percentile(&times, 50), percentile(&times, 99))
}

/// The times of one connection in milliseconds, each from the moment when the request was due. If
/// the connection was free then, it counts from when the request was sent: the clock of this
/// program wakes it late, which no server can help.
#[expect(
    clippy::disallowed_methods,
    reason = "a request is due at a moment, and not after an event"
)]
fn one(
    asked: &Asked<'_>,
    (mut due, end, between): (Instant, Instant, Duration),
    tag: &str,
) -> Vec<f64> {
    let mut stream = TcpStream::connect(("127.0.0.1", asked.server.port)).unwrap();
    stream.set_nodelay(true).unwrap();
    let (mut times, mut answer) = (Vec::new(), [0; 4096]);
    while due < end {
        let mut since = due;
        if let Some(early) = due.checked_duration_since(Instant::now()) {
            std::thread::sleep(early);
            since = Instant::now();
        }
        stream.write_all((asked.request)(&format!("{tag}-{}", times.len())).as_bytes()).unwrap();
        read_answer(&mut stream, &mut answer);
        times.push(since.elapsed().as_secs_f64() * 1e3);
        due += between;
    }
    times
}

fn read_answer(stream: &mut TcpStream, answer: &mut [u8]) {
    let mut read = 0;
    loop {
        let more = stream.read(&mut answer[read..]).unwrap();
        assert!(more > 0, "the answer is cut off");
        read += more;
        let text = std::str::from_utf8(&answer[..read]).unwrap();
        let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
        let length = head.lines().find_map(|line| {
            let (name, length) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-length").then(|| length.trim().parse::<usize>())
        });
        if body.len() >= length.expect("the answer has a length").unwrap() {
            assert!(head.starts_with("HTTP/1.1 20"), "{text}");
            return;
        }
    }
}
