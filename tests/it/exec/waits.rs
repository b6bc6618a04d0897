//! Waiting for the key.

use std::future::ready;
use std::io::BufRead;
use std::path::Path;
use std::time::Instant;

use serde_json::Value;

use crate::exec::proxy::Proxy;
use crate::exec::{Going, HOLDER, Stage, exec, on_terminal, store};
use crate::support::process::signal;
use crate::support::{PATIENCE, Process, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_goes_on_past_the_cap_of_the_service_in_its_place() {
    let stage = Stage::with(&[("LOCKKEEPER_LIMITS_MAX_WAIT", "200ms")]);
    stage.hold("key").await;
    let proxy = Proxy::before(stage.service.http().address).await;
    let words = |owner| ["--owner", owner, "key", "sh", "-c", "echo $LOCK_FENCING_TOKEN"];
    let first = Going::start(exec(&proxy.url(), &words("first")));
    stage.waited_for("key", 1).await;
    let second = Going::start(stage.exec(&words("second")));
    stage.waited_for("key", 2).await;
    proxy.requests();
    let mut requests = 0;
    let asked = || {
        requests += proxy.requests().len();
        ready((requests >= 4).then_some(()))
    };
    eventually(PATIENCE, asked).await;
    // A claim that is away between two requests is not in it.
    let line = eventually(PATIENCE, async || {
        let queue = stage.look("key?waiters=2").await["queue"].as_array().unwrap().clone();
        (queue.len() == 2).then_some(queue)
    });
    let owners: Vec<Value> =
        line.await.into_iter().map(|mut claim| claim["owner"].take()).collect();
    assert_eq!(owners, ["first", "second"]);
    stage.let_go("key").await;
    for mut going in [first, second] {
        assert!(going.line().parse::<u64>().is_ok());
        assert_eq!(going.end().code, Some(0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn signals_end_the_wait_at_once_and_give_the_place_up() {
    let stage = Stage::new();
    stage.hold("key").await;
    let marker = stage.path("started");
    for (name, code) in [("TERM", 143), ("INT", 130), ("HUP", 129), ("QUIT", 131)] {
        let going = Going::start(stage.exec(&["key", "touch", &marker]));
        stage.waited_for("key", 1).await;
        let signalled = Instant::now();
        going.signal(name);
        assert_eq!(going.end().code, Some(code), "{name}");
        assert!(signalled.elapsed() < PATIENCE, "{name}: {:?}", signalled.elapsed());
        assert_eq!(stage.look("key").await["waiters"], 0);
    }
    // Also where the service says nothing.
    let going = Going::start(stage.exec(&["key", "touch", &marker]));
    stage.waited_for("key", 1).await;
    stage.service.stop();
    let signalled = Instant::now();
    going.signal("TERM");
    assert_eq!(going.end().code, Some(143));
    assert!(signalled.elapsed() < PATIENCE, "{:?}", signalled.elapsed());
    stage.service.signal("CONT");
    assert!(!Path::new(&marker).exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_term_between_the_grant_and_the_start_starts_nothing_and_frees_the_key() {
    let stage = Stage::new();
    let marker = stage.path("started");
    for _ in 0..10 {
        stage.hold("key").await;
        let going = Going::start(stage.exec(&["--owner", "waiter", "key", "touch", &marker]));
        stage.waited_for("key", 1).await;
        going.signal("STOP");
        going.stopped().await;
        stage.let_go("key").await;
        let granted = async || (stage.look("key").await["owner"] == "waiter").then_some(());
        eventually(PATIENCE, granted).await;
        // The grant is there to be read, and so is the signal.
        going.signal("TERM");
        going.signal("CONT");
        assert_eq!(going.end().code, Some(143));
        assert!(!Path::new(&marker).exists());
        assert_eq!(stage.look("key").await["held"], false);
    }
}

#[test]
fn commands_under_one_key_run_one_after_another() {
    let stage = Stage::new();
    let log = stage.path("log");
    let script = format!("echo in >> {log}; sleep 0.02; echo out >> {log}");
    let all: Vec<_> =
        (0..10).map(|_| Going::start(stage.exec(&["key", "sh", "-c", &script]))).collect();
    for going in all {
        let ran = going.end();
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
    assert_eq!(std::fs::read_to_string(&log).unwrap(), "in\nout\n".repeat(10));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_of_a_killed_wrapper_goes_to_the_next_when_its_lease_ends() {
    let stage = Stage::new();
    let flags = ["-t", "1s", "-k", "200ms", "key", "sh", "-c", "echo ready; exec sleep 60"];
    let mut first = Going::start(stage.exec(&flags));
    assert_eq!(first.line(), "ready");
    let second = Going::start(stage.exec(&["-w", "20s", "key", "sh", "-c", "exit 4"]));
    stage.waited_for("key", 1).await;
    signal(first.child.id(), "KILL");
    assert_eq!(first.end().code, None);
    assert_eq!(second.end().code, Some(4));
}

#[test]
fn a_short_ttl_is_enough_without_another_option() {
    let stage = Stage::new();
    assert_eq!(stage.ran(&["-t", "8", "key", "sh", "-c", "exit 6"]).code, Some(6));
}

/// The silence of the service counts from the end of the connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_is_cut_goes_on_however_old_its_request_is() {
    for (waited, away) in [(2_000, 7_000), (5_500, 0)] {
        let Stage { directory, service } = Stage::new();
        let address = service.http().address.to_string();
        let held = service.http().token(HOLDER).post("/locks/key?ttl=1h", "").await;
        assert_eq!(held.status, 201);
        let words = ["--if-down", "run", "-w", "5m", "key", "sh", "-c", "echo $LOCK_FENCING_TOKEN"];
        let mut going = Going::start(exec(&service.http().url(), &words));
        eventually(PATIENCE, async || {
            let look = service.http().get("/locks/key?waiters=1").await.json();
            look["queue"][0]["waited_ms"].as_u64().filter(|ms| *ms > waited)
        })
        .await;
        service.kill();
        let killed = Instant::now();
        eventually(PATIENCE, async || (killed.elapsed().as_millis() >= away).then_some(())).await;
        let service = Process::start_on(&address, &["--store", &store(&directory)], &[]);
        let stage = Stage { directory, service };
        stage.waited_for("key", 1).await;
        stage.let_go("key").await;
        assert_ne!(going.line(), "", "cut after {waited} ms");
        assert_eq!(going.end().code, Some(0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_terminal_shows_that_the_service_does_not_answer() {
    let stage = Stage::new();
    stage.hold("key").await;
    let mut going = Going::start(on_terminal(&stage, "exec LOCKKEEPER exec -w 5m key echo ran"));
    stage.waited_for("key", 1).await;
    stage.service.signal("KILL");
    let mut drawn = Vec::new();
    while !String::from_utf8_lossy(&drawn).contains("more for 'key': no answer, retrying") {
        assert!(going.lines.read_until(b'K', &mut drawn).unwrap() > 0, "{drawn:?}");
    }
    going.child.kill().unwrap();
}
