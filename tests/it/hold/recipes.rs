//! The recipes of docs/clients.md, as they stand there.

use std::path::PathBuf;
use std::process::Child;
use std::process::Command;
use std::process::Stdio;
use std::time::Duration;

use tempfile::TempDir;

use crate::hold::Listener;
use crate::hold::PATIENCE;
use crate::hold::TOKEN;
use crate::hold::freed;
use crate::hold::is_held;
use crate::hold::proxies::block;
use crate::support::Http;
use crate::support::eventually;
use crate::support::process::command;
use crate::waiting::Stage;

/// Where the page says that the service is.
const SERVICE: &str = "localhost:8080";

/// A recipe in a file, asking this service.
struct Recipe {
    program: &'static str,
    file: PathBuf,
    directory: TempDir,
}

impl Recipe {
    /// The page's block of this kind, with these changes.
    fn of(program: &'static str, http: &Http, changes: &[(&str, &str)]) -> Self {
        let mut text = block(program).replace(SERVICE, &http.address.to_string());
        for (from, to) in changes {
            assert!(text.contains(from), "{from}: {text}");
            text = text.replace(from, to);
        }
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("recipe");
        std::fs::write(&file, text).unwrap();
        Self { program, file, directory }
    }

    fn command(&self) -> Command {
        let mut command = command(self.program);
        command.arg(&self.file).current_dir(self.directory.path());
        command
    }

    /// What it shows, and how it ends.
    fn run(&self) -> (String, Option<i32>) {
        let done = self.command().output().unwrap();
        let shown = [done.stdout, done.stderr].concat();
        (String::from_utf8(shown).unwrap(), done.status.code())
    }

    fn start(&self) -> Child {
        self.command().stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_recipes_work_under_a_free_key_give_it_back_and_respect_a_held_one() {
    let stage = Stage::embedded().await;
    let http = stage.http(0);
    for (recipe, held) in [
        (Recipe::of("bash", &http, &[("?wait=1m", "?wait=200ms")]), ("", Some(75))),
        (Recipe::of("php", &http, &[]), ("not now\n", Some(0))),
    ] {
        for _ in 0..2 {
            assert_eq!(recipe.run(), ("at work\n".to_owned(), Some(0)));
            freed(&http, "report").await;
        }
        let mut holder = Listener::open(&http, "report").await;
        holder.hears("acquired").await;
        assert_eq!(recipe.run(), (held.0.to_owned(), held.1));
        drop(holder);
        freed(&http, "report").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recipe_that_is_killed_at_work_frees_the_key_within_a_beat() {
    let stage = Stage::embedded().await;
    let http = stage.http(0);
    let at_work = [("?wait=1m", "?wait=1m&ttl=1500ms"), ("echo \"at work\"", "exec sleep 60")];
    for recipe in [
        Recipe::of("bash", &http, &at_work),
        Recipe::of(
            "php",
            &http,
            &[("ttl=30s", "ttl=1500ms"), ("echo \"at work\\n\"", "sleep(60)")],
        ),
    ] {
        let mut script = recipe.start();
        eventually(PATIENCE, async || is_held(&http, "report").await.then_some(())).await;
        // Longer than its TTL.
        assert_eq!(http.post("/locks/report?wait=2s", "").await.status, 409);
        script.kill().unwrap();
        script.wait().unwrap();
        let took = freed(&http, "report").await;
        assert!(took < Duration::from_millis(500 + 1_000), "{took:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_loop_of_waits_has_the_key_in_the_end() {
    let stage = Stage::embedded().await;
    let http = stage.http(0);
    let holder = http.token(TOKEN);
    assert_eq!(holder.post("/locks/report?ttl=1m", "").await.status, 201);
    let recipe = Recipe::of("sh", &http, &[("wait=20s", "wait=300ms")]);
    let mut waits = recipe.start();
    let rounds = http.post("/locks/report?wait=3s", "").await;
    assert_eq!(rounds.told(), (409, "lock_held".into()));
    assert!(waits.try_wait().unwrap().is_none());
    assert_eq!(holder.delete("/locks/report").await.status, 204);
    assert!(waits.wait().unwrap().success());
    assert!(is_held(&http, "report").await);
}
