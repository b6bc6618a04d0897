//! Clients that are slow, silent, too many, or gone.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::support::{Process, eventually};

const PATIENCE: Duration = Duration::from_secs(20);

pub(super) const REQUEST: &str = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";

/// A service with these limits, on a store of its own.
pub(super) fn start(limits: &[(&str, &str)]) -> (Process, TempDir) {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("embedded:{}", directory.path().display());
    (Process::start(&store, limits), directory)
}

/// A connection that is spoken by hand.
pub(super) struct Line(pub(super) TcpStream);

impl Line {
    pub(super) fn to(service: &Process) -> Self {
        let stream = TcpStream::connect(service.http().address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Self(stream)
    }

    pub(super) fn say(&mut self, text: &str) {
        self.0.write_all(text.as_bytes()).unwrap();
    }

    /// Reads, also on a machine that stands still meanwhile.
    fn read(&mut self, piece: &mut [u8]) -> std::io::Result<usize> {
        loop {
            match self.0.read(piece) {
                Err(error) if error.kind() == ErrorKind::Interrupted => (),
                read => return read,
            }
        }
    }

    /// The status of the next answer, which has to come whole.
    pub(super) fn status(&mut self) -> u16 {
        let mut heard = Vec::new();
        loop {
            let mut piece = [0; 1024];
            let length = self.read(&mut piece).unwrap();
            assert!(length > 0, "closed after {:?}", String::from_utf8_lossy(&heard));
            heard.extend_from_slice(&piece[..length]);
            let text = String::from_utf8_lossy(&heard).to_lowercase();
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            let whole = head.lines().find_map(|line| line.strip_prefix("content-length: "));
            if body.len() >= whole.map_or(0, |length| length.parse().unwrap()) {
                return head.split(' ').nth(1).unwrap().parse().unwrap();
            }
        }
    }

    /// What comes until the service closes the connection.
    pub(super) fn rest(mut self) -> Vec<u8> {
        let mut heard = Vec::new();
        match self.0.read_to_end(&mut heard) {
            Err(error) if error.kind() != ErrorKind::ConnectionReset => panic!("{error}"),
            _ => heard,
        }
    }

    /// Whether nothing comes for a while.
    fn is_silent(&mut self) -> bool {
        self.0.set_read_timeout(Some(Duration::from_millis(300))).unwrap();
        let heard = self.read(&mut [0]);
        self.0.set_read_timeout(Some(PATIENCE)).unwrap();
        heard
            .is_err_and(|error| matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut))
    }
}

#[test]
fn a_head_that_comes_byte_by_byte_is_cut_while_an_idle_connection_stays() {
    let (service, _directory) = start(&[("LOCKKEEPER_LIMITS_HEAD_TIME", "1s")]);
    let (mut idle, mut silent) = (Line::to(&service), Line::to(&service));
    idle.say(REQUEST);
    assert_eq!(idle.status(), 200);
    for kept_alive in [false, true] {
        let mut slow = Line::to(&service);
        if kept_alive {
            slow.say(REQUEST);
            assert_eq!(slow.status(), 200);
        }
        let began = Instant::now();
        let cut = REQUEST.bytes().cycle().any(|byte| {
            // A byte whenever half a second has brought no answer.
            slow.0.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
            match slow.0.write_all(&[byte]).and_then(|()| slow.0.read(&mut [0; 512])) {
                Ok(length) => length == 0,
                Err(error) => !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut),
            }
        });
        assert!(cut);
        assert!(began.elapsed() >= Duration::from_secs(1), "after {:?}", began.elapsed());
        assert!(began.elapsed() < Duration::from_secs(10), "after {:?}", began.elapsed());
    }
    for line in [&mut idle, &mut silent] {
        line.say(REQUEST);
        assert_eq!(line.status(), 200);
    }
}

#[test]
fn the_memory_of_connections_comes_in_small_pages() {
    let (service, _directory) = start(&[]);
    let status = std::fs::read_to_string(format!("/proc/{}/status", service.pid())).unwrap();
    assert!(status.contains("THP_enabled:\t0"), "{status}");
}

#[test]
fn an_idle_connection_is_closed_without_a_word() {
    let (service, _directory) = start(&[("LOCKKEEPER_LIMITS_IDLE_TIME", "1s")]);
    let mut used = Line::to(&service);
    for _ in 0..3 {
        used.say(REQUEST);
        assert_eq!(used.status(), 200);
    }
    let began = Instant::now();
    let never_used = Line::to(&service);
    for idle in [used, never_used] {
        let heard = idle.rest();
        assert!(heard.is_empty(), "{:?}", String::from_utf8_lossy(&heard));
    }
    assert!(began.elapsed() >= Duration::from_millis(900), "after {:?}", began.elapsed());
}

#[test]
fn a_body_that_does_not_come_is_answered() {
    let (service, _directory) = start(&[("LOCKKEEPER_LIMITS_BODY_TIME", "500ms")]);
    for piece in ["", "{\"ttl_ms\":"] {
        let mut slow = Line::to(&service);
        slow.say("POST /locks/slow HTTP/1.1\r\nhost: localhost\r\ncontent-length: 20\r\n\r\n");
        slow.say(piece);
        assert_eq!(slow.status(), 400);
    }
}

/// A request that is under way until its client leaves.
const STREAM: &str = "POST /hold/KEY HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n";

/// Clients with a request under way, as many as there is room for.
fn busy(service: &Process, clients: usize) -> Vec<Line> {
    let mut all: Vec<_> = (0..clients).map(|_| Line::to(service)).collect();
    for (number, client) in all.iter_mut().enumerate() {
        client.say(&STREAM.replace("KEY", &number.to_string()));
        assert_eq!(client.status(), 200);
    }
    all
}

const LIST: &str = "GET /locks HTTP/1.1\r\nhost: localhost\r\n\r\n";

#[tokio::test(flavor = "multi_thread")]
async fn one_client_too_many_waits_until_another_leaves() {
    let (service, _directory) = start(&[("LOCKKEEPER_LIMITS_CONNECTIONS", "4")]);
    let mut clients = busy(&service, 4);
    let mut fifth = Line::to(&service);
    fifth.say(LIST);
    assert!(fifth.is_silent(), "it was served");
    // Nobody has to wait to learn that the service lives.
    let mut health = Line::to(&service);
    health.say(REQUEST);
    assert_eq!(health.status(), 200);
    let listen = service.http().address.to_string();
    let checked = crate::startup::run(&["healthcheck", "--listen", &listen], &[]);
    assert!(checked.status.success(), "{checked:?}");
    assert!(fifth.is_silent(), "it was served");
    drop(clients.pop());
    assert_eq!(fifth.status(), 200);
    assert!(service.log().contains("no room for more connections"), "{}", service.log());
    drop((clients, fifth, health));
    // No place was lost on the way.
    for _ in 0..12 {
        eventually(PATIENCE, async || {
            (service.http().get("/locks").await.status == 200).then_some(())
        })
        .await;
    }
}

#[test]
fn an_idle_connection_gives_way_to_a_client_that_found_no_room() {
    let (service, _directory) = start(&[("LOCKKEEPER_LIMITS_CONNECTIONS", "4")]);
    let mut busy = busy(&service, 2);
    let mut idle: Vec<_> = (0..2).map(|_| Line::to(&service)).collect();
    for client in &mut idle {
        client.say(REQUEST);
        assert_eq!(client.status(), 200);
    }
    let began = Instant::now();
    for _ in 0..6 {
        let mut new = Line::to(&service);
        new.say(LIST);
        assert_eq!(new.status(), 200);
        idle.push(new);
    }
    assert!(began.elapsed() < Duration::from_secs(60), "idle ones stayed: {:?}", began.elapsed());
    let silent = idle.remove(0).rest();
    assert!(silent.is_empty(), "{}", String::from_utf8_lossy(&silent));
    for client in &mut busy {
        assert!(client.is_silent(), "a request under way was cut");
    }
}

#[test]
fn one_address_has_only_so_many_connections_and_still_gets_its_health_checked() {
    let limits = [("LOCKKEEPER_LIMITS_CONNECTIONS_PER_ADDRESS", "2")];
    let (service, _directory) = start(&limits);
    let _busy = busy(&service, 2);
    let mut third = Line::to(&service);
    third.say(LIST);
    assert!(third.is_silent(), "it was served");
    let mut health = Line::to(&service);
    health.say(REQUEST);
    assert_eq!(health.status(), 200);
    // A proxy has the connections of all its clients.
    let proxy = [limits[0], ("LOCKKEEPER_TRUSTED_PROXIES", "127.0.0.1")];
    let (service, _directory) = start(&proxy);
    let _busy = busy(&service, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_ends_its_sending_side_has_gone() {
    let (service, _directory) = start(&[]);
    let http = service.http();
    for (key, body) in [("empty", ""), ("body", "{}")] {
        let length = body.len();
        let mut client = Line::to(&service);
        client.say(&format!(
            "POST /locks/{key} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n{body}"
        ));
        client.0.shutdown(std::net::Shutdown::Write).unwrap();
        let answer = String::from_utf8(client.rest()).unwrap();
        let token = if answer.is_empty() {
            // The next claim has the key, whenever the grant of this one is taken back.
            let next = http.post(&format!("/locks/{key}?wait=20s"), "").await;
            assert_eq!(next.status, 201, "{:?}", next.body);
            next.field("token").as_str().unwrap().to_owned()
        } else {
            assert!(answer.starts_with("HTTP/1.1 201 "), "{answer}");
            let token = answer.split_once(r#""token":""#).unwrap().1.split('"').next().unwrap();
            token.to_owned()
        };
        assert_eq!(http.token(&token).delete(&format!("/locks/{key}")).await.status, 204);
    }
    // What needs no store is answered at once.
    let mut client = Line::to(&service);
    client.say(REQUEST);
    client.0.shutdown(std::net::Shutdown::Write).unwrap();
    let answer = String::from_utf8(client.rest()).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[test]
fn a_client_that_sends_much_behind_a_waiting_request_is_cut() {
    let (service, _directory) = start(&[]);
    let head = "HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let mut holder = Line::to(&service);
    holder.say(&format!("POST /locks/k?ttl=1h {head}"));
    assert_eq!(holder.status(), 201);
    let mut waits = Line::to(&service);
    waits.0.set_write_timeout(Some(PATIENCE)).unwrap();
    waits.say(&format!("POST /locks/k?wait=25s {head}"));
    let cut = loop {
        if let Err(error) = waits.0.write_all(&[b'x'; 10_000]) {
            break error;
        }
    };
    // Not a timeout: that would be a line that nobody leaves.
    assert!(matches!(cut.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset), "{cut}");
}

#[test]
fn a_request_that_http_forbids_is_a_bare_400() {
    let (service, _directory) = start(&[]);
    for request in [
        "GET /locks HTTP/1.1\r\n\r\n",
        "GET /healthz HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\n\r\n",
        "GET /healthz HTTP/1.0\r\nhost: localhost\r\nhost: localhost\r\n\r\n",
        "POST /locks/a#b HTTP/1.1\r\nhost: localhost\r\n\r\n",
        "\r\nGET /healthz#b HTTP/1.1\r\nhost: localhost\r\n\r\n",
    ] {
        let mut client = Line::to(&service);
        client.say(request);
        let answer = String::from_utf8(client.rest()).unwrap();
        assert!(
            answer.starts_with("HTTP/1.1 400 ") || answer.starts_with("HTTP/1.0 400 "),
            "{request}: {answer}"
        );
        assert!(answer.ends_with("\r\n\r\n"), "{request}: {answer}");
    }
    let mut client = Line::to(&service);
    for body in ["{\"owner\":\"#1\"}", "{\"nothing\":\"#2\"}", "{\"owner\":\"#3\"}"] {
        let length = body.len();
        let head =
            format!("POST /locks/%23 HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}");
        client.say(&format!("{head}\r\n\r\n{body}"));
        assert!(matches!(client.status(), 201 | 400 | 409));
    }
    let mut old = Line::to(&service);
    old.say("GET /locks HTTP/1.0\r\n\r\n");
    assert_eq!(old.status(), 200);
}

#[test]
fn a_reader_that_hardly_reads_is_cut_and_gives_its_place_in_the_lists_back() {
    let (service, _directory) = start(&[("LOCKKEEPER_LIMITS_LISTS", "1")]);
    let http = service.http();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        for number in 0..400 {
            let path = format!("/locks/{}{number:04}?ttl=1h", "%22".repeat(500));
            assert_eq!(http.post(&path, "").await.status, 201);
        }
    });
    let page = "GET /locks?limit=1000 HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let mut deaf = Line::to(&service);
    // More than the system keeps for one that does not read.
    deaf.say(&page.repeat(60));
    let began = Instant::now();
    for awaited in [429, 200] {
        loop {
            let mut other = Line::to(&service);
            other.say("GET /locks?limit=1 HTTP/1.1\r\nhost: localhost\r\n\r\n");
            if other.status() == awaited {
                break;
            }
            assert!(began.elapsed() < Duration::from_secs(90), "no {awaited}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_sends_a_release_and_hangs_up_has_released() {
    let (service, _directory) = start(&[]);
    let http = service.http();
    for number in 0..50 {
        let (key, token) =
            (format!("left/{number}"), format!("token-of-the-one-that-left-{number}"));
        let body = format!(r#"{{"token":"{token}","ttl_ms":600000}}"#);
        assert_eq!(http.post(&format!("/locks/{key}"), &body).await.status, 201);
        let mut client = Line::to(&service);
        if number % 2 == 0 {
            client.say(&format!(
                "DELETE /locks/{key} HTTP/1.1\r\nhost: localhost\r\nlock-token: {token}\r\n\r\n"
            ));
        } else {
            let body = format!(r#"{{"token":"{token}"}}"#);
            let length = body.len();
            client.say(&format!(
                "DELETE /locks/{key} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n{body}"
            ));
        }
        drop(client);
        eventually(PATIENCE, async || {
            let found = http.get(&format!("/locks/{key}")).await;
            (found.field("held") == false).then_some(())
        })
        .await;
    }
}
