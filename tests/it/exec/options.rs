//! What COMMAND is given, and the options that are about neither signals nor codes.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Instant;

use crate::exec::{Going, Ran, Stage, dead};
use crate::support::{PATIENCE, eventually};

#[test]
fn the_flags_of_the_command_are_its_own() {
    let stage = Stage::new();
    for words in [
        &["key", "echo", "-n", "-c", "--", "--help"][..],
        &["key", "--", "echo", "-n", "-c", "--", "--help"],
        &["--", "key", "echo", "-n", "-c", "--", "--help"],
    ] {
        let ran = stage.ran(words);
        assert_eq!((ran.code, &*ran.out), (Some(0), "-c -- --help"), "{words:?}");
    }
    let ran = stage.ran(&["-c", "echo \"$LOCK_KEY\" | tr a-z A-Z", "key"]);
    assert_eq!((ran.code, &*ran.out), (Some(0), "KEY\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_sees_its_lease_which_lasts_as_long_as_the_command() {
    let stage = Stage::new();
    let script = "echo $LOCK_KEY; echo $LOCK_URL; echo $LOCK_FENCING_TOKEN; echo $LOCK_TOKEN; \
                  read LINE";
    let mut exec = stage.exec(&["--owner", "me", "a key/1", "sh", "-c", script]);
    exec.stdin(Stdio::piped());
    let mut going = Going::start(exec);
    assert_eq!(going.line(), "a key/1");
    assert_eq!(going.line(), stage.url());
    let (fencing_token, token) = (going.line(), going.line());
    let seen = stage.service.http().token(&token).get("/locks/a%20key/1").await.json();
    assert_eq!(seen["fencing_token"].to_string(), fencing_token);
    assert_eq!((&seen["mine"], &seen["owner"]), (&true.into(), &"me".into()));
    drop(going.child.stdin.take());
    assert_eq!(going.end().code, Some(1));
    assert_eq!(stage.look("a%20key/1").await["held"], false);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_owner_is_who_runs_what_without_its_arguments() {
    let stage = Stage::new();
    let words = ["owned", "sh", "-c", "echo ready; read LINE", "secret-argument"];
    let mut exec = stage.exec(&words);
    exec.stdin(Stdio::piped()).env("USER", "another");
    let mut going = Going::start(exec);
    assert_eq!(going.line(), "ready");
    let owner = stage.look("owned").await["owner"].as_str().unwrap().to_owned();
    let user = Command::new("id").arg("-un").output().unwrap().stdout;
    let begins = format!("{}@", String::from_utf8(user).unwrap().trim());
    let ends = format!(":{} echo", going.child.id());
    assert!(owner.starts_with(&begins) && owner.ends_with(&ends), "{owner}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_owner_has_no_variable_of_the_string_that_a_shell_runs() {
    let stage = Stage::new();
    for (string, name) in [
        ("PASSWORD='very secret' sh -c 'echo ready; read LINE'", "sh"),
        ("/bin/echo ready; read LINE", "echo"),
    ] {
        let mut exec = stage.exec(&["owned", "-c", string]);
        exec.stdin(Stdio::piped());
        let mut going = Going::start(exec);
        assert_eq!(going.line(), "ready");
        let owner = stage.look("owned").await["owner"].as_str().unwrap().to_owned();
        assert!(owner.ends_with(&format!(":{} {name}", going.child.id())), "{owner}");
        drop(going.child.stdin.take());
        going.end();
    }
}

#[test]
fn standard_input_output_and_error_pass_through() {
    let stage = Stage::new();
    let mut exec = stage.exec(&["streams", "sh", "-c", "cat; echo problem >&2"]);
    exec.stdin(Stdio::piped());
    let mut going = Going::start(exec);
    let sent = "line\n".repeat(20_000);
    let mut input = going.child.stdin.take().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || input.write_all(sent.as_bytes()).unwrap());
        for _ in 0..20_000 {
            assert_eq!(going.line(), "line");
        }
    });
    let ran = going.end();
    assert_eq!(ran, Ran { code: Some(0), out: String::new(), err: "problem\n".to_owned() });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_is_kept_for_its_least_time_after_a_short_command() {
    let stage = Stage::new();
    let began = Instant::now();
    assert_eq!(stage.ran(&["--min-hold", "20s", "short", "true"]).code, Some(0));
    let seen = stage.look("short").await;
    let left = seen["ttl_ms"].as_u64().unwrap();
    let past = u64::try_from(began.elapsed().as_millis()).unwrap();
    assert!((20_000 - past..=20_001).contains(&left), "{left} ms after {past} ms");
    assert_eq!(stage.ran(&["-n", "short", "true"]).code, Some(75));
    // A rest that is shorter than any TTL is waited for.
    let began = Instant::now();
    assert_eq!(stage.ran(&["--min-hold", "150ms", "rest", "true"]).code, Some(0));
    assert!(began.elapsed() >= std::time::Duration::from_millis(150));
    assert_eq!(stage.look("rest").await["held"], false);
    // A time that the service allows nobody is cut.
    let ran = stage.ran(&["--min-hold", "48h", "longest", "true"]);
    let told = "lockkeeper: 'longest' is kept for 86400 s, the longest TTL\n";
    assert_eq!((ran.code, &*ran.err), (Some(0), told));
    assert!(stage.look("longest").await["ttl_ms"].as_u64().unwrap() > 80_000_000);
    // A command that took longer than that gives the key back.
    assert_eq!(stage.ran(&["--min-hold", "50ms", "long", "sleep", "0.1"]).code, Some(0));
    assert_eq!(stage.look("long").await["held"], false);
    // So does one that this host cannot run.
    assert_eq!(stage.ran(&["--min-hold", "4m", "absent", "/no/such/command"]).code, Some(127));
    assert_eq!(stage.look("absent").await["held"], false);
}

#[tokio::test(flavor = "multi_thread")]
async fn processes_of_a_command_that_ended_by_itself_go_on() {
    let stage = Stage::new();
    let ran = stage.ran(&["behind", "sh", "-c", "sleep 60 >/dev/null 2>&1 & echo $!"]);
    let left: u32 = ran.out.trim().parse().unwrap();
    assert!(crate::exec::lives(left));
    assert_eq!(stage.look("behind").await["held"], false);
    crate::support::process::signal(left, "KILL");
    dead(left).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_kept_until_the_last_process_of_the_command_has_ended() {
    let stage = Stage::new();
    let script = "setsid sh -c 'sleep 4' >/dev/null 2>&1 & echo $!; exit 3";
    let ran = stage.ran(&["--children", "-t", "3s", "behind", "sh", "-c", script]);
    assert_eq!((ran.code, &*ran.err), (Some(3), ""));
    assert!(!crate::exec::lives(ran.out.trim().parse().unwrap()));
    assert_eq!(stage.look("behind").await["held"], false);
    // A signal reaches them as well, and then they have their time to end.
    for (manners, flags) in [("trap '' TERM", ["-k", "300ms"]), ("true", ["-k", "10s"])] {
        let script = format!("setsid sh -c \"{manners}; sleep 60\" 2>&1 & echo $!");
        let words = ["--children", "behind", "sh", "-c", &script];
        let mut going = Going::start(stage.exec(&[&flags[..], &words].concat()));
        let left: u32 = going.line().parse().unwrap();
        eventually(PATIENCE, async || {
            let looked = stage.look("behind").await;
            (looked["held"] == true).then_some(())
        })
        .await;
        going.signal("TERM");
        assert!(matches!(going.end().code, Some(0 | 143)), "{manners}");
        assert!(!crate::exec::lives(left), "{manners}");
        assert_eq!(stage.look("behind").await["held"], false);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn orphans_of_a_long_command_are_buried() {
    let stage = Stage::new();
    let script = "i=0; while [ $i -lt 20 ]; do (true &); i=$((i+1)); done; echo $PPID; read LINE";
    let mut exec = stage.exec(&["orphans", "sh", "-c", script]);
    exec.stdin(Stdio::piped());
    let mut going = Going::start(exec);
    let wrapper = going.line();
    let children = format!("/proc/{wrapper}/task/{wrapper}/children");
    // The command and the warden.
    let children = || std::fs::read_to_string(&children).unwrap().split_whitespace().count();
    eventually(PATIENCE, async || (children() == 2).then_some(())).await;
    drop(going.child.stdin.take());
    assert_eq!(going.end().code, Some(1));
}
