//! Exit codes.

use std::io::{BufRead, BufReader};
use std::path::Path;

use crate::api::api_keys;
use crate::exec::proxy::{Mode, Proxy};
use crate::exec::{Going, HOLDER, Ran, Stage, exec};
use crate::support::NOWHERE;
use crate::support::process::{BINARY, command};

const SILENT: &str = "";

/// What gateways say.
const RATE_PAGE: &str = "HTTP/1.1 429 Too Many Requests\r\nConnection: close\r\n\r\n<html></html>";
const RATE_LIMITED: &str = "HTTP/1.1 429 Too Many Requests\r\nConnection: close\r\n\r\n\
                            {\"code\":\"quota_exceeded\",\"detail\":\"slow down\"}";

#[tokio::test(flavor = "multi_thread")]
async fn the_exit_code_is_that_of_the_command_and_the_key_is_free_after_it() {
    let stage = Stage::new();
    for (script, code) in [("exit 0", 0), ("exit 7", 7), ("kill -KILL $$", 137), ("kill $$", 143)] {
        let ran = stage.ran(&["-n", "code", "sh", "-c", script]);
        assert_eq!(ran, ends(code, SILENT), "{script}");
        assert_eq!(stage.look("code").await["held"], false);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_that_is_not_there_or_cannot_be_executed_has_the_codes_of_a_shell() {
    let stage = Stage::new();
    let ran = stage.ran(&["absent", "no-such-command"]);
    assert_eq!(ran.code, Some(127));
    assert!(ran.err.starts_with("lockkeeper: cannot execute no-such-command: "), "{}", ran.err);
    let ran = stage.ran(&["absent", "/etc/passwd"]);
    assert_eq!(ran.code, Some(126));
    assert!(ran.err.starts_with("lockkeeper: cannot execute /etc/passwd: "), "{}", ran.err);
    assert_eq!(stage.look("absent").await["held"], false);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_held_key_is_75_or_what_one_asks_for_and_the_holder_is_named_unless_that_is_no_failure() {
    let stage = Stage::new();
    let holder = stage.service.http().token(HOLDER);
    assert_eq!(holder.post("/locks/busy?owner=web-1", "").await.status, 201);
    let marker = stage.path("started");
    let run = |flags: &[&str]| stage.ran(&[flags, &["busy", "touch", &marker]].concat());
    for (flags, code) in [
        (&["-n"][..], 75),
        (&["-w", "200ms"], 75),
        (&["--wait", "200ms", "--conflict-exit-code", "9"], 9),
        (&["-n", "-v", "-E", "0"], 0),
    ] {
        let ran = run(flags);
        assert_eq!(ran.code, Some(code), "{flags:?}: {ran:?}");
        assert!(ran.err.starts_with("lockkeeper: 'busy' is held for "), "{flags:?}: {ran:?}");
        assert!(ran.err.ends_with("s left, by web-1\n"), "{flags:?}: {ran:?}");
        assert_eq!(ran.err.lines().count(), 1, "{flags:?}: {ran:?}");
    }
    for (flags, code) in [(&["-n", "-E", "0"][..], 0), (&["-q", "-n"], 75)] {
        assert_eq!(run(flags), ends(code, SILENT), "{flags:?}");
    }
    assert!(!Path::new(&marker).exists());
}

#[test]
fn a_service_that_does_not_answer_is_69_unless_the_command_is_to_run_anyway() {
    let url = format!("http://{NOWHERE}");
    let failing = Going::start(exec(&url, &["-n", "key", "true"]));
    let mut running = exec(&url, &["-n", "--if-down", "run", "key", "sh", "-c"]);
    // Those of an outer lease are not its own.
    running.arg("echo ${LOCK_KEY-} ${LOCK_TOKEN-} ${LOCK_FENCING_TOKEN-} ${LOCK_URL-}; exit 3");
    running.envs([("LOCK_TOKEN", "outer"), ("LOCK_KEY", "outer"), ("LOCK_URL", "outer")]);
    let mut running = Going::start(running);
    assert_eq!(running.line(), "");
    let ran = running.end();
    assert_eq!(ran.code, Some(3));
    assert!(ran.err.contains("COMMAND runs without a lease"), "{}", ran.err);
    let ran = failing.end();
    assert_eq!(ran.code, Some(69));
    assert!(ran.err.contains("no answer from http://127.0.0.1:"), "{}", ran.err);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_service_that_answers_no_acquire_but_the_release_is_not_down() {
    let stage = Stage::new();
    let proxy = Proxy::before(stage.service.http().address).await;
    proxy.set(Mode::DeafTo("POST"));
    let words = ["-n", "--if-down", "run", "key", "echo", "ran"];
    let ran = Going::start(exec(&proxy.url(), &words)).end();
    assert_eq!((ran.code, ran.out.as_str()), (Some(69), ""), "{ran:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_api_key_without_room_is_125_and_no_service_that_does_not_answer() {
    let directory = tempfile::tempdir().unwrap();
    let settings = directory.path().join("lockkeeper.toml");
    let everything = [("secret", r#"[""]"#, r#"["acquire"]"#)];
    std::fs::write(&settings, format!("[quotas]\nleases = 1\n{}", api_keys(&everything))).unwrap();
    let stage = Stage::with(&[("LOCKKEEPER_CONFIG", &settings.display().to_string())]);
    let http = stage.service.http().with("Authorization", "Bearer secret").token(HOLDER);
    assert_eq!(http.post("/locks/mine?ttl=1h", "").await.status, 201);
    let run = |flags: &[&str]| {
        let words = [flags, &["--if-down", "run", "other", "echo", "started"]].concat();
        let mut exec = stage.exec(&words);
        exec.env("LOCKKEEPER_API_KEY", "secret");
        Going::start(exec)
    };
    for flags in [&["-n"][..], &["-w", "500ms"]] {
        let ran = run(flags).end();
        assert_eq!(ran.code, Some(125), "{flags:?}: {ran:?}");
        assert!(!ran.out.contains("started"), "{flags:?}: {ran:?}");
        assert!(ran.err.contains("has reached its limit of 1 leases"), "{}", ran.err);
    }
    // Room that comes while it waits is used.
    let mut waiting = run(&["-v", "-w", "1m"]);
    let mut said = BufReader::new(waiting.child.stderr.take().unwrap()).lines();
    assert!(said.any(|line| line.unwrap().contains("has reached its limit of 1 leases")));
    assert_eq!(http.delete("/locks/mine").await.status, 204);
    assert_eq!(waiting.line(), "started");
    assert!(waiting.child.wait().unwrap().success());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gateway_that_limits_the_rate_is_asked_again_and_is_no_quota_of_the_service() {
    let stage = Stage::new();
    let proxy = Proxy::before(stage.service.http().address).await;
    let run = |words: &[&str]| Ran::of(exec(&proxy.url(), words).output().unwrap());
    for answer in [RATE_PAGE, RATE_LIMITED] {
        let [limited, pass] = [Mode::Answer(answer), Mode::Pass];
        // The acquire, and the release.
        proxy.plan(&[limited, limited, pass, limited, pass]);
        let ran = run(&["-n", "key", "echo", "ran"]);
        assert_eq!((ran.code, &*ran.out, &*ran.err), (Some(0), "ran\n", ""));
        assert_eq!(stage.look("key").await["held"], false);
        proxy.set(limited);
        let ran = run(&["-n", "key", "echo", "ran"]);
        let told = "lockkeeper: 'key': the answer is 429 and not from lockkeeper\n";
        assert_eq!((ran.code, &*ran.out, &*ran.err), (Some(69), "", told));
        proxy.set(pass);
    }
}

#[test]
fn wrong_usage_is_125_and_says_what_is_wrong() {
    let url = format!("http://{NOWHERE}");
    for (arguments, told) in [
        (&[][..], "Usage: lockkeeper exec"),
        (&["key"], "no COMMAND after the key"),
        (&["key", "--"], "no COMMAND after the key"),
        (&["-c", "true", "key", "true"], "not both"),
        (&["a//b", "true"], "the key has an empty segment"),
        (&["-w", "soon", "key", "true"], "expected a number and ms, s, m, h or d"),
        (&["-n", "-w", "5", "key", "true"], "cannot be used with"),
        (&["--no-such-flag", "key", "true"], "--no-such-flag"),
        (&["-s", "NONE", "key", "true"], "expected the name or number of a signal"),
        (&["-t", "8", "-k", "5", "key", "true"], "a TTL of 8 s is too short: COMMAND may take 5 s"),
        (&["-t", "0.3", "key", "true"], "a TTL of 0.3 s is too short: use 0.4 s at least"),
        (&["-u", "ftp://a", "key", "true"], "use http:// or https://"),
    ] {
        let ran = Ran::of(exec(&url, arguments).output().unwrap());
        assert_eq!(ran.code, Some(125), "{arguments:?}: {ran:?}");
        assert!(ran.err.contains(told), "{arguments:?}: {}", ran.err);
    }
}

#[test]
fn a_refusal_by_the_service_is_125_and_an_api_key_comes_from_the_environment() {
    let digest = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"; // "secret"
    let directory = tempfile::tempdir().unwrap();
    let settings = directory.path().join("lockkeeper.toml");
    let keys = "[[api_keys]]\nname = \"cron\"\nsha256 = \"{}\"\nprefixes = [\"\"]\n\
                permissions = [\"acquire\"]\n";
    std::fs::write(&settings, keys.replace("{}", digest)).unwrap();
    let stage = Stage::with(&[("LOCKKEEPER_CONFIG", &settings.display().to_string())]);
    let ran = stage.ran(&["key", "true"]);
    assert_eq!(
        ran,
        ends(
            125,
            "lockkeeper: 'key': the service asks for an API key: set LOCKKEEPER_API_KEY, or name a file by \
                         --api-key-file\n"
        )
    );
    let known = stage.exec(&["key", "true"]).env("LOCKKEEPER_API_KEY", "secret").output().unwrap();
    assert_eq!(Ran::of(known), ends(0, SILENT));
    // Or from a file, which ends with a line break where an editor has written it.
    let [file, empty] = ["secret", "empty"].map(|name| directory.path().join(name));
    std::fs::write(&file, "secret\n").unwrap();
    std::fs::write(&empty, "\n").unwrap();
    let named = |file: &Path| {
        let mut exec = stage.exec(&["key", "true"]);
        Ran::of(exec.env("LOCKKEEPER_API_KEY_FILE", file).output().unwrap())
    };
    assert_eq!(named(&file), ends(0, SILENT));
    assert!(named(&empty).err.contains("has no API key"));
    std::fs::write(&empty, "secret\nother\n").unwrap();
    let told = "lockkeeper: the API key has a line break: set LOCKKEEPER_API_KEY, or the file of \
                --api-key-file, to one line\n";
    assert_eq!(named(&empty), ends(125, told));
    assert!(named(Path::new("/dev/zero")).err.contains("it has more than 4096 bytes"));
    assert!(named(Path::new("/no/such/file")).err.contains("the API key in /no/such/file cannot"));
    let ran =
        stage.exec(&["-t", "48h", "key", "true"]).env("LOCKKEEPER_API_KEY", "secret").output();
    let ran = Ran::of(ran.unwrap());
    assert_eq!(ran.code, Some(125));
    assert_eq!(ran.err, "lockkeeper: 'key': a TTL has to be 100ms to 24h\n");
}

#[test]
fn an_empty_variable_is_an_absent_one() {
    let stage = Stage::new();
    let names = ["API_KEY_FILE", "API_KEY", "CA", "CERT", "CERT_KEY", "TOKEN_PREFIX", "PLAIN_HTTP"];
    let mut exec = stage.exec(&["key", "true"]);
    exec.envs(names.map(|name| (format!("LOCKKEEPER_{name}"), "")));
    assert_eq!(Ran::of(exec.output().unwrap()), ends(0, SILENT));
    // The usual service, which may be there by chance.
    let mut exec = stage.exec(&["-n", "key", "true"]);
    let ran = Ran::of(exec.env("LOCKKEEPER_URL", "").output().unwrap());
    assert!(ran.code == Some(0) || ran.err.contains("no answer from http://127.0.0.1:"), "{ran:?}");
    let mut serve = command(BINARY);
    let output = serve.args(["config"]).env("LOCKKEEPER_CONFIG", "").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let mut release = command(BINARY);
    release.args(["release", "key"]).env("LOCK_TOKEN", "");
    let ran = Ran::of(release.output().unwrap());
    assert_eq!(
        ran,
        ends(125, "lockkeeper: 'key': no lease token: set LOCK_TOKEN or --token-file\n")
    );
}

#[test]
fn a_command_that_runs_for_too_long_is_ended_and_then_killed() {
    let stage = Stage::new();
    let ran = stage.ran(&["-T", "300ms", "key", "sleep", "60"]);
    assert_eq!(ran, ends(124, "lockkeeper: 'key': COMMAND ran longer than --max-run\n"));
    let deaf = ["sh", "-c", "trap '' TERM; while :; do sleep 0.02; done"];
    let ran = stage.ran(&[&["-q", "-T", "300ms", "-k", "200ms", "key"][..], &deaf].concat());
    assert_eq!(ran, ends(124, SILENT));
    let hearing = "trap 'echo interrupted; exit 1' INT; echo ready; while :; do sleep 0.02; done";
    // A busy machine may be too late to start it at all.
    let heard = ["300ms", "3s", "30s"].into_iter().any(|limit| {
        let ran = stage.ran(&["-q", "-T", limit, "-s", "INT", "key", "sh", "-c", hearing]);
        assert_eq!(ran.code, Some(124));
        ran.out == "ready\ninterrupted\n"
    });
    assert!(heard);
}

/// It ended so, and COMMAND printed nothing.
fn ends(code: i32, err: &str) -> Ran {
    Ran { code: Some(code), out: String::new(), err: err.to_owned() }
}
