//! Signals while COMMAND runs.

use std::future::ready;
use std::time::Instant;

use crate::exec::proxy::{Mode, Proxy, SLOW};
use crate::exec::ticker::{Manners, Ticker};
use crate::exec::{Going, Stage, dead, exec};
use crate::support::process::{BINARY, command};
use crate::support::{PATIENCE, eventually};

const NOT_GIVEN_BACK: &str = "lockkeeper: 'key' was not released; it will expire\n";

/// Ends with 41 when it gets the signal.
const HEARS: &str = r#"$SIG{$ARGV[0]} = sub { exit 41 }; $| = 1; print "ready\n"; sleep 60;"#;

#[test]
fn each_signal_is_passed_on() {
    let stage = Stage::new();
    for name in ["TERM", "INT", "HUP", "QUIT", "USR1", "USR2"] {
        let mut going = Going::start(stage.exec(&["key", "perl", "-e", HEARS, name]));
        assert_eq!(going.line(), "ready");
        going.signal(name);
        assert_eq!(going.end().code, Some(41), "{name}");
    }
    for (name, code) in [("TERM", 143), ("INT", 130), ("HUP", 129), ("QUIT", 131)] {
        let mut going = Going::start(stage.exec(&["key", "sh", "-c", "echo ready; exec sleep 60"]));
        assert_eq!(going.line(), "ready");
        going.signal(name);
        assert_eq!(going.end().code, Some(code), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_while_the_first_request_is_on_its_way_leaves_no_lease() {
    let stage = Stage::new();
    let proxy = Proxy::before(stage.service.http().address).await;
    for words in [&["exec", "slow", "true"][..], &["acquire", "slow"]] {
        proxy.requests(); // Those of the one before.
        proxy.plan(&[Mode::Slow]);
        let mut verb = command("env");
        verb.args(["--default-signal", "setsid", BINARY]).args(words);
        verb.env("LOCKKEEPER_URL", proxy.url());
        let going = Going::start(verb);
        eventually(PATIENCE, async || (!proxy.requests().is_empty()).then_some(())).await;
        going.signal("TERM");
        assert_eq!(going.end().code, Some(143), "{words:?}");
        // By now the request has arrived.
        let ended = Instant::now();
        eventually(PATIENCE, async || (ended.elapsed() > SLOW * 2).then_some(())).await;
        assert_eq!(stage.look("slow").await["held"], false, "{words:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_of_the_command_end_with_it_and_the_key_is_free_then() {
    let stage = Stage::new();
    for manners in [Manners::Polite, Manners::Deaf] {
        let ticker = Ticker::new(stage.path(&format!("{manners:?}")));
        let words = ticker.words_of_a_grandchild(manners);
        let flags = ["-k", "300ms", "key"];
        let words: Vec<&str> = flags.into_iter().chain(words.iter().map(String::as_str)).collect();
        let going = Going::start(stage.exec(&words));
        let pid = ticker.ticks().await;
        going.signal("TERM");
        assert_eq!(going.end().code, Some(143));
        // At once: it was gone before the key was given back.
        assert!(!crate::exec::lives(pid), "{manners:?}");
        assert_eq!(stage.look("key").await["held"], false);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_of_the_command_have_time_to_end() {
    let stage = Stage::new();
    // The shell ends at once, the one below it takes its time.
    let script = r#"$SIG{TERM} = sub { select undef, undef, undef, 0.3; print "cleaned\n"; exit };
                    $| = 1; print "ready\n"; select undef, undef, undef, 0.02 while 1;"#;
    let words = ["key", "sh", "-c", "\"$@\" & wait", "sh", "perl", "-e", script];
    for flags in [&[][..], &["-q", "-T", "5s"]] {
        let mut going = Going::start(stage.exec(&[flags, &words].concat()));
        assert_eq!(going.line(), "ready");
        if flags.is_empty() {
            going.signal("TERM");
        }
        assert_eq!(going.line(), "cleaned");
        assert_eq!(going.end().code, Some(if flags.is_empty() { 143 } else { 124 }));
        assert_eq!(stage.look("key").await["held"], false);
    }
}

#[test]
fn a_signal_that_is_ignored_from_the_start_stays_so() {
    let stage = Stage::new();
    let mut nohup = command("setsid");
    nohup.args(["sh", "-c", "trap '' HUP; exec \"$@\"", "sh", BINARY, "exec", "key"]);
    nohup.args(["sh", "-c", "echo ready; read LINE; exit 6"]).env("LOCKKEEPER_URL", stage.url());
    nohup.stdin(std::process::Stdio::piped());
    let mut going = Going::start(nohup);
    assert_eq!(going.line(), "ready");
    going.signal("HUP");
    drop(going.child.stdin.take());
    assert_eq!(going.end().code, Some(6));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_while_the_lease_is_given_back_ends_that() {
    let stage = Stage::new();
    let mut exec = stage.exec(&["key", "sh", "-c", "echo ready; read LINE; exit 6"]);
    exec.stdin(std::process::Stdio::piped());
    let mut going = Going::start(exec);
    assert_eq!(going.line(), "ready");
    stage.service.stop();
    drop(going.child.stdin.take());
    // Once COMMAND has ended its standard output has.
    assert_eq!(going.line(), "");
    // The first may still be for COMMAND.
    let ended = || {
        going.signal("TERM");
        ready(going.child.try_wait().unwrap())
    };
    eventually(PATIENCE, ended).await;
    stage.service.signal("CONT");
    let ran = going.end();
    assert_eq!((ran.code, &*ran.err), (Some(6), NOT_GIVEN_BACK));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_to_all_processes_of_this_name_ends_the_command_too() {
    let stage = Stage::new();
    let ticker = Ticker::new(stage.path("ticks"));
    let words = ticker.words(Manners::Polite);
    let words: Vec<&str> = ["key"].into_iter().chain(words.iter().map(String::as_str)).collect();
    let going = Going::start(exec(&stage.url(), &words));
    let pid = ticker.ticks().await;
    let children = format!("/proc/{0}/task/{0}/children", going.child.id());
    let children = std::fs::read_to_string(children).unwrap();
    let warden = children.split_whitespace().map(|pid| pid.parse().unwrap());
    let warden: u32 = warden.into_iter().find(|child| *child != pid).unwrap();
    crate::support::process::signal(warden, "TERM");
    crate::support::process::signal(warden, "STOP");
    going.signal("TERM");
    assert_eq!(going.end().code, Some(143));
    dead(pid).await;
    // A warden that was stopped finds that it has nothing to watch.
    let _ = command("kill").args(["-s", "CONT", &warden.to_string()]).status();
    dead(warden).await;
}
