//! The connection ends: the key is free at once, or lingers, or keeps the end that its client was told.

use std::io::Read;
use std::process::Stdio;
use std::time::{Duration, Instant};

use socket2::{SockFilter, SockRef};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::hold::{Listener, OTHER, PATIENCE, SOON, TOKEN, freed, is_held, stays_held};
use crate::support::process::{command, stop};
use crate::support::{Http, eventually};
use crate::waiting::{Stage, until_waiters};

/// How a listener goes.
#[derive(Clone, Copy, Debug)]
enum Way {
    Closes,
    Resets,
    HalfCloses,
}

impl Way {
    const ALL: [Self; 3] = [Self::Closes, Self::Resets, Self::HalfCloses];

    /// Goes; what is returned is kept open.
    async fn go(self, mut listener: Listener) -> Option<Listener> {
        match self {
            Self::Closes => None,
            Self::Resets => {
                let stream = listener.stream.get_ref();
                SockRef::from(stream).set_linger(Some(Duration::ZERO)).unwrap();
                None
            }
            Self::HalfCloses => {
                listener.stream.get_mut().shutdown().await.unwrap();
                Some(listener)
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_is_free_as_soon_as_the_connection_ends() {
    let much = "x".repeat(10_000);
    for stage in Stage::each().await {
        let http = stage.http(0);
        for behind in ["", "G", "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n", &much] {
            for way in Way::ALL {
                let mut listener = Listener::open_with(&http, "gone", TOKEN, behind).await;
                listener.hears("acquired").await;
                let kept = way.go(listener).await;
                let took = freed(&http, "gone").await;
                assert!(took < SOON, "{way:?} with {} bytes behind: {took:?}", behind.len());
                drop(kept);
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_whose_client_ended_its_direction_with_the_request_is_over() {
    for stage in Stage::each().await {
        let http = stage.http(0);
        for target in ["half?ttl=20s", "half?ttl=20s&wait=20s"] {
            let mut stream = TcpStream::connect(http.address).await.unwrap();
            let request = format!("POST /hold/{target} HTTP/1.1\r\nhost: localhost\r\n\r\n");
            stream.write_all(request.as_bytes()).await.unwrap();
            stream.shutdown().await.unwrap();
            let mut heard = Vec::new();
            let ended = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut heard)).await;
            assert!(ended.is_ok(), "{}", String::from_utf8_lossy(&heard));
            assert!(freed(&http, "half").await < SOON);
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bytes_behind_the_request_do_not_end_the_stream() {
    let settings =
        [("LOCKKEEPER_LIMITS_HEAD_TIME", "100ms"), ("LOCKKEEPER_LIMITS_IDLE_TIME", "1s")];
    for stage in Stage::each_with(&settings).await {
        let http = stage.http(0);
        for behind in ["", "G", "\r\n"] {
            let mut listener = Listener::open_with(&http, "behind?ttl=1800ms", TOKEN, behind).await;
            listener.hears("acquired").await;
            for _ in 0..6 {
                listener.hears("alive").await;
            }
            drop(listener);
            assert!(freed(&http, "behind").await < SOON, "{behind:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_ends_as_it_is_granted_leaves_no_lease() {
    const ROUNDS: u32 = 30;
    for stage in Stage::each().await {
        let http = stage.http(0);
        let holder = http.token(OTHER);
        for round in 0..ROUNDS {
            let way = if round % 2 == 0 { Way::Closes } else { Way::Resets };
            // A late grant to the last round's stream may just be taken back.
            let granted =
                async || (holder.post("/locks/moment", "").await.status == 201).then_some(());
            eventually(PATIENCE, granted).await;
            let mut listener = Listener::open(&http, "moment?wait=forever&ttl=60s").await;
            listener.hears("waiting").await;
            let leaves = async {
                tokio::time::sleep(Duration::from_micros(200) * round).await;
                way.go(listener).await
            };
            let (released, _) = tokio::join!(holder.delete("/locks/moment"), leaves);
            assert_eq!(released.status, 204);
            let took = freed(&http, "moment").await;
            assert!(took < SOON, "{way:?} in round {round}: {took:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_next_in_line_has_the_key_when_the_holders_process_is_killed() {
    for stage in Stage::each().await {
        let http = stage.http(0);
        let (mut curl, heard) = curl(&http, "killed?wait=forever");
        assert!(heard.contains("acquired"), "{heard}");
        let mut next = Listener::open_as(&http, "killed?wait=forever", OTHER).await;
        next.hears("waiting").await;
        let began = Instant::now();
        curl.kill().unwrap();
        next.hears("acquired").await;
        assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
        curl.wait().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_holder_that_is_stopped_keeps_its_lease_until_somebody_forces_it() {
    for stage in Stage::each().await {
        let http = stage.http(0);
        let (mut curl, heard) = curl(&http, "stopped?ttl=1s");
        assert!(heard.contains("acquired"), "{heard}");
        stop(curl.id());
        // More than twice its TTL.
        for _ in 0..5 {
            assert!(stays_held(&http, "stopped").await);
        }
        assert_eq!(http.delete("/admin/locks/stopped").await.status, 200);
        assert!(freed(&http, "stopped").await < SOON);
        curl.kill().unwrap();
        curl.wait().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_killed_in_line_is_out_of_it() {
    for stage in Stage::each().await {
        let http = stage.http(0);
        let mut holder = Listener::open(&http, "waits").await;
        holder.hears("acquired").await;
        let (mut curl, heard) = curl(&http, "waits?wait=forever");
        assert!(heard.contains(r#"{"event":"waiting","ahead":0}"#), "{heard}");
        let began = Instant::now();
        curl.kill().unwrap();
        until_waiters(&http, "waits", 0).await;
        assert!(began.elapsed() < SOON, "{:?}", began.elapsed());
        curl.wait().unwrap();
        drop(holder);
        assert!(freed(&http, "waits").await < SOON);
    }
}

/// A curl that holds a key, and its first line.
fn curl(http: &Http, target: &str) -> (std::process::Child, String) {
    let url = format!("http://{}/hold/{target}", http.address);
    let mut curl = command("curl");
    let mut curl = curl.args(["-sSN", "-X", "POST", &url]).stdout(Stdio::piped()).spawn().unwrap();
    let mut heard = Vec::new();
    let shown = curl.stdout.as_mut().unwrap();
    while heard.last() != Some(&b'\n') {
        let mut byte = [0];
        shown.read_exact(&mut byte).unwrap();
        heard.push(byte[0]);
    }
    (curl, String::from_utf8(heard).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_lingers_for_as_long_as_it_was_asked_to() {
    for stage in Stage::each().await {
        let http = stage.http(0);
        let mut listener = Listener::open(&http, "lingers?linger=900ms").await;
        listener.hears("acquired").await;
        drop(listener);
        assert!(is_held(&http, "lingers").await);
        let next = http.post("/locks/lingers?wait=10s&ttl=100ms", "").await;
        assert_eq!(next.status, 201);
        let waited = next.number("waited_ms");
        assert!((700..2_500).contains(&waited), "{waited}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_lingers_is_its_clients() {
    for stage in Stage::each().await {
        let http = stage.http(0);
        let mine = http.token(TOKEN);
        let mut first = Listener::open(&http, "over?linger=20s").await;
        let number = first.hears("acquired").await["fencing_token"].as_u64().unwrap();
        drop(first);
        let is_plain =
            async || (mine.post("/locks/over?ttl=1m", "").await.status == 200).then_some(());
        eventually(PATIENCE, is_plain).await;
        let refused = mine.post("/hold/over", "").await;
        assert_eq!(refused.told(), (409, "lock_held".into()));
        assert_eq!(refused.field("mine"), true);
        assert_eq!(refused.number("fencing_token"), number);
        let target = format!("over?ttl=1800ms&fencing_token={number}");
        let mut second = Listener::open(&http, &target).await;
        let resumed = second.hears("acquired").await["fencing_token"].as_u64().unwrap();
        assert!(resumed > number);
        for _ in 0..4 {
            second.hears("alive").await;
        }
        drop(second);
        assert!(freed(&http, "over").await < SOON);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rule_13_a_lease_that_a_stream_keeps_is_refreshed_by_it_alone() {
    for stage in Stage::each().await {
        let http = stage.http(0).token(TOKEN);
        let mut listener = Listener::open(&http, "beside?ttl=1m").await;
        let number = listener.hears("acquired").await["fencing_token"].as_u64().unwrap();
        for named in ["", &format!("?fencing_token={number}")] {
            let refused = http.put(&format!("/locks/beside/refresh{named}"), "").await;
            assert_eq!(refused.told(), (409, "lock_held".into()), "{refused:?}");
            assert_eq!(
                (refused.field("mine"), refused.number("fencing_token")),
                (true.into(), number)
            );
        }
        drop(listener);
        assert!(freed(&http, "beside").await < SOON);
    }
}

/// An attack showed two holders: a stream that its client had given up arrived after the acquire by
/// which the client went on, took the lease over, and ended it by its hang-up.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_arrives_late_ends_no_lease_by_its_hang_up() {
    for stage in Stage::each().await {
        let http = stage.http(0);
        let mine = http.token(TOKEN);
        for (linger, named) in
            [("", false), ("&linger=100ms", false), ("", true), ("&linger=100ms", true)]
        {
            let before = mine.post("/locks/late?ttl=1m", "").await;
            let old = before.number("fencing_token");
            let path = format!("/locks/late?ttl=1m&fencing_token={old}");
            let told = if named { mine.post(&path, "").await } else { before };
            let number = if named { format!("&fencing_token={old}") } else { String::new() };
            let late = Listener::open(&http, &format!("late?ttl=1m{linger}{number}")).await;
            drop(late);
            assert!(stays_held(&http, "late").await, "{linger} {named}");
            let refreshed = mine.put("/locks/late/refresh", "").await;
            assert_eq!(refreshed.field("fencing_token"), told.field("fencing_token"));
            assert_eq!(mine.delete("/locks/late").await.status, 204);
        }
    }
}

/// The service gives the connection up after 20 s, while its client relies on the last line.
#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn rule_16_a_lease_whose_connection_times_out_keeps_the_end_that_its_client_was_told() {
    const NOTHING: [SockFilter; 1] = [SockFilter::new(0x06, 0, 0, 0)]; // BPF_RET: takes 0 bytes.
    let stages = Stage::each().await;
    let timed_out = stages.iter().map(async |stage| {
        let http = stage.http(0);
        let mut listener = Listener::open(&http, "vanishes?ttl=5m&linger=1s").await;
        listener.hears("acquired").await;
        SockRef::from(listener.stream.get_ref()).attach_filter(&NOTHING).unwrap();
        let given_up = async || {
            let refreshed = http.token(TOKEN).put("/locks/vanishes/refresh", "").await;
            (refreshed.status == 200).then(|| refreshed.number("ttl_ms"))
        };
        let left = eventually(PATIENCE * 3, given_up).await;
        assert!(left > 200_000, "it was not ended, and does not linger: {left}");
        drop(listener);
    });
    futures_util::future::join_all(timed_out).await;
}

/// It stayed for its TTL, up to a day, in 45 of 100 rounds when its client hung up as it was granted.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_that_resumes_and_ends_at_any_moment_leaves_no_longer_lease_than_there_was() {
    const ROUNDS: u32 = 30;
    for stage in Stage::each().await {
        let http = stage.http(0);
        for round in 0..ROUNDS {
            // In turn a stream's lease, which ends with it, and a plain one.
            let of_stream = round % 2 == 0;
            let free = async || (!is_held(&http, "resumes").await).then_some(());
            eventually(PATIENCE, free).await;
            let mut older = None;
            let number = if of_stream {
                let mut stream = Listener::open(&http, "resumes?ttl=1h").await;
                let number = stream.hears("acquired").await["fencing_token"].clone();
                older = Some(stream);
                number
            } else {
                http.token(TOKEN).post("/locks/resumes?ttl=2s", "").await.field("fencing_token")
            };
            let target = format!("resumes?ttl=1h&fencing_token={number}");
            let late = Listener::send(&http, &target, TOKEN, "").await;
            tokio::time::sleep(Duration::from_micros(150) * round).await;
            drop((late, older));
            let took = freed(&http, "resumes").await;
            assert!(took < Duration::from_secs(4), "round {round}: {took:?}");
        }
    }
}
