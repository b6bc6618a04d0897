//! API keys and the level of the log are read again; nothing else is, and nothing bad.

use std::os::unix::fs::symlink;
use std::process::Stdio;

use crate::reload::{ALL, Stage, entry, status};
use crate::support::process::{BINARY, command};
use crate::support::{PATIENCE, eventually};

/// Waits until one secret is accepted and another refused.
async fn changed(stage: &Stage, accepted: &str, refused: &str) {
    eventually(PATIENCE, async || {
        let both = (status(stage, accepted).await, status(stage, refused).await);
        (both == (200, 401)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn api_keys_are_replaced_on_hup_and_when_their_file_changes() {
    let stage = Stage::start(&entry("shop", "one", ALL), &[]);
    assert_eq!((status(&stage, "one").await, status(&stage, "two").await), (200, 401));
    stage.write(&entry("shop", "two", ALL));
    stage.service.signal("HUP");
    changed(&stage, "two", "one").await;
    stage.lines_with("cause", "SIGHUP", 1).await;
    // In place, as most editors do not.
    std::fs::write(stage.path("lockkeeper.toml"), entry("cron", "three", ALL)).unwrap();
    changed(&stage, "three", "two").await;
    let lines = stage.lines_with("cause", "the file has changed", 1).await;
    let last = lines.last().unwrap();
    assert_eq!(
        (&last["api_keys.added"], &last["api_keys.removed"]),
        (&"cron".into(), &"shop".into())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exchanged_link_as_of_kubernetes_is_followed() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let place = |name: &str| directory.path().join(name);
    for (version, secret) in [("v1", "one"), ("v2", "two")] {
        std::fs::create_dir(place(version)).unwrap();
        std::fs::write(place(version).join("lockkeeper.toml"), entry("shop", secret, ALL)).unwrap();
    }
    symlink("v1", place("..data")).unwrap();
    symlink("..data/lockkeeper.toml", place("lockkeeper.toml")).unwrap();
    let stage = Stage::started(directory, &[]);
    assert_eq!(status(&stage, "one").await, 200);
    symlink("v2", stage.path("..tmp")).unwrap();
    std::fs::rename(stage.path("..tmp"), stage.path("..data")).unwrap();
    changed(&stage, "two", "one").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bad_file_changes_nothing_and_says_which_setting() {
    let good = entry("shop", "one", ALL);
    let stage = Stage::start(&good, &[]);
    let http = stage.caller("one");
    assert_eq!(http.figure("lockkeeper_config_last_reload_successful").await, 1.0);
    let new = entry("shop", "two", ALL);
    for (settings, named) in [
        (format!("{new}name ="), "is not valid TOML in line"),
        (format!("lisen = \"a\"\n{new}"), "unknown setting `lisen`"),
        (format!("[ttl]\nmin = \"never\"\n{new}"), "`ttl.min`"),
        (format!("{new}{new}"), "`api_keys`"),
        // As a file is that is being written.
        (String::new(), "`api_keys` is empty"),
    ] {
        stage.write(&settings);
        stage.service.signal("HUP");
        eventually(PATIENCE, async || {
            let failed = stage.lines_with("level", "ERROR", 1).await;
            let error = failed.last().unwrap()["error"].as_str().unwrap_or_default().to_owned();
            error.contains(named).then_some(())
        })
        .await;
        assert_eq!((status(&stage, "one").await, status(&stage, "two").await), (200, 401));
        eventually(PATIENCE, async || {
            let last = http.figure("lockkeeper_config_last_reload_successful").await;
            (last == 0.0).then_some(())
        })
        .await;
    }
    stage.write(&entry("shop", "three", ALL));
    changed(&stage, "three", "one").await;
    let http = stage.caller("three");
    eventually(PATIENCE, async || {
        let last = http.figure("lockkeeper_config_last_reload_successful").await;
        (last == 1.0).then_some(())
    })
    .await;
    let figures = http.get("/metrics").await.body;
    let figures = String::from_utf8(figures.to_vec()).unwrap();
    for outcome in ["ok", "failed"] {
        let line = format!("lockkeeper_reloads_total{{outcome=\"{outcome}\"}} ");
        assert!(figures.contains(&line), "{figures}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_level_of_the_log_changes_and_a_variable_still_overrides_it() {
    let settings =
        |level: &str| format!("[log]\nlevel = \"{level}\"\n{}", entry("shop", "one", ALL));
    for (variables, levels) in [
        (&[][..], [("info", true), ("error", false), ("info", true)]),
        (&[("LOCKKEEPER_LOG_LEVEL", "warn")], [("info", false), ("error", false), ("info", false)]),
    ] {
        let stage = Stage::start(&settings("info"), variables);
        let http = stage.caller("one");
        for (times, (level, logged)) in (1..).zip(levels) {
            stage.write(&settings(level));
            stage.service.signal("HUP");
            let expected = if variables.is_empty() { level } else { "warn" };
            eventually(PATIENCE, async || {
                let last = stage.reloaded(times).await.pop().unwrap();
                (last["log_level"] == expected).then_some(())
            })
            .await;
            let path = format!("/locks/key-{times}");
            assert_eq!(http.post(&path, "").await.status, 201);
            // It is logged at each level, and lines keep their order.
            assert_eq!(http.delete(&format!("/admin{path}")).await.status, 200);
            stage.lines_with("audit", "force_release", times).await;
            let lines = stage.lines();
            let key = format!("key-{times}");
            let acquires = |line: &&serde_json::Value| {
                line["op"] == "acquire" && line["lock.key"] == key.as_str()
            };
            assert_eq!(lines.iter().any(|line| acquires(&line)), logged, "{variables:?} {level}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_file_that_might_be_read_for_ever_is_not_read() {
    let good = entry("shop", "one", ALL);
    let stage = Stage::start(&good, &[]);
    let made = command("mkfifo").arg(stage.path("pipe")).status().unwrap();
    assert!(made.success());
    for endless in ["/dev/zero", "pipe"] {
        let _ = std::fs::remove_file(stage.path("new"));
        symlink(endless, stage.path("new")).unwrap();
        std::fs::rename(stage.path("new"), stage.path("lockkeeper.toml")).unwrap();
        let failed = stage.lines_with("what", "settings", 1).await;
        assert!(failed[0]["error"].as_str().unwrap().contains("is no file of up to"), "{failed:?}");
        stage.write(&entry("shop", "two", ALL));
        changed(&stage, "two", "one").await;
        stage.write(&good);
        changed(&stage, "one", "two").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_setting_that_needs_a_restart_is_named_and_the_rest_is_applied() {
    let stage = Stage::start(&entry("shop", "one", ALL), &[]);
    stage.write(&format!("[ttl]\ndefault = \"7s\"\nmax = \"1h\"\n{}", entry("shop", "two", ALL)));
    changed(&stage, "two", "one").await;
    let lines = stage.lines_with("settings", "ttl.default, ttl.max", 1).await;
    assert_eq!(lines[0]["level"], "WARN");
    let granted = stage.caller("two").post("/locks/a", "").await;
    assert!(granted.lasts(30_000), "{granted:?}");
}

/// A HUP means that the terminal is closed, and otherwise that files are to be read again.
#[tokio::test(flavor = "multi_thread")]
async fn a_service_ends_with_the_terminal_that_it_was_started_on() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = |name: &str| directory.path().join(name).display().to_string();
    let line = format!(
        "exec {BINARY} serve --listen 127.0.0.1:0 --store embedded:{} 2>{}",
        path("data"),
        path("log")
    );
    let mut terminal = command("env")
        .args(["--default-signal", "script", "-qefc", &line, "/dev/null"])
        .env("SHELL", "/bin/sh")
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let logs = async |words: &str| {
        eventually(PATIENCE, async || {
            let log = std::fs::read_to_string(path("log")).unwrap_or_default();
            log.contains(words).then_some(log)
        })
        .await
    };
    let log = logs("serving locks on").await;
    let pid: u32 =
        log.split("\"pid\":").nth(1).unwrap().split([',', '}']).next().unwrap().parse().unwrap();
    crate::support::process::signal(pid, "HUP");
    logs("\"cause\":\"SIGHUP\"").await;
    terminal.kill().unwrap();
    terminal.wait().unwrap();
    let log = logs("shutdown complete").await;
    assert!(log.contains("\"signal\":\"HUP\""), "{log}");
}
