//! The verbs one by one, as scripts use them.

use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::exec::proxy::{Mode, Proxy};
use crate::exec::{Going, HOLDER, Ran, Stage};
use crate::support::process::{BINARY, command};
use crate::support::{NOWHERE, PATIENCE, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn a_script_acquires_refreshes_and_releases() {
    let stage = Stage::new();
    let script = r#"
        LOCK_TOKEN=$(lockkeeper acquire -n -t 20s --owner me "a key/1") || exit 1
        export LOCK_TOKEN
        lockkeeper refresh -t 1h "a key/1" || exit 2
        lockkeeper get "a key/1"
        lockkeeper list --prefix "a k"
        lockkeeper list --prefix b
        lockkeeper release "a key/1" || exit 3
        lockkeeper get "a key/1"
        lockkeeper release "a key/1" 2>/dev/null
        echo $?
    "#;
    let script = script.replace("lockkeeper", BINARY);
    let ran = Ran::of(typed(&stage, "sh").args(["-c", &script]).output().unwrap());
    assert_eq!((ran.code, &*ran.err), (Some(0), ""));
    let lines: Vec<Vec<&str>> = ran.out.lines().map(|line| line.split('\t').collect()).collect();
    let [seen, listed, free, lost] = lines.as_slice() else { panic!("{}", ran.out) };
    let [key, "held", left, fencing_token, "0", "me"] = seen[..] else { panic!("{seen:?}") };
    assert_eq!((key, &listed[..2]), ("a key/1", &seen[..2]));
    let left: f64 = left.parse().unwrap();
    assert!((3_580.0..=3_600.0).contains(&left), "{left}");
    assert!(fencing_token.parse::<u64>().is_ok(), "{fencing_token}");
    assert_eq!(free[..], ["a key/1", "free", "-", "-", "0", "-"]);
    assert_eq!(lost[..], ["79"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn units_are_taken_and_shown_and_what_has_no_slots_has_none() {
    let stage = Stage::new();
    let three = ["acquire", "-q", "--slots", "8", "--units", "3", "gpu"];
    assert_eq!(run(&stage, &three).code, Some(0));
    assert_eq!(run(&stage, &three).code, Some(0));
    let seen = run(&stage, &["get", "gpu"]).out;
    assert!(seen.ends_with("\t2 with 6 of 8\n"), "{seen}");
    let held = run(&stage, &["acquire", "-n", "--slots", "8", "--units", "3", "gpu"]);
    assert_eq!(held.code, Some(75));
    assert!(held.err.contains("by 2 with 6 of 8"), "{}", held.err);
    assert_eq!(
        run(&stage, &["acquire", "-n", "--slots", "8", "--units", "2", "gpu"]).code,
        Some(0)
    );
    for (words, told) in [
        (&["--units", "2"][..], "--slots"),
        (&["--shared", "--units", "2"], "--shared"),
        (&["--slots", "2", "--units", "0"], "expected 1 to 1000"),
        (&["--slots", "2", "--units", "3"], "from 1 to the `slots`, 2"),
    ] {
        let refused = run(&stage, &[&["acquire", "-n"], words, &["other"]].concat());
        assert_eq!(refused.code, Some(125), "{words:?}: {}", refused.err);
        assert!(refused.err.contains(told), "{words:?}: {}", refused.err);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_json_is_what_the_service_answers() {
    let stage = Stage::new();
    let json = |arguments: &[&str], token: &str| -> Value {
        let mut verb = typed(&stage, BINARY);
        let ran = Ran::of(verb.args(arguments).env("LOCK_TOKEN", token).output().unwrap());
        assert_eq!((ran.code, &*ran.err), (Some(0), ""), "{arguments:?}");
        assert_eq!(ran.out.lines().count(), 1, "{}", ran.out);
        serde_json::from_str(&ran.out).unwrap()
    };
    let granted = json(&["acquire", "--json", "key"], "");
    let token = granted["token"].as_str().unwrap().to_owned();
    // A slow disk shortens a new lease.
    assert!((20_000..=30_000).contains(&granted["ttl_ms"].as_u64().unwrap()), "{granted}");
    let refreshed = json(&["refresh", "--json", "-t", "40s", "key"], &token);
    assert_eq!(refreshed["fencing_token"], granted["fencing_token"]);
    assert_eq!(json(&["get", "--json", "key"], "")["held"], true);
    assert_eq!(json(&["list", "--json"], "")["key"], "key");
    let number = granted["fencing_token"].to_string();
    let another = run(&stage, &["force-release", "--fencing-token", "1", "key"]);
    assert_eq!(another.code, Some(79), "{}", another.err);
    let taken = json(&["force-release", "--json", "--fencing-token", &number, "key"], "");
    assert_eq!(taken["fencing_token"], granted["fencing_token"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_comes_from_a_file_or_from_standard_input() {
    let stage = Stage::new();
    let file = stage.path("token");
    std::fs::write(&file, "a-token-in-a-file\n").unwrap();
    let ran = run(&stage, &["acquire", "--token-file", &file, "key"]);
    assert_eq!((ran.code, &*ran.out), (Some(0), "a-token-in-a-file\n"));
    // Once more is the same lease.
    assert_eq!(run(&stage, &["acquire", "-n", "--token-file", &file, "key"]).code, Some(0));
    assert_eq!(run(&stage, &["acquire", "-q", "-n", "key"]), silent(75));
    assert_eq!(run(&stage, &["acquire", "-n", "-E", "0", "key"]), silent(0));
    assert_eq!(run(&stage, &["refresh", "--token-file", &file, "key"]), silent(0));
    let mut release = typed(&stage, BINARY);
    release.args(["release", "--token-file", "-", "key"]).stdin(Stdio::piped());
    let mut release = Going::start(release);
    release.child.stdin.take().unwrap().write_all(b"a-token-in-a-file").unwrap();
    assert_eq!(release.end(), silent(0));
    assert_eq!(stage.look("key").await["held"], false);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_of_acquire_names_its_user_its_host_and_the_process_that_called() {
    let stage = Stage::new();
    let script = format!("{BINARY} acquire key; echo $$; {BINARY} acquire --owner '' other");
    let ran = Ran::of(typed(&stage, "sh").args(["-c", &script]).output().unwrap());
    let pid = ran.out.lines().nth(1).unwrap();
    let owner = stage.look("key").await["owner"].as_str().unwrap().to_owned();
    assert!(owner.ends_with(&format!(":{pid} sh")), "{owner}");
    let user = Ran::of(command("id").arg("-un").output().unwrap()).out;
    assert!(owner.starts_with(&format!("{}@", user.trim())), "{owner}");
    assert!(stage.look("other").await["held"] == true);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forced_release_says_whose_lease_it_ended_and_who_is_next() {
    let stage = Stage::new();
    let holder = stage.service.http().token(HOLDER);
    assert_eq!(holder.post("/locks/key?owner=web-1", "").await.status, 201);
    let number = stage.look("key").await["fencing_token"].to_string();
    let mut acquire = typed(&stage, BINARY);
    acquire.args(["acquire", "-q", "--owner", "web-2", "key"]);
    let next = Going::start(acquire);
    stage.waited_for("key", 1).await;
    let told = |next: &str, number: &str| {
        format!("ended the lease of {next} on 'key', fencing token {number}; ")
    };
    let ran = run(&stage, &["force-release", "key"]);
    let expected = format!("{}next of 1 in line: web-2\n", told("web-1", &number));
    assert_eq!((ran.code, ran.out, ran.err), (Some(0), expected, String::new()));
    assert_eq!(next.end().code, Some(0));
    let number = stage.look("key").await["fencing_token"].to_string();
    let ran = run(&stage, &["force-release", "key"]);
    assert_eq!(ran.out, format!("{}nobody waits\n", told("web-2", &number)));
    for owner in ["a", "b"] {
        let shared = format!("/locks/key?shared=true&owner={owner}");
        assert_eq!(stage.service.http().post(&shared, "").await.status, 201);
    }
    let ran = run(&stage, &["force-release", "key"]);
    assert_eq!(ran.out, "ended 2 leases on 'key'; nobody waits\n");
    assert_eq!(stage.service.http().post("/locks/key", "").await.status, 201);
    assert_eq!(run(&stage, &["force-release", "-q", "key"]), silent(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_file_that_is_not_there_gets_a_new_token() {
    let stage = Stage::new();
    let [file, other] = ["one", "two"].map(|name| stage.path(name));
    let ran = run(&stage, &["acquire", "--token-file", &file, "key"]);
    assert_eq!((ran.code, &*ran.err), (Some(0), ""));
    assert_eq!(std::fs::read_to_string(&file).unwrap(), ran.out);
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    // A file that is there keeps its token, and each new file gets another one.
    assert_eq!(run(&stage, &["acquire", "-n", "--token-file", &file, "key"]).out, ran.out);
    let ran = run(&stage, &["acquire", "-n", "--token-file", &other, "key"]);
    assert_eq!((ran.code, &*ran.out), (Some(75), ""));
    assert_eq!(run(&stage, &["release", "--token-file", &file, "key"]), silent(0));
    assert_eq!(stage.look("key").await["held"], false);
    let ran = run(&stage, &["acquire", "--token-file", "/no/such/directory/token", "key"]);
    assert_eq!(ran.code, Some(125));
    assert!(ran.err.contains("cannot write to /no/such/directory/token"), "{}", ran.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn no_proxy_of_the_environment_is_used() {
    let stage = Stage::new();
    let mut exec = stage.exec(&["key", "true"]);
    for name in ["http_proxy", "HTTP_PROXY", "https_proxy", "HTTPS_PROXY", "ALL_PROXY"] {
        exec.env(name, format!("http://{NOWHERE}"));
    }
    assert_eq!(Ran::of(exec.output().unwrap()), silent(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fencing_token_keeps_a_late_verb_from_a_later_lease() {
    let stage = Stage::new();
    stage.hold("key").await;
    let first = stage.look("key").await["fencing_token"].to_string();
    stage.let_go("key").await;
    stage.hold("key").await;
    let second = stage.look("key").await["fencing_token"].to_string();
    let verb = |arguments: &[&str]| {
        let mut verb = typed(&stage, BINARY);
        verb.args(arguments).args(["key"]).env("LOCK_TOKEN", HOLDER);
        Ran::of(verb.output().unwrap()).code
    };
    assert_eq!(verb(&["release", "--fencing-token", &first]), Some(79));
    assert_eq!(verb(&["refresh", "--fencing-token", &first]), Some(79));
    assert_eq!(stage.look("key").await["held"], true);
    assert_eq!(verb(&["refresh", "--fencing-token", &second]), Some(0));
    assert_eq!(verb(&["release", "--fencing-token", &second]), Some(0));
    assert_eq!(stage.look("key").await["held"], false);
    assert_eq!(verb(&["release", "--fencing-token", "0"]), Some(125));
}

#[tokio::test(flavor = "multi_thread")]
async fn exec_names_its_lease_by_the_fencing_token() {
    let stage = Stage::new();
    let proxy = Proxy::before(stage.service.http().address).await;
    let script = ["--min-hold", "20s", "key", "sh", "-c", "echo $LOCK_FENCING_TOKEN"];
    let ran = Ran::of(crate::exec::exec(&proxy.url(), &script).output().unwrap());
    assert_eq!(
        Ran::of(crate::exec::exec(&proxy.url(), &["other", "true"]).output().unwrap()).code,
        Some(0)
    );
    let requests = proxy.requests();
    let [_, refresh, _, release] = &requests[..] else { panic!("{requests:?}") };
    assert!(refresh.contains(&format!("\"fencing_token\":{}", ran.out.trim())), "{refresh}");
    assert!(release.starts_with("DELETE /locks/other?fencing_token="), "{release}");
}

#[test]
fn a_verb_that_fails_has_the_exit_codes_of_exec() {
    let stage = Stage::new();
    let nowhere = format!("http://{NOWHERE}");
    let long = stage.path("long");
    std::fs::write(&long, [b' '; 5_000]).unwrap();
    for (arguments, code, told) in [
        (&["refresh", "key"][..], 125, "no lease token: set LOCK_TOKEN or --token-file"),
        (&["release", "--token-file", "/no/such/file", "key"], 125, "no token in /no/such/file"),
        (&["acquire", "--token-file", &long, "key"], 125, "it has more than 4096 bytes"),
        (&["acquire", "--token-file", "/dev/full", "key"], 125, "it has more than 4096 bytes"),
        (&["get", "-u", "http://a:99999", "key"], 125, "write it like http://host:8080"),
        (&["acquire", "-t", "1ms", "key"], 125, "a TTL has to be 100ms to 24h"),
        (&["acquire", "a//b"], 125, "an empty segment"),
        (&["get"], 125, "Usage: lockkeeper get [OPTIONS] <KEY>\n"),
        (&["acquire", "key", "--bogus"], 125, "Usage: lockkeeper acquire [OPTIONS] <KEY>\n"),
        (&["exec"], 125, "Usage: lockkeeper exec [OPTIONS] KEY [--] COMMAND [ARG]...\n"),
        (&["force-release", "key"], 79, "the key is not held"),
        (&["get", "-u", &nowhere, "key"], 69, "no answer from http://127.0.0.1:"),
        (&["list", "-q", "-u", &nowhere], 69, ""),
    ] {
        let ran = run(&stage, arguments);
        assert_eq!(ran.code, Some(code), "{arguments:?}: {ran:?}");
        assert!(ran.err.contains(told), "{arguments:?}: {}", ran.err);
        assert_eq!(ran.out, "");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_look_whose_reader_is_gone_ends_without_a_word() {
    let stage = Stage::new();
    stage.hold("key").await;
    for arguments in [&["list"][..], &["list", "--json"], &["get", "key"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let ran = typed(&stage, BINARY).args(arguments).stdout(writer).output().unwrap();
        let ran = Ran::of(ran);
        assert_eq!((ran.code, &*ran.err), (Some(141), ""), "{arguments:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_while_acquire_waits_gives_the_place_up() {
    let stage = Stage::new();
    stage.hold("key").await;
    let mut acquire = typed(&stage, BINARY);
    acquire.args(["acquire", "key"]);
    let going = Going::start(acquire);
    stage.waited_for("key", 1).await;
    going.signal("TERM");
    assert_eq!(going.end().code, Some(143));
    assert_eq!(stage.look("key").await["waiters"], 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_whose_answer_is_lost_is_no_loss() {
    let stage = Stage::new();
    let proxy = Proxy::before(stage.service.http().address).await;
    stage.hold("key").await;
    proxy.set(Mode::LoseAnswer);
    let mut release = typed(&stage, BINARY);
    release.args(["release", "-u", &proxy.url(), "key"]).env("LOCK_TOKEN", HOLDER);
    let going = Going::start(release);
    eventually(PATIENCE, async || (stage.look("key").await["held"] == false).then_some(())).await;
    proxy.set(Mode::Pass);
    assert_eq!(going.end(), silent(0));
}

#[test]
fn the_list_has_more_than_a_page() {
    let stage = Stage::new();
    let keys = format!("{}/locks/key-[0-1000]?ttl=1h", stage.url());
    let curl = ["-sSf", "-o", "/dev/null", "-X", "POST", &keys];
    let done = command("curl").args(curl).output().unwrap();
    assert!(done.status.success(), "{done:?}");
    let ran = run(&stage, &["list"]);
    let keys: std::collections::BTreeSet<_> =
        ran.out.lines().map(|line| line.split('\t').next().unwrap()).collect();
    assert_eq!((ran.out.lines().count(), keys.len()), (1_001, 1_001));
}

#[test]
fn completions_and_the_manual_know_every_command() {
    let stage = Stage::new();
    for arguments in
        [&["completions", "bash"][..], &["completions", "zsh"], &["completions", "fish"], &["man"]]
    {
        let ran = run(&stage, arguments);
        assert_eq!((ran.code, &*ran.err), (Some(0), ""));
        for word in ["exec", "acquire", "refresh", "release", "get", "list", "serve"] {
            assert!(ran.out.contains(word), "{arguments:?} does not know {word}");
        }
        for option in ["min-hold", "token-file", "preserve-status", "permission"] {
            let shown = ran.out.replace("\\-", "-");
            assert!(shown.contains(option), "{arguments:?} does not know --{option}");
        }
        // Internal processes, and options that are only refused.
        for word in ["warden", "no-fork", "no\\-fork"] {
            assert!(!ran.out.contains(word), "{arguments:?} shows {word}");
        }
    }
    let mut shell = typed(&stage, "bash");
    let script = format!("source <({BINARY} completions bash) && complete -p lockkeeper");
    assert!(shell.args(["-c", &script]).output().unwrap().status.success());
}

fn typed(stage: &Stage, program: &str) -> Command {
    let mut typed = command(program);
    typed.env("LOCKKEEPER_URL", stage.url()).env_remove("LOCK_TOKEN");
    typed
}

fn run(stage: &Stage, arguments: &[&str]) -> Ran {
    Ran::of(typed(stage, BINARY).args(arguments).output().unwrap())
}

fn silent(code: i32) -> Ran {
    Ran { code: Some(code), out: String::new(), err: String::new() }
}

#[tokio::test(flavor = "multi_thread")]
async fn acquire_takes_several_keys_with_their_shares_or_none() {
    let stage = Stage::new();
    let words = ["acquire", "-n", "--also", "lib,shared", "--also", "gpu,slots=8", "--json", "key"];
    let ran = run(&stage, &words);
    assert_eq!((ran.code, &*ran.err), (Some(0), ""));
    let granted: Value = serde_json::from_str(&ran.out).unwrap();
    let shares: Vec<_> = granted["leases"].as_array().unwrap().iter().collect();
    let shares = shares.iter().map(|one| (one["key"].as_str().unwrap(), one["slots"].as_u64()));
    let expected = vec![("key", None), ("lib", Some(1_000)), ("gpu", Some(8))];
    assert_eq!(shares.collect::<Vec<_>>(), expected);
    let refused = run(&stage, &["acquire", "-n", "--also", "key", "free"]);
    assert_eq!((refused.code, &*refused.out), (Some(75), ""));
    assert!(refused.err.contains("'key' is held"), "the one that is held: {}", refused.err);
    assert_eq!(stage.look("free").await["held"], false);
    let ran = run(&stage, &["acquire", "-n", "--also", "one", "two"]);
    let mut release = typed(&stage, BINARY);
    let token = ran.out.trim();
    let released = release.args(["release", "one"]).env("LOCK_TOKEN", token).output().unwrap();
    assert_eq!(Ran::of(released), silent(0), "one token for both");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_signal_while_acquire_waits_for_several_keys_leaves_none() {
    let stage = Stage::new();
    stage.hold("b").await;
    let mut command = typed(&stage, BINARY);
    command.args(["acquire", "--also", "b", "a"]);
    let going = Going::start(command);
    stage.waited_for("b", 1).await;
    assert_eq!(stage.look("a").await["held"], true);
    going.signal("TERM");
    assert_eq!(going.end().code, Some(143));
    eventually(PATIENCE, async || (stage.look("a").await["held"] == false).then_some(())).await;
    assert_eq!(stage.look("b").await["waiters"], 0);
}
