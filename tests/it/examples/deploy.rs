//! The deploy script.

use std::process::{Child, Stdio};

use crate::examples::{HOLDER, Stage, said};
use crate::support::{PATIENCE, eventually};

const FILES: &[&str] = &["examples/deploy/deploy.sh", "examples/deploy/steps.sh"];

fn deploys(stage: &Stage, release: &str) -> Child {
    let mut deploy = stage.command("sh");
    deploy.args(["deploy.sh", release]).stdout(Stdio::piped()).stderr(Stdio::piped());
    deploy.spawn().unwrap()
}

#[tokio::test]
async fn of_two_deploys_the_second_says_who_deploys_and_ends_with_75() {
    let stage = Stage::with(FILES);
    stage.writes(
        "steps.sh",
        "mkdir -p releases/$1; touch begun; while [ -e begun ]; do sleep 0.1; done",
    );
    let first = deploys(&stage, "8");
    eventually(PATIENCE, async || stage.directory.path().join("begun").exists().then_some(()))
        .await;
    let (text, code) = said(deploys(&stage, "9").wait_with_output().unwrap());
    assert!(text.starts_with("lockkeeper: 'deploy/shop' is held for "), "{text}");
    assert!(text.ends_with(" (release 8)\n"), "{text}");
    assert_eq!(code, Some(75));
    assert!(!stage.directory.path().join("releases/9").exists());
    std::fs::remove_file(stage.directory.path().join("begun")).unwrap();
    let (text, code) = said(first.wait_with_output().unwrap());
    let lease = text.strip_prefix("deploying 8 as number ").unwrap();
    assert!(lease.ends_with("\ndeployed 8\n") && code == Some(0), "{text}");
    let current = std::fs::read_link(stage.directory.path().join("current")).unwrap();
    assert_eq!(current.display().to_string(), "releases/8");
    assert_eq!(stage.look("deploy/shop").await["held"], false);
}

#[tokio::test]
async fn a_deploy_that_inherits_the_variables_of_an_earlier_one_asks_for_a_lease_of_its_own() {
    let stage = Stage::with(FILES);
    let holder = stage.http().token(HOLDER);
    assert_eq!(holder.post("/locks/deploy/shop", "").await.status, 201);
    let mut deploy = stage.command("sh");
    deploy.args(["deploy.sh", "9"]).env("LOCK_KEY", "deploy/shop").env("LOCK_FENCING_TOKEN", "1");
    deploy.env("LOCK_TOKEN", "token-of-an-earlier-deploy");
    let (text, code) = said(deploy.output().unwrap());
    assert!(
        text.starts_with("lockkeeper: 'deploy/shop' is held for ") && code == Some(75),
        "{text}"
    );
}

#[tokio::test]
async fn a_deploy_that_fails_ends_as_its_step_does_and_the_next_one_can_begin() {
    let stage = Stage::with(FILES);
    stage.writes("steps.sh", "exit 7");
    let (text, code) = said(deploys(&stage, "8").wait_with_output().unwrap());
    assert!(!text.contains("deployed") && code == Some(7), "{text}");
    assert!(!stage.directory.path().join("current").exists());
    assert_eq!(stage.look("deploy/shop").await["held"], false);
}

#[tokio::test]
async fn a_deploy_that_is_told_to_end_gives_the_key_back() {
    let stage = Stage::with(FILES);
    stage.writes("steps.sh", "touch begun; exec sleep 60");
    let mut deploy = deploys(&stage, "8");
    eventually(PATIENCE, async || stage.directory.path().join("begun").exists().then_some(()))
        .await;
    // As Ctrl-C does: to all of its group. It is a leader, for it was started by setsid.
    let group = rustix::process::Pid::from_child(&deploy);
    rustix::process::kill_process_group(group, rustix::process::Signal::INT).unwrap();
    deploy.wait().unwrap();
    eventually(PATIENCE, async || (stage.look("deploy/shop").await["held"] == false).then_some(()))
        .await;
}
