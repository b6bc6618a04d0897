//! The lease is lost, or nearly.

use std::process::Stdio;
use std::time::Duration;

use crate::exec::proxy::{Mode, Proxy};
use crate::exec::ticker::{Manners, Ticker};
use crate::exec::{Going, Stage, dead, exec, lives, store};
use crate::support::{PATIENCE, Process, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_is_killed_or_stands_still_ends_the_command_before_the_lease() {
    for fault in ["KILL", "STOP"] {
        let stage = Stage::new();
        let proxy = Proxy::before(stage.service.http().address).await;
        let ticker = Ticker::new(stage.path("ticks"));
        let words = ticker.words_of_a_grandchild(Manners::Deaf);
        let flags = ["-t", "5s", "-k", "500ms", "key"];
        let words: Vec<&str> = flags.into_iter().chain(words.iter().map(String::as_str)).collect();
        let going = Going::start(exec(&proxy.url(), &words));
        let pid = ticker.ticks().await;
        stage.service.signal(fault);
        dead(pid).await;
        let ran = going.end();
        assert_eq!(ran.code, Some(79), "{ran:?}");
        let told = "COMMAND is ended: the lease could not be refreshed in time";
        assert!(ran.err.contains(told), "{}", ran.err);
        let end = proxy.answered() + Duration::from_secs(5);
        let last = ticker.last();
        assert!(last < end, "{fault}: it ran until {last:?}, the lease ended at {end:?}");
        // It was given the time that it has, rather than killed at the first failure: a third after
        // the last answer.
        assert!(last > end - Duration::from_secs(3), "{fault}: {last:?} of {end:?}");
        stage.service.signal(if fault == "STOP" { "CONT" } else { "KILL" });
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_is_released_by_force_kills_the_command_at_once() {
    let stage = Stage::new();
    let ticker = Ticker::new(stage.path("ticks"));
    let words = ticker.words(Manners::Deaf);
    let flags = ["-t", "3s", "-k", "1s", "key"];
    let words: Vec<&str> = flags.into_iter().chain(words.iter().map(String::as_str)).collect();
    let going = Going::start(stage.exec(&words));
    let pid = ticker.ticks().await;
    assert_eq!(stage.service.http().delete("/admin/locks/key").await.status, 200);
    dead(pid).await;
    let ran = going.end();
    assert_eq!(ran.code, Some(79));
    assert!(ran.err.contains("COMMAND is ended: the lease is lost"), "{}", ran.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_is_released_by_force_just_before_the_command_ends_is_lost_too() {
    let stage = Stage::new();
    let free = format!("curl -sSf -o /dev/null -X DELETE {}/admin/locks/key", stage.url());
    for flags in [&[][..], &["--min-hold", "1m"]] {
        let ran = stage.ran(&[flags, &["key", "sh", "-c", &free]].concat());
        assert_eq!(ran.code, Some(79), "{ran:?}");
        assert!(ran.err.contains("'key': the lease was gone before its release"), "{}", ran.err);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_whose_lease_may_last_no_longer_is_ended_for_that_reason() {
    let directory = tempfile::tempdir().unwrap();
    let settings = directory.path().join("lockkeeper.toml");
    let prefixes = "[[prefixes]]\nprefix = \"key\"\nmax_hold = \"5s\"\n\
                    [[prefixes]]\nprefix = \"short\"\nmax_hold = \"500ms\"\n";
    std::fs::write(&settings, prefixes).unwrap();
    let stage = Stage::with(&[("LOCKKEEPER_CONFIG", &settings.display().to_string())]);
    let told = "the lease lasts no longer: the service has a max_hold for its key\n";
    for ttl in ["3s", "1h"] {
        let ran = stage.ran(&["-v", "-t", ttl, "-k", "1s", "key", "sleep", "600"]);
        assert_eq!(ran.code, Some(79), "{ran:?}");
        assert!(ran.err.contains(&format!("COMMAND is ended: {told}")), "{}", ran.err);
        assert!(ran.err.ends_with("released 'key'\n"), "it is free before its end: {}", ran.err);
        // No more often than a lease without an end.
        assert!(ran.err.matches("refreshed 'key'").count() <= 4, "{}", ran.err);
    }
    let ran = stage.ran(&["--min-hold", "1m", "-k", "1s", "key/kept", "true"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.err.contains("'key/kept' is kept for ") && ran.err.contains(", by its max_hold"));
    let warned = ["-t", "3s", "-k", "1s", "--on-lost", "warn", "key", "sleep", "6"];
    let ran = stage.ran(&warned);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.err.contains(&format!("COMMAND runs without its lease: {told}")), "{}", ran.err);
    let ran = stage.ran(&["-t", "1h", "-k", "1s", "short", "echo", "ran"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(79), ""), "{ran:?}");
    assert_eq!(
        ran.err,
        "lockkeeper: 'short': COMMAND is not started: the lease leaves it no time\n"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_may_go_on_without_its_lease_if_that_is_asked_for() {
    let stage = Stage::new();
    let script = "echo ready; read LINE; exit 5";
    let flags = ["-t", "1s", "-k", "200ms", "--on-lost", "warn", "key", "sh", "-c", script];
    let mut warned = stage.exec(&flags);
    warned.stdin(Stdio::piped());
    let mut going = Going::start(warned);
    assert_eq!(going.line(), "ready");
    assert_eq!(stage.service.http().delete("/admin/locks/key").await.status, 200);
    let mut errors = std::io::BufReader::new(going.child.stderr.take().unwrap());
    let mut told = String::new();
    std::io::BufRead::read_line(&mut errors, &mut told).unwrap();
    assert!(told.contains("COMMAND runs without its lease: the lease is lost"), "{told}");
    drop(going.child.stdin.take());
    assert_eq!(going.end().code, Some(5));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restart_and_a_short_outage_are_survived() {
    let Stage { directory, service } = Stage::new();
    let address = service.http().address;
    let proxy = Proxy::before(address).await;
    let script = "echo ready; read LINE; exit 5";
    let flags = ["-q", "-t", "15s", "-k", "1s", "key", "sh", "-c", script];
    let mut command = exec(&proxy.url(), &flags);
    command.stdin(Stdio::piped());
    let mut going = Going::start(command);
    assert_eq!(going.line(), "ready");
    let first = proxy.answered();
    service.kill();
    proxy.set(Mode::HangUp);
    let listen = address.to_string();
    let service = Process::start_on(&listen, &["--store", &store(&directory)], &[]);
    proxy.set(Mode::Pass);
    eventually(PATIENCE, async || (proxy.answered() > first).then_some(())).await;
    drop(going.child.stdin.take());
    assert_eq!(going.end().code, Some(5));
    assert_eq!(service.http().get("/locks/key").await.field("held"), false);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_that_is_lost_on_its_way_costs_no_lease() {
    let stage = Stage::new();
    let proxy = Proxy::before(stage.service.http().address).await;
    proxy.set(Mode::LoseAnswer);
    let going = Going::start(exec(&proxy.url(), &["-v", "key", "sh", "-c", "exit 5"]));
    // The lease is there, and nobody knows.
    eventually(PATIENCE, async || (stage.look("key").await["held"] == true).then_some(())).await;
    let fencing_token = stage.look("key").await["fencing_token"].to_string();
    proxy.set(Mode::Pass);
    let ran = going.end();
    assert_eq!(ran.code, Some(5), "{ran:?}");
    let told = format!(", fencing token {fencing_token}\n");
    assert!(ran.err.contains("acquired 'key' after ") && ran.err.contains(&told), "{}", ran.err);
    assert_eq!(stage.look("key").await["held"], false);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_left_of_a_command_whose_wrapper_is_killed() {
    let stage = Stage::new();
    let (first, second) = (Ticker::new(stage.path("one")), Ticker::new(stage.path("two")));
    let (one, two) = (first.words(Manners::Deaf), second.words_of_a_grandchild(Manners::Deaf));
    for (ticker, words) in [(first, one), (second, two)] {
        let words: Vec<&str> =
            ["key"].into_iter().chain(words.iter().map(String::as_str)).collect();
        let going = Going::start(stage.exec(&words));
        let pid = ticker.ticks().await;
        assert!(lives(pid));
        going.signal("KILL");
        assert_eq!(going.end().code, None);
        dead(pid).await;
        assert_eq!(stage.service.http().delete("/admin/locks/key").await.status, 200);
    }
}
