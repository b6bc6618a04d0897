//! `lockkeeper api-key new`.

use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output, Stdio};

use crate::reload::Stage;
use crate::support::process::{BINARY, command, succeeds};

fn new(arguments: &[&str]) -> Command {
    let mut new = command(BINARY);
    new.args(["api-key", "new"]).args(arguments);
    new
}

#[tokio::test(flavor = "multi_thread")]
async fn the_printed_settings_admit_the_secret() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = directory.path().join("secret");
    let path = path.to_str().unwrap();
    let mut settings = succeeds(&mut new(&["shop", "--secret-file", path]));
    let secret = std::fs::read_to_string(path).unwrap();
    let secret = secret.trim();
    assert!(secret.starts_with("lk_") && !settings.contains(secret), "{settings}");
    assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600);
    let other = format!("{path}-2");
    let wide = ["a \"b\"", "--prefix", "", "--permission", "read", "--permission", "admin"];
    settings.push('\n');
    settings.push_str(&succeeds(new(&wide).args(["--secret-file", &other])));
    let stage = Stage::start(&settings, &[]);
    let shop = stage.caller(secret);
    assert_eq!(shop.post("/locks/shop/1", "").await.status, 201);
    assert_eq!(shop.post("/locks/shopping", "").await.status, 403);
    assert_eq!(shop.get("/metrics").await.status, 403);
    let root = stage.caller(std::fs::read_to_string(other).unwrap().trim());
    assert_eq!(root.get("/metrics").await.status, 200);
    assert_eq!(root.post("/locks/x", "").await.status, 403);
    assert_eq!(root.delete("/admin/locks/shop/1").await.status, 200);
}

#[test]
fn a_secret_goes_nowhere_where_nobody_reads_it() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let taken = directory.path().join("taken");
    std::fs::write(&taken, "mine").unwrap();
    for (arguments, told) in [
        (&["shop"][..], "--secret-file"),
        (&["shop", "--secret-file", taken.to_str().unwrap()], "cannot write the secret"),
        (&["", "--secret-file", "/dev/shm/none"], "needs a name"),
        (&["shop", "--permission", "root", "--secret-file", "/dev/shm/none"], "`root`"),
    ] {
        let Output { status, stdout, stderr } = new(arguments).output().unwrap();
        let stderr = String::from_utf8(stderr).unwrap();
        assert_eq!(status.code(), Some(1), "{stderr}");
        assert!(stderr.contains(told) && !stderr.contains("lk_"), "{stderr}");
        assert!(stdout.is_empty(), "{arguments:?}");
    }
    assert_eq!(std::fs::read_to_string(&taken).unwrap(), "mine");
}

#[test]
fn on_a_terminal_the_secret_is_shown_beside_the_settings_and_not_in_their_file() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let file = directory.path().join("settings.toml");
    let line = format!("{BINARY} api-key new shop >{}", file.display());
    let shown = command("script")
        .args(["-qefc", &line, "/dev/null"])
        .env("SHELL", "/bin/sh")
        .stderr(Stdio::null())
        .output()
        .unwrap();
    let shown = String::from_utf8(shown.stdout).unwrap();
    let secret = shown.split_whitespace().find(|word| word.starts_with("lk_"));
    let settings = std::fs::read_to_string(file).unwrap();
    assert!(settings.contains("name = \"shop\""), "{settings}");
    assert!(secret.is_some_and(|secret| !settings.contains(secret)), "{shown}");
}
