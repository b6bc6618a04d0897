//! The recipes of docs/clients.md, as they stand there.

use crate::hold::proxies::block;
use crate::hold::{Listener, PATIENCE, TOKEN, freed, is_held};
use crate::readme::{SERVICE, blocks, section};
use crate::support::{Http, Script, eventually};
use crate::waiting::Stage;

const PAGE: &str = include_str!("../../../docs/clients.md");

/// The page's block of this kind as a program that asks this service, with these changes.
fn recipe(program: &'static str, http: &Http, changes: &[(&str, &str)]) -> Script {
    let mut text = block(program).replace(SERVICE, &http.address.to_string());
    for (from, to) in changes {
        assert!(text.contains(from), "{from}: {text}");
        text = text.replace(from, to);
    }
    Script::of(program, &text)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_recipes_work_under_a_free_key_give_it_back_and_respect_a_held_one() {
    let stage = Stage::embedded().await;
    let http = stage.http(0);
    for (recipe, held) in [
        (recipe("bash", &http, &[("?wait=1m", "?wait=200ms")]), ("", Some(75))),
        (recipe("php", &http, &[]), ("not now\n", Some(0))),
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
async fn a_recipe_that_is_killed_at_work_frees_the_key() {
    let stage = Stage::embedded().await;
    let http = stage.http(0);
    let at_work = [("?wait=1m", "?wait=1m&ttl=1500ms"), ("echo \"at work\"", "exec sleep 60")];
    for recipe in [
        recipe("bash", &http, &at_work),
        recipe("php", &http, &[("ttl=30s", "ttl=1500ms"), ("echo \"at work\\n\"", "sleep(60)")]),
    ] {
        let mut script = recipe.start();
        eventually(PATIENCE, async || is_held(&http, "report").await.then_some(())).await;
        // Longer than its TTL.
        assert_eq!(http.post("/locks/report?wait=2s", "").await.status, 409);
        script.kill().unwrap();
        script.wait().unwrap();
        freed(&http, "report").await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_loop_of_waits_has_the_key_in_the_end() {
    let stage = Stage::embedded().await;
    let http = stage.http(0);
    let holder = http.token(TOKEN);
    assert_eq!(holder.post("/locks/report?ttl=1m", "").await.status, 201);
    let recipe = recipe("sh", &http, &[("wait=20s", "wait=300ms")]);
    let mut waits = recipe.start();
    let rounds = http.post("/locks/report?wait=3s", "").await;
    assert_eq!(rounds.told(), (409, "lock_held".into()));
    assert!(waits.try_wait().unwrap().is_none());
    assert_eq!(holder.delete("/locks/report").await.status, 204);
    assert!(waits.wait().unwrap().success());
    assert!(is_held(&http, "report").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_about_shared_leases_share_a_key_up_to_the_limit_that_they_name() {
    let stage = Stage::embedded().await;
    let http = stage.http(0);
    let shown = blocks(section(PAGE, "## Shared leases"));
    let [("sh", semaphore), ("sh", readers)] = *shown else { panic!("{shown:?}") };
    let said = |text: &str| {
        let text = text.replace(SERVICE, &http.address.to_string()).replace("wait=20s", "wait=1ms");
        Script::of("sh", &text).run().0
    };
    for slot in 1..=5 {
        let grant = said(semaphore);
        assert!(grant.contains(&format!(r#""slots":5,"slot":{slot},"#)), "{grant}");
    }
    let held = said(semaphore);
    assert!(held.contains("'reports' is held by 5 leases of at most 5; "), "{held}");
    for readers_before in 0..2 {
        let told = said(readers);
        let (reader, writer) = told.split_once('}').unwrap();
        assert!(reader.contains(r#""slots":1000"#), "{told}");
        let held = format!("'catalogue' is held by {} lease", readers_before + 1);
        assert!(writer.contains(&held), "{told}");
    }
}
