//! Hostile clients: requests that a proxy and the service could read in two ways, and crowds that
//! only cost. What one slow client gets is in `connections.rs`.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::support::{Http, PATIENCE, Process};

/// What would take a key if it were served.
const SMUGGLED: &str = "POST /locks/smuggled?ttl=1h HTTP/1.1\r\nHost: localhost\r\n\
    Connection: close\r\n\r\n";

/// Lines of a head that two readers may understand in two ways.
const REFUSED: [&str; 26] = [
    "Content-Length: 0\r\nContent-Length: 58\r\n",
    "Content-Length: 58\r\nContent-Length: 0\r\n",
    "Content-Length: 0, 58\r\n",
    "Content-Length: +0\r\n",
    "Content-Length: -0\r\n",
    "Content-Length: 0x0\r\n",
    "Content-Length: \r\n",
    "Content-Length : 0\r\n",
    " Content-Length: 0\r\n",
    "X-Folded: one\r\n Content-Length: 58\r\n",
    "X-Folded: one\r\n\tTransfer-Encoding: chunked\r\n",
    "X-Bare: one\nContent-Length: 0\r\n",
    "X-Bare: one\nTransfer-Encoding: chunked\r\n",
    "X-Bare: one\rTransfer-Encoding: chunked\r\n",
    "X-Nul: \0\r\nContent-Length: 0\r\n",
    "Transfer-Encoding : chunked\r\n",
    "Transfer-Encoding: xchunked\r\n",
    "Transfer-Encoding: identity\r\n",
    "Transfer-Encoding: chunked, identity\r\n",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
    "Transfer-Encoding: identity\r\nTransfer-Encoding: chunked\r\n",
    "Transfer-Encoding: x\r\nTransfer-Encoding: chunked\r\n",
    "Transfer-Encoding: chunked, chunked\r\n",
    "Transfer-Encoding: gzip, chunked\r\n",
    "Transfer-Encoding: \x0bchunked\r\n",
    "Transfer-\u{0}Encoding: chunked\r\n",
];

/// Both lengths, in both orders: the body ends where its chunks end, and the connection with it.
const AMBIGUOUS: [&str; 3] = [
    "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
    "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
    "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\nContent-Length: 63\r\n",
];

/// Bodies in chunks that are none.
const CHUNKS: [&str; 7] = [
    "0\n\n",
    "+0\r\n\r\n",
    "0x0\r\n\r\n",
    "0 0\r\n\r\n",
    "-1\r\n\r\n",
    "0;a\nb\r\n\r\n",
    "fffffffffffffffff\r\n\r\n",
];

#[tokio::test(flavor = "multi_thread")]
async fn a_request_hidden_behind_an_ambiguous_one_is_never_served() {
    let directory = tempfile::tempdir().unwrap();
    let service = Process::start(&format!("embedded:{}", directory.path().display()), &[]);
    for lines in REFUSED {
        let heard = hears(&service, &format!("{lines}\r\n{SMUGGLED}"));
        assert!(heard.starts_with("HTTP/1.1 400 "), "{lines:?}: {heard}");
        assert_eq!(heard.matches("HTTP/1.1 ").count(), 1, "{lines:?}: {heard}");
    }
    for lines in AMBIGUOUS {
        let heard = hears(&service, &format!("{lines}\r\n0\r\n\r\n{SMUGGLED}"));
        assert_eq!(heard.matches("HTTP/1.1 ").count(), 1, "{lines:?}: {heard}");
    }
    for chunks in CHUNKS {
        let heard =
            hears(&service, &format!("Transfer-Encoding: chunked\r\n\r\n{chunks}{SMUGGLED}"));
        assert!(heard.starts_with("HTTP/1.1 400 "), "{chunks:?}: {heard}");
        assert_eq!(heard.matches("HTTP/1.1 ").count(), 1, "{chunks:?}: {heard}");
    }
    assert_eq!(service.http().get("/locks/smuggled").await.field("held"), false);
    // The same bytes are served where nobody can read them in two ways.
    let heard = hears(&service, &format!("Content-Length: 0\r\n\r\n{SMUGGLED}"));
    assert_eq!(heard.matches("HTTP/1.1 201 ").count(), 1, "{heard}");
    assert_eq!(service.http().get("/locks/smuggled").await.field("held"), true);
}

/// All that comes after a request with these lines and what follows them.
fn hears(service: &Process, rest: &str) -> String {
    let mut stream = TcpStream::connect(service.http().address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    let request = format!("POST /locks/first HTTP/1.1\r\nHost: localhost\r\n{rest}");
    stream.write_all(request.as_bytes()).unwrap();
    let mut heard = Vec::new();
    // What was sent behind a refused request may make a reset of the end.
    let _ = stream.read_to_end(&mut heard);
    String::from_utf8(heard).unwrap()
}

/// The others.
const CLIENTS: usize = 20;

/// Each holds a connection and gives nothing for it.
const COSTLY: [&str; 4] = [
    "",
    "GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
    "POST /locks/slow HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4000\r\n\r\n{",
    "GET /docs HTTP/1.1\r\nHost: localhost\r\n\r\n",
];

#[tokio::test(flavor = "multi_thread")]
async fn others_are_served_while_more_clients_than_there_is_room_for_only_cost() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("embedded:{}", directory.path().display());
    let limits = [
        ("LOCKKEEPER_LIMITS_CONNECTIONS", "50"),
        ("LOCKKEEPER_LIMITS_HEAD_TIME", "500ms"),
        ("LOCKKEEPER_LIMITS_BODY_TIME", "500ms"),
    ];
    let service = Process::start(&store, &limits);
    let address = service.http().address;
    let stop = AtomicBool::new(false);
    let served = std::thread::scope(|scope| {
        scope.spawn(|| crowds(address, &stop));
        let runtime = tokio::runtime::Handle::current();
        let http = service.http();
        let served = tokio::task::block_in_place(|| runtime.block_on(served(&http)));
        stop.store(true, Ordering::Relaxed);
        served
    });
    assert_eq!(served, CLIENTS);
    service.logs("no room for more connections").await;
}

/// Opens connections, of which the last ones stay, until it is told to stop.
fn crowds(address: SocketAddr, stop: &AtomicBool) {
    let mut crowd = VecDeque::new();
    for text in COSTLY.iter().cycle() {
        if stop.load(Ordering::Relaxed) {
            return;
        }
        let Ok(mut client) = TcpStream::connect(address) else { continue };
        // It may have been closed already.
        let _ = client.write_all(text.as_bytes());
        crowd.push_back(client);
        if crowd.len() > 200 {
            crowd.pop_front();
        }
    }
}

/// How many clients of all are granted a key, one after the other.
async fn served(http: &Http) -> usize {
    for number in 0..CLIENTS {
        let path = format!("/locks/of-others/{number}");
        let answer = tokio::time::timeout(PATIENCE, http.try_send("POST", &path, "")).await;
        if !matches!(answer, Ok(Ok(answer)) if answer.status == 201) {
            return number;
        }
    }
    CLIENTS
}
