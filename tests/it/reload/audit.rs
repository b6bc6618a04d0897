//! Who did what, from where and why: a line for each, whatever the level, and without secrets.

use serde_json::Value;

use crate::reload::{ALL, Stage, entry};
use crate::support::process::{BINARY, command, succeeds};
use crate::support::{Http, PATIENCE, eventually};

const TOKEN: &str = "token-of-the-holder";

#[tokio::test(flavor = "multi_thread")]
async fn the_audit_has_who_from_where_what_and_why_at_every_level() {
    let keys = format!(
        "{}{}",
        entry("root", "root-secret", ALL),
        entry("web", "web-secret", "[\"acquire\"]")
    );
    let stage = Stage::start(&keys, &[("LOCKKEEPER_LOG_LEVEL", "off")]);
    let (root, web) = (stage.caller("root-secret"), stage.caller("web-secret"));
    let granted = web.token(TOKEN).post("/locks/a/b", r#"{"owner":"web-1"}"#).await;
    let path = "/admin/locks/a/b?reason=host+is+dead%22%2C%20%22x%22%3A1";
    assert_eq!(root.with("X-Request-Id", "the-first").delete(path).await.status, 200);
    assert_eq!(root.delete("/admin/locks/a/b").await.status, 409);
    assert_eq!(web.delete("/admin/locks/a/b").await.status, 403);
    assert_eq!(stage.caller("a-guess").get("/locks/a/b").await.status, 401);
    stage.write(&format!("{keys}{}", entry("cron", "cron-secret", ALL)));
    stage.reloaded(1).await;
    let log = stage.service.log_to_the_end();
    stage.service.signal("TERM");
    stage.service.wait();
    let log = log.whole();
    let lines: Vec<Value> = log.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(lines.iter().all(|line| line["target"] == "audit"), "{log}");

    let start = only(&lines, "start", |_| true);
    assert!(start["store"].as_str().unwrap().starts_with("embedded:"), "{start}");
    assert_eq!(start["version"], env!("CARGO_PKG_VERSION"));
    let ended = only(&lines, "force_release", |line| line["outcome"] == "ok");
    for (name, value) in [
        ("caller", "root"),
        ("client.address", "127.0.0.1"),
        ("lock.key", "a/b"),
        ("lock.owner", "web-1"),
        ("reason", "host is dead\", \"x\":1"),
        ("request_id", "the-first"),
    ] {
        assert_eq!(ended[name], value, "{ended}");
    }
    assert_eq!(ended["lock.fencing_token"], granted.field("fencing_token"));
    let free = only(&lines, "force_release", |line| line["outcome"] == "lost");
    assert_eq!((&free["caller"], &free["reason"]), (&"root".into(), &Value::Null));
    let forbidden = only(&lines, "refused", |line| line["code"] == "forbidden");
    assert_eq!((&forbidden["caller"], &forbidden["method"]), (&"web".into(), &"DELETE".into()));
    let unknown = only(&lines, "refused", |line| line["code"] == "unauthenticated");
    assert_eq!(unknown["client.address"], "127.0.0.1");
    assert_eq!(only(&lines, "reload", |_| true)["api_keys.added"], "cron");
    assert_eq!(only(&lines, "stop", |_| true)["signal"], "TERM");
    for hidden in ["root-secret", "web-secret", "cron-secret", "a-guess", TOKEN, "sha256"] {
        assert!(!log.contains(hidden), "{hidden}: {log}");
    }
}

/// The only line of this event that fits.
fn only<'a>(lines: &'a [Value], event: &str, fits: impl Fn(&Value) -> bool) -> &'a Value {
    let found: Vec<_> = lines.iter().filter(|line| line["audit"] == event && fits(line)).collect();
    assert_eq!(found.len(), 1, "{event}: {found:?}");
    found[0]
}

#[tokio::test(flavor = "multi_thread")]
async fn an_audit_that_is_off_is_logged_as_the_level_lets_it() {
    let settings = |level: &str| {
        format!("[log]\naudit = false\nlevel = \"{level}\"\n{}", entry("root", "root", ALL))
    };
    let stage = Stage::start(&settings("info"), &[]);
    let http = stage.caller("root");
    let force = async |key: &str| {
        assert_eq!(http.delete(&format!("/admin/locks/{key}")).await.status, 409);
    };
    force("first").await;
    stage.write(&settings("error"));
    stage.service.signal("HUP");
    eventually(PATIENCE, async || (reloads(&http).await >= 1.0).then_some(())).await;
    force("second").await;
    stage.write(&settings("info"));
    stage.service.signal("HUP");
    // A reload is in the audit as well, so this line comes only with the level.
    stage.reloaded(1).await;
    force("third").await;
    let forced = stage.lines_with("audit", "force_release", 2).await;
    let keys: Vec<_> = forced.iter().map(|line| &line["lock.key"]).collect();
    assert_eq!(keys, ["first", "third"]);
}

/// The number of reloads so far.
async fn reloads(http: &Http) -> f64 {
    let figures = http.get("/metrics").await.body;
    let figures = String::from_utf8(figures.to_vec()).unwrap();
    let name = "lockkeeper_reloads_total{outcome=\"ok\"} ";
    let line = figures.lines().find_map(|line| line.strip_prefix(name));
    line.map_or(0.0, |number| number.parse().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reason_is_sent_by_the_command_line_and_refused_if_it_is_none() {
    let stage = Stage::start("", &[]);
    let http = stage.service.http();
    assert_eq!(http.post("/locks/a", "").await.status, 201);
    let reason = "the host is dead & burnt, 100 %";
    let forced = ["force-release", "a", "--reason", reason, "--url", &http.url()];
    succeeds(command(BINARY).args(forced));
    let line = &stage.lines_with("audit", "force_release", 1).await[0];
    assert_eq!((&line["reason"], &line["outcome"]), (&reason.into(), &"ok".into()));
    for bad in ["x".repeat(257), "two%0Alines".to_owned()] {
        let refused = http.delete(&format!("/admin/locks/a?reason={bad}")).await;
        assert_eq!(refused.told(), (400, "invalid_request".into()), "{refused:?}");
        assert_eq!(refused.text("field"), "reason");
    }
    let long = "x".repeat(257);
    let wrong = ["force-release", "a", "--reason", &long, "--url", &http.url()];
    let wrong = command(BINARY).args(wrong).output().unwrap();
    let told = String::from_utf8(wrong.stderr).unwrap();
    assert!(!wrong.status.success() && told.contains("at most 256 bytes"), "{told}");
}
