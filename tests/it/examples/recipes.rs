//! The recipes that take more than one client.

use std::process::Stdio;
use std::time::Duration;

use crate::examples::{HOLDER, Stage};
use crate::readme::{RECIPES, blocks, section};
use crate::support::eventually;

const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread")]
async fn only_the_newest_of_several_waiting_deploys_goes_on() {
    let stage = Stage::with(&[]);
    let (_, block) = blocks(section(RECIPES, "## Only the newest of several waiting deploys"))[0];
    let holder = stage.http().token(HOLDER);
    assert_eq!(holder.post("/locks/deploy/web", "").await.status, 201);
    let mut deploys = Vec::new();
    for place in 1..=3 {
        let mut deploy = stage.command("bash");
        deploy.args(["-c", block]).stdin(Stdio::null()).stdout(Stdio::piped());
        deploys.push(deploy.spawn().unwrap());
        let in_line = async || stage.look("deploy/web").await["waiters"] == place;
        eventually(PATIENCE, async || in_line().await.then_some(())).await;
    }
    assert_eq!(holder.delete("/locks/deploy/web").await.status, 204);
    let said = deploys.into_iter().map(|deploy| {
        let done = deploy.wait_with_output().unwrap();
        (String::from_utf8(done.stdout).unwrap(), done.status.code())
    });
    let [old, new] =
        ["a newer deploy waits\n", "deploying\n"].map(|said| (said.to_owned(), Some(0)));
    assert_eq!(said.collect::<Vec<_>>(), [old.clone(), old, new]);
}
