//! `--also`: a lease of each of several keys.

use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::exec::proxy::{Mode, Proxy};
use crate::exec::{Going, Stage, exec};
use crate::support::{PATIENCE, eventually};

/// The words for both keys, not in their order.
fn both<'a>(options: &[&'a str], command: &'a str) -> Vec<&'a str> {
    let mut words = options.to_vec();
    words.extend(["--also", "a key", "b", "sh", "-c", command]);
    words
}

/// Waits for the second key, which somebody holds; COMMAND tells that it ran.
async fn waiting(stage: &Stage, options: &[&str]) -> Going {
    stage.hold(B).await;
    let going = Going::start(stage.exec(&both(options, "echo ran")));
    stage.waited_for(B, 1).await;
    going
}

/// Ends the lease of a key by force.
async fn force(stage: &Stage, key: &str) {
    assert_eq!(stage.service.http().delete(&format!("/admin/locks/{key}")).await.status, 200);
}

const A: &str = "a%20key";
const B: &str = "b";

/// Nobody holds a key or waits for it.
async fn free(stage: &Stage) {
    for key in [A, B] {
        let found = stage.look(key).await;
        assert!(found["held"] == false && found["waiters"] == 0, "{key}: {found}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_has_all_its_keys_by_one_token_and_a_number_of_each() {
    let stage = Stage::new();
    let told =
        "echo \"$LOCK_KEY $LOCK_FENCING_TOKEN $LOCK_TOKEN\"; echo \"$LOCK_FENCING_TOKENS\"; read X";
    let mut command = stage.exec(&both(&["--owner", "me", "--also", B], told));
    command.stdin(Stdio::piped());
    let mut going = Going::start(command);
    let first = going.line();
    let [key, number, token] = first.split(' ').collect::<Vec<_>>()[..] else { panic!("{first}") };
    let (a, b) = (stage.look(A).await, stage.look(B).await);
    assert_eq!((key, number), (B, b["fencing_token"].to_string().as_str()), "KEY is the named one");
    assert_eq!((&a["owner"], &b["owner"]), (&"me".into(), &"me".into()));
    assert_eq!(going.line(), format!("{} a key", a["fencing_token"]));
    assert_eq!(going.line(), format!("{} b", b["fencing_token"]));
    for key in [A, B] {
        let mine = stage.service.http().token(token).get(&format!("/locks/{key}")).await.json();
        assert_eq!(mine["mine"], true, "{mine}");
    }
    drop(going.child.stdin.take());
    going.end();
    free(&stage).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_key_that_is_held_is_enough_to_be_refused_and_nothing_stays() {
    let stage = Stage::new();
    for held in [A, B] {
        stage.hold(held).await;
        for options in [&["-n"][..], &["-w", "100ms"]] {
            let ran = stage.ran(&both(options, "echo ran"));
            assert_eq!((ran.code, ran.out.as_str()), (Some(75), ""), "{ran:?}");
        }
        stage.let_go(held).await;
        free(&stage).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_first_lease_is_kept_for_as_long_as_the_second_is_waited_for() {
    let stage = Stage::new();
    stage.hold(B).await;
    let mut going = Going::start(stage.exec(&both(&["-t", "1s"], "echo $LOCK_FENCING_TOKENS")));
    let held = async || stage.look(A).await["held_ms"].as_u64().filter(|ms| *ms > 2_000);
    eventually(PATIENCE, held).await;
    let number = stage.look(A).await["fencing_token"].to_string();
    stage.let_go(B).await;
    assert!(going.line().starts_with(&format!("{number} a key")));
    assert_eq!(going.end().code, Some(0));
    free(&stage).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_is_lost_ends_the_wait_for_the_next() {
    let stage = Stage::new();
    let mut going = waiting(&stage, &["-t", "1s"]).await;
    force(&stage, A).await;
    let said = going.line();
    let ran = going.end();
    assert_eq!((ran.code, said.as_str()), (Some(79), ""), "{ran:?}");
    stage.let_go(B).await;
    free(&stage).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_is_not_started_without_a_lease_that_was_lost_since_its_last_refresh() {
    let stage = Stage::new();
    // The next refresh is in 20 seconds.
    let mut going = waiting(&stage, &["-t", "1m"]).await;
    force(&stage, A).await;
    stage.hold(A).await;
    stage.let_go(B).await;
    let said = going.line();
    let ran = going.end();
    assert_eq!((ran.code, said.as_str()), (Some(79), ""), "{ran:?}");
    stage.let_go(A).await;
    free(&stage).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_dies_during_the_wait_for_the_second_is_unreachable() {
    for (if_down, ends) in [("fail", (Some(69), "")), ("run", (Some(0), "ran"))] {
        let stage = Stage::new();
        let mut going = waiting(&stage, &["-t", "1s", "--if-down", if_down]).await;
        stage.service.signal("KILL");
        let said = going.line();
        let ran = going.end();
        assert_eq!((ran.code, said.as_str()), ends, "{ran:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_ends_during_the_wait_for_the_second_is_no_service_that_is_down() {
    let directory = tempfile::tempdir().unwrap();
    let settings = directory.path().join("lockkeeper.toml");
    std::fs::write(&settings, "[[prefixes]]\nprefix = \"a\"\nmax_hold = \"1s\"\n").unwrap();
    let stage = Stage::with(&[("LOCKKEEPER_CONFIG", &settings.display().to_string())]);
    let mut going = waiting(&stage, &["-t", "1s", "--if-down", "run"]).await;
    let said = going.line();
    let ran = going.end();
    assert_eq!((ran.code, said.as_str()), (Some(79), ""), "{ran:?}");
    stage.let_go(B).await;
    free(&stage).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_answers_no_refresh_but_the_release_is_not_down() {
    let stage = Stage::new();
    let proxy = Proxy::before(stage.service.http().address).await;
    proxy.set(Mode::DeafTo("PUT"));
    stage.hold(B).await;
    let words = both(&["-t", "1s", "--if-down", "run"], "echo ran");
    let mut going = Going::start(exec(&proxy.url(), &words));
    let said = going.line();
    let ran = going.end();
    assert_eq!((ran.code, said.as_str()), (Some(79), ""), "{ran:?}");
    stage.let_go(B).await;
    free(&stage).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_during_the_wait_leaves_no_lease_and_no_place_in_line() {
    let stage = Stage::new();
    let mut going = waiting(&stage, &[]).await;
    assert_eq!(stage.look(A).await["held"], true);
    going.signal("TERM");
    assert_eq!(going.line(), "");
    assert_eq!(going.end().code, Some(143));
    stage.let_go(B).await;
    free(&stage).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_loss_of_one_lease_ends_the_command_and_releases_the_other() {
    let stage = Stage::new();
    for lost in [A, B] {
        let mut going = Going::start(stage.exec(&both(&["-t", "3s"], "echo ready; exec sleep 60")));
        assert_eq!(going.line(), "ready");
        force(&stage, lost).await;
        let ran = going.end();
        assert_eq!(ran.code, Some(79), "{ran:?}");
        assert_eq!(ran.err.lines().count(), 1, "{}", ran.err);
        free(&stage).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_goes_on_without_one_lease_keeps_the_other() {
    let stage = Stage::new();
    let options = ["-t", "1s", "-k", "200ms", "--on-lost", "warn"];
    let mut command = stage.exec(&both(&options, "echo ready; read X; exit 5"));
    command.stdin(Stdio::piped());
    let mut going = Going::start(command);
    assert_eq!(going.line(), "ready");
    force(&stage, A).await;
    let mut told = String::new();
    BufReader::new(going.child.stderr.take().unwrap()).read_line(&mut told).unwrap();
    assert!(told.contains("COMMAND runs without its lease"), "{told}");
    let number = stage.look(B).await["fencing_token"].clone();
    let kept = async || stage.look(B).await["held_ms"].as_u64().filter(|ms| *ms > 2_500);
    eventually(PATIENCE, kept).await;
    assert_eq!(stage.look(B).await["fencing_token"], number);
    drop(going.child.stdin.take());
    assert_eq!(going.end().code, Some(5));
    free(&stage).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_that_name_their_keys_in_every_order_all_come_to_an_end() {
    let stage = Stage::new();
    let place = stage.path("inside");
    let inside = format!("mkdir {place} && rmdir {place}");
    let keys = ["x", "y", "z"];
    let all: Vec<_> = (0..12)
        .map(|n| {
            let (one, two) = (keys[n % 3], keys[(n + 1 + n / 6) % 3]);
            let words = ["-w", "60s", "--also", one, "--also", "both", two, "-c", &inside];
            Going::start(stage.exec(&words))
        })
        .collect();
    for going in all {
        let ran = going.end();
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
}

#[test]
fn all_keys_and_any_of_them_exclude_each_other() {
    let stage = Stage::new();
    let ran = stage.ran(&["--also", "a", "--any-of", "b", "c", "true"]);
    assert_eq!(ran.code, Some(125), "{ran:?}");
    assert!(ran.err.contains("--any-of"), "{}", ran.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn each_key_has_the_share_behind_it_or_that_of_key() {
    let stage = Stage::new();
    for (options, shares) in [
        (&["--also", "lib,shared", "--also", "gpu,slots=8"][..], [None, Some(1_000), Some(8)]),
        (
            &["--slots", "3", "--also", "lib,shared", "--also", "gpu"],
            [Some(3), Some(1_000), Some(3)],
        ),
        (
            &["--shared", "--also", "lib,slots=1", "--also", "gpu,slots=2,units=2"],
            [Some(1_000), None, Some(2)],
        ),
    ] {
        let words = [options, &["key", "sh", "-c", "echo ready; read X; true"]].concat();
        let mut command = stage.exec(&words);
        command.stdin(Stdio::piped());
        let mut going = Going::start(command);
        assert_eq!(going.line(), "ready");
        for (key, slots) in ["key", "lib", "gpu"].into_iter().zip(shares) {
            let found = stage.look(key).await;
            assert_eq!((&found["held"], found["slots"].as_u64()), (&true.into(), slots), "{key}");
        }
        drop(going.child.stdin.take());
        assert_eq!(going.end().code, Some(0));
    }
    let ran = stage.ran(&["--also", "order:7", "key", "sh", "-c", "echo \"$LOCK_FENCING_TOKENS\""]);
    assert!(ran.out.trim_end().ends_with(" order:7"), "{ran:?}");
    let ran = stage.ran(&["--also", "key,shared", "key", "true"]);
    assert_eq!(ran.code, Some(125), "{ran:?}");
    assert!(ran.err.contains("named twice, with two shares"), "{}", ran.err);
    let ran = stage.ran(&["--also", "b,shared,slots=3", "key", "true"]);
    assert_eq!(ran.code, Some(125), "{ran:?}");
    assert!(ran.err.contains("a share is `shared`, or `slots=N`"), "{}", ran.err);
    let ran = stage.ran(&["--also", "b,shared,slots=3,", "key", "true"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
}
