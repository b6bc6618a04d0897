//! Clients that go away while they wait, and at the very moment of a hand-over.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use crate::support::Http;
use crate::waiting::{HOLDER, Stage, granted, hold, release, until_waiters, wait};

/// How many hand-overs a departure meets, over all stages, if there is time.
const ROUNDS: usize = 10_000;
const TIME: Duration = Duration::from_secs(15);
/// How many keys this is tried on at once.
const LANES: usize = 12;

/// How a client goes.
#[derive(Clone, Copy, Debug)]
enum Way {
    Closes,
    Resets,
    HalfCloses,
}

impl Way {
    const ALL: [Self; 3] = [Self::Closes, Self::Resets, Self::HalfCloses];

    /// Goes; what is returned is kept open.
    ///
    /// Dropping the stream would not do: a process that another test starts at this moment has it
    /// too, until it runs its program, and for so long the service hears of no end.
    fn go(self, stream: TcpStream) -> Option<TcpStream> {
        match self {
            Self::Closes => {
                stream.shutdown(Shutdown::Both).unwrap();
                None
            }
            Self::Resets => {
                rustix::net::connect_unspec(&stream).unwrap();
                None
            }
            Self::HalfCloses => {
                stream.shutdown(Shutdown::Write).unwrap();
                Some(stream)
            }
        }
    }
}

/// Sends a request that waits, and these bytes behind it.
fn ask(http: &Http, key: &str, ttl: &str, behind: &str) -> TcpStream {
    let mut stream = TcpStream::connect(http.address).unwrap();
    let head = format!("POST /locks/{key}?wait=25s&ttl={ttl} HTTP/1.1\r\nhost: localhost\r\n\r\n");
    stream.write_all(format!("{head}{behind}").as_bytes()).unwrap();
    stream
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_disconnects_is_out_of_the_line_at_once() {
    let much = "x".repeat(10_000);
    for stage in Stage::each().await {
        let http = stage.http(0);
        hold(&http, "gone").await;
        for behind in ["", "G", "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n", &much] {
            for way in Way::ALL {
                let mut took = Vec::new();
                for _ in 0..3 {
                    let client = ask(&http, "gone", "10m", behind);
                    until_waiters(&http, "gone", 1).await;
                    let began = Instant::now();
                    let kept = way.go(client);
                    until_waiters(&http, "gone", 0).await;
                    took.push(began.elapsed());
                    drop(kept);
                }
                let what = format!("{way:?} with {} bytes behind: {took:?}", behind.len());
                // One of them may have met a machine that was busy.
                assert!(took.iter().any(|took| *took < Duration::from_millis(250)), "{what}");
            }
        }
        release(&http, "gone", HOLDER).await;
        assert_eq!(http.get("/locks/gone").await.field("held"), false);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_behind_a_waiting_one_is_answered_after_it() {
    for stage in Stage::each().await {
        let http = stage.http(0);
        hold(&http, "behind").await;
        let next = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
        let last = "GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
        let mut client = ask(&http, "behind", "10m", next);
        until_waiters(&http, "behind", 1).await;
        client.write_all(next.repeat(300).as_bytes()).unwrap();
        client.write_all(last.as_bytes()).unwrap();
        let answered = tokio::task::spawn_blocking(move || {
            let mut heard = String::new();
            client.read_to_string(&mut heard).unwrap();
            heard
        });
        // Long enough that it is read ahead.
        assert_eq!(http.post("/locks/behind?wait=300ms", "").await.status, 409);
        release(&http, "behind", HOLDER).await;
        let heard = answered.await.unwrap();
        assert_eq!(heard.matches("HTTP/1.1 201").count(), 1, "{heard}");
        assert_eq!(heard.matches("HTTP/1.1 200").count(), 302);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_departure_at_the_moment_of_a_hand_over_loses_no_wake_up() {
    for (name, stage) in [
        ("embedded", Stage::embedded().await),
        ("Redis, one instance", Stage::redis(1).await),
        ("Redis, two instances", Stage::redis(2).await),
    ] {
        let (rounds, late) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let began = Instant::now();
        let mut lanes = JoinSet::new();
        for lane in 0..LANES {
            let (http, other) = (stage.http(lane), stage.http(lane + 1));
            let (rounds, late) = (rounds.clone(), late.clone());
            lanes.spawn(async move {
                let key = format!("crossing/{lane}");
                while began.elapsed() < TIME {
                    let round = rounds.fetch_add(1, Ordering::Relaxed);
                    if round >= ROUNDS / 3 {
                        break;
                    }
                    let was_late = cross([&http, &other], &key, round).await;
                    late.fetch_add(usize::from(was_late), Ordering::Relaxed);
                }
            });
        }
        while let Some(ended) = lanes.join_next().await {
            ended.unwrap();
        }
        let (rounds, late) = (rounds.load(Ordering::Relaxed), late.load(Ordering::Relaxed));
        assert!(rounds > late, "{name}: of {rounds} departures, {late} came after the grant");
    }
}

/// One departure of the head while the key is released; the next has to be served. Says whether
/// the head had been granted the key before it went.
async fn cross([http, other]: [&Http; 2], key: &str, round: usize) -> bool {
    // Where the head goes first, it must not be granted anything that lasts; where the two cross,
    // it may have been granted the key before, which then has to run out.
    let goes_first = round.is_multiple_of(2);
    let token = http.post(&format!("/locks/{key}?ttl=10m"), "").await;
    assert_eq!(token.status, 201, "{round}: {token:?}");
    let head = ask(http, key, if goes_first { "10m" } else { "100ms" }, "");
    until_waiters(http, key, 1).await;
    let next = wait(other, key, "20s");
    until_waiters(http, key, 2).await;
    let way = Way::ALL[round % 3];
    let token = token.text("token");
    let began = Instant::now();
    let kept = if goes_first {
        let kept = way.go(head);
        release(http, key, &token).await;
        kept
    } else {
        let (releaser, path) = (http.token(&token), format!("/locks/{key}"));
        let mut released = JoinSet::new();
        released.spawn(async move { releaser.delete(&path).await.status });
        for _ in 0..round % 97 * 4 {
            tokio::task::yield_now().await;
        }
        let kept = way.go(head);
        assert_eq!(released.join_all().await, [204]);
        kept
    };
    let next = granted(next).await;
    let took = began.elapsed();
    assert!(took < Duration::from_secs(10), "{round} {way:?}: {took:?}");
    release(other, key, &next.text("token")).await;
    drop(kept);
    !goes_first && took > Duration::from_millis(95)
}
