//! The end of a service, whatever its clients are doing.

use std::time::{Duration, Instant};

use crate::startup::connections::{Line, REQUEST, start};
use crate::support::Process;
use crate::support::process::until_read;

#[test]
fn half_a_request_does_not_keep_the_service_from_ending() {
    let limits = [
        ("LOCKKEEPER_LIMITS_SHUTDOWN_TIME", "1s"),
        ("LOCKKEEPER_LIMITS_HEAD_TIME", "60s"),
        ("LOCKKEEPER_LIMITS_BODY_TIME", "60s"),
    ];
    let head = "POST /locks/half HTTP/1.1\r\nhost: localhost\r\ncontent-length: 20\r\n\r\n";
    for half in ["", "GET /heal", head] {
        let (service, _directory) = start(&limits);
        let mut client = Line::to(&service);
        client.say(half);
        until_read(&client.0);
        let began = Instant::now();
        service.signal("TERM");
        // Whoever looks at the exit code can tell that somebody was cut off.
        assert_eq!(service.wait(), Some(if half.is_empty() { 0 } else { 3 }), "{half:?}");
        assert!(began.elapsed() < Duration::from_secs(5), "{half:?}: {:?}", began.elapsed());
        assert!(client.rest().is_empty());
    }
}

#[test]
fn idle_connections_are_closed_at_once_when_the_service_ends() {
    let (service, _directory) = start(&[("LOCKKEEPER_LIMITS_SHUTDOWN_TIME", "60s")]);
    let mut idle = Line::to(&service);
    idle.say(REQUEST);
    assert_eq!(idle.status(), 200);
    for name in ["TERM", "INT", "QUIT"] {
        let (another, _directory) = start(&[("LOCKKEEPER_LIMITS_SHUTDOWN_TIME", "60s")]);
        let mut idle = Line::to(&another);
        idle.say(REQUEST);
        assert_eq!(idle.status(), 200);
        let began = Instant::now();
        another.signal(name);
        assert_eq!(another.wait(), Some(0));
        assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
        assert!(idle.rest().is_empty());
    }
    // A second signal ends it whatever is under way.
    let mut half = Line::to(&service);
    let head = "POST /locks/half HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue";
    half.say(&format!("{head}\r\ncontent-length: 20\r\n\r\n"));
    assert_eq!(half.status(), 100);
    service.signal("TERM");
    assert!(idle.rest().is_empty());
    service.signal("TERM");
    assert_eq!(service.wait(), Some(3));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_that_closes_ends_a_service_unless_it_was_started_to_outlive_it() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("embedded:{}", directory.path().display());
    let service = Process::start_under(&["nohup"], &["--store", &store]);
    service.signal("HUP");
    assert_eq!(service.http().post("/locks/a", "").await.status, 201);
    service.signal("TERM");
    assert_eq!(service.wait(), Some(0));
}
