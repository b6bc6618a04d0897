//! The recipes for CI, with the environment that the runners give their steps.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use crate::clients::TYPESCRIPT;
use crate::examples::{HOLDER, Stage, said};
use crate::support::process::{command, signal, succeeds};
use crate::support::{NOWHERE, PATIENCE, eventually};

const GITLAB: &str = include_str!("../../../examples/ci/gitlab-ci.yml");
const JENKINS: &str = include_str!("../../../examples/ci/Jenkinsfile");
const ACTION: &str = include_str!("../../../examples/github-action/action.yml");
const WORKFLOW: &str = include_str!("../../../examples/github-action/workflow.yml");

/// The directory of the action, which its users copy before they install the package.
const ACTION_FILES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/github-action");

/// The job's own work: shows who has the key.
const DEPLOY: &str =
    "#!/bin/sh\nlockkeeper get --json deploy/shop | sed 's/.*\"owner\":\"\\([^\"]*\\).*/\\1/'\n";

/// A command, what its runner sets, and what it shows.
type Recipe = (String, [(&'static str, &'static str); 2], &'static str);

/// The commands of both recipes.
fn commands() -> [Recipe; 2] {
    let gitlab: Value = serde_norway::from_str(GITLAB).unwrap();
    let jenkins = JENKINS.split("sh '").nth(1).unwrap().split('\'').next().unwrap();
    let (job, build) = ("https://git.example/shop/-/jobs/7", "https://ci.example/job/shop/7/");
    [
        (
            gitlab["deploy"]["script"][0].as_str().unwrap().to_owned(),
            [("CI_PROJECT_PATH", "web/shop"), ("CI_JOB_URL", job)],
            "web/shop https://git.example/shop/-/jobs/7\n",
        ),
        (
            jenkins.to_owned(),
            [("BUILD_URL", build), ("CI", "true")],
            "https://ci.example/job/shop/7/\n",
        ),
    ]
}

#[tokio::test]
async fn the_command_of_a_recipe_deploys_under_the_key_and_waits_for_it() {
    for (line, variables, owner) in commands() {
        let stage = Stage::with(&[]);
        stage.writes("deploy.sh", DEPLOY);
        succeeds(stage.command("chmod").args(["+x", "deploy.sh"]));
        let run = |line: &str| {
            said(stage.command("sh").args(["-ec", line]).envs(variables).output().unwrap())
        };
        assert_eq!(run(&line), (owner.to_owned(), Some(0)));
        assert_eq!(stage.look("deploy/shop").await["held"], false);
        stage.http().token(HOLDER).post("/locks/deploy/shop", "").await;
        assert!(line.contains("-w 10m"), "{line}");
        let (shown, code) = run(&line.replace("-w 10m", "-w 1s"));
        assert_eq!(code, Some(75), "{shown}");
    }
}

/// A job on a runner of GitHub.
struct Job<'a> {
    stage: &'a Stage,
    name: &'static str,
}

impl Job<'_> {
    /// A step, with the inputs of the workflow.
    fn step(&self, program: &str, inputs: &[(&str, &str)]) -> Command {
        let action: Value = serde_norway::from_str(ACTION).unwrap();
        let mut step = command(program);
        step.current_dir(self.stage.directory.path()).stdin(Stdio::null());
        for (name, input) in action["inputs"].as_object().unwrap() {
            let given = inputs.iter().find(|(other, _)| other == name).map(|(_, value)| *value);
            let value = given.or_else(|| input["default"].as_str());
            let url = self.stage.url();
            let value = if name == "url" { &url } else { value.unwrap() };
            step.env(format!("INPUT_{}", name.to_uppercase()), value);
        }
        for file in ["GITHUB_STATE", "GITHUB_OUTPUT"] {
            self.stage.writes(&self.file(file), &self.stage.text(&self.file(file)));
            step.env(file, self.file(file));
        }
        step.envs([("GITHUB_REPOSITORY", "web/shop"), ("GITHUB_JOB", self.name)]);
        step.envs([("GITHUB_RUN_ID", "7"), ("RUNNER_TRACKING_ID", "github_7")]);
        step
    }

    fn file(&self, name: &str) -> String {
        format!("{name}-{}", self.name)
    }

    fn main(&self, inputs: &[(&str, &str)]) -> (String, Option<i32>) {
        said(self.step("node", inputs).arg("main.js").output().unwrap())
    }

    /// The last step, which has what the first one has stored.
    fn post(&self) -> (String, Option<i32>) {
        let mut post = self.step("node", INPUTS);
        for line in self.stage.text(&self.file("GITHUB_STATE")).lines() {
            let (name, value) = line.split_once('=').unwrap();
            post.env(format!("STATE_{name}"), value);
        }
        let done: Output = post.arg("post.js").output().unwrap();
        said(done)
    }
}

/// A third of the TTL is no whole number of milliseconds.
const INPUTS: &[(&str, &str)] = &[("key", "deploy/shop"), ("ttl", "3.1s"), ("wait", "0")];

fn with_the_action() -> Stage {
    let stage = Stage::with(&[]);
    succeeds(stage.command("cp").args(["-r", &format!("{ACTION_FILES}/."), "."]));
    succeeds(stage.command("mkdir").args(["-p", "node_modules/lockkeeper"]));
    let package = TYPESCRIPT.built().join("clients/typescript");
    for part in ["package.json", "dist"] {
        let mut copy = stage.command("cp");
        succeeds(copy.arg("-r").arg(package.join(part)).arg("node_modules/lockkeeper"));
    }
    stage
}

#[tokio::test(flavor = "multi_thread")]
async fn the_action_refuses_a_time_that_it_cannot_read_and_a_path_that_is_no_key() {
    let stage = with_the_action();
    let job = Job { stage: &stage, name: "deploy" };
    for (ttl, wait) in [("soon", "0"), ("3s", "10 minutes"), ("", "0"), ("-3", "0"), ("3s", "1e9")]
    {
        let (shown, code) = job.main(&[("key", "deploy/shop"), ("ttl", ttl), ("wait", wait)]);
        assert!(shown.contains("is no duration") && code == Some(1), "{shown}");
        assert_eq!(stage.look("deploy/shop").await["held"], false);
    }
    let (shown, code) = job.main(&[("key", "../admin/locks/shop"), ("ttl", "3s"), ("wait", "0")]);
    assert!(shown.contains("is no key") && code == Some(1), "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_action_holds_the_key_for_the_job_and_gives_it_back() {
    let stage = with_the_action();
    let job = Job { stage: &stage, name: "deploy" };
    assert_eq!(job.main(INPUTS), (String::new(), Some(0)));
    let look = stage.look("deploy/shop").await;
    assert_eq!(look["owner"], "web/shop deploy 7");
    let output = stage.text("GITHUB_OUTPUT-deploy");
    assert_eq!(output, format!("fencing-token={}\n", look["fencing_token"]));
    renewed(&stage).await;

    let second = Job { stage: &stage, name: "second" };
    let (shown, code) = second.main(INPUTS);
    assert!(
        code == Some(1) && shown.contains("::error::'deploy/shop' is held by web/shop"),
        "{shown}"
    );
    assert_eq!(second.post(), (String::new(), Some(0)), "a job that had no lease has lost none");

    let third = Job { stage: &stage, name: "third" };
    let mut waits = third.step("node", &[("key", "deploy/shop"), ("ttl", "3"), ("wait", "60")]);
    let mut waits = waits.arg("main.js").stdout(Stdio::null()).spawn().unwrap();
    eventually(PATIENCE, async || (stage.look("deploy/shop").await["waiters"] == 1).then_some(()))
        .await;
    assert_eq!(job.post(), (String::new(), Some(0)));
    assert!(waits.wait().unwrap().success());
    assert_eq!(stage.look("deploy/shop").await["owner"], "web/shop third 7");

    let forced = stage.http().delete("/admin/locks/deploy/shop").await;
    assert_eq!(forced.status, 200);
    let (shown, code) = third.post();
    let lost = shown.starts_with("::error::the lease on 'deploy/shop' was lost");
    assert!(code == Some(1) && lost, "{shown}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_that_is_cancelled_while_it_waits_leaves_the_line() {
    let stage = with_the_action();
    let job = Job { stage: &stage, name: "deploy" };
    assert_eq!(stage.http().token(HOLDER).post("/locks/deploy/shop?ttl=1h", "").await.status, 201);
    let waiters = async |count: u64| {
        let right = async || (stage.look("deploy/shop").await["waiters"] == count).then_some(());
        eventually(PATIENCE, right).await;
    };
    for how in ["INT", "TERM", "KILL"] {
        let mut waits = job.step("node", &[("key", "deploy/shop"), ("wait", "1h")]);
        let mut waits = waits.arg("main.js").stdout(Stdio::null()).spawn().unwrap();
        waiters(1).await;
        signal(waits.id(), how);
        waiters(0).await;
        assert!(!waits.wait().unwrap().success(), "{how}");
    }
    assert_eq!(job.post(), (String::new(), Some(0)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_lease_was_not_renewed_to_its_end_fails() {
    let stage = with_the_action();
    let job = Job { stage: &stage, name: "deploy" };
    assert_eq!(job.main(INPUTS), (String::new(), Some(0)));
    let state = stage.text("GITHUB_STATE-deploy");
    let (holder, _) = state.rsplit_once('/').unwrap();
    stage.writes("GITHUB_STATE-deploy", &format!("holder=http://{NOWHERE}/"));
    let (shown, code) = job.post();
    assert!(shown.contains("renewed the lease has ended") && code == Some(1), "{shown}");
    stage.writes("GITHUB_STATE-deploy", &format!("{holder}/"));
    assert_eq!(job.post().1, Some(1), "nobody else may ask for the release");
    assert_eq!(stage.look("deploy/shop").await["held"], true);
    stage.writes("GITHUB_STATE-deploy", &state);
    assert_eq!(job.post(), (String::new(), Some(0)));
    assert_eq!(stage.look("deploy/shop").await["held"], false);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_key_of_a_runner_that_is_killed_is_free_after_its_ttl() {
    let stage = with_the_action();
    let job = Job { stage: &stage, name: "deploy" };
    let mut runner = job.step("sh", INPUTS);
    let mut runner = runner.args(["-c", "node main.js; read _"]);
    runner = runner.stdin(Stdio::piped()).stdout(Stdio::null());
    let mut runner = runner.spawn().unwrap();
    renewed(&stage).await;
    runner.kill().unwrap();
    runner.wait().unwrap();
    eventually(PATIENCE, async || (stage.look("deploy/shop").await["held"] == false).then_some(()))
        .await;
}

/// Waits until the lease is older than its TTL.
async fn renewed(stage: &Stage) {
    let old = async || {
        let held = stage.look("deploy/shop").await["held_ms"].as_u64()?;
        (held > 4_000).then_some(())
    };
    eventually(PATIENCE, old).await;
}

#[test]
fn the_workflow_gives_the_action_inputs_that_it_has() {
    let action: Value = serde_norway::from_str(ACTION).unwrap();
    // The runners of 2026 have no older one.
    assert_eq!(action["runs"]["using"], "node24");
    let workflow: Value = serde_norway::from_str(WORKFLOW).unwrap();
    let steps = &workflow["jobs"]["deploy"]["steps"];
    let given = steps[1]["with"].as_object().unwrap();
    for (name, input) in action["inputs"].as_object().unwrap() {
        assert!(given.contains_key(name) || input["default"].is_string(), "{name} is missing");
    }
    assert!(given.keys().all(|name| action["inputs"][name].is_object()), "{given:?}");
    let output = steps[2]["run"].as_str().unwrap().split("outputs.").nth(1).unwrap();
    assert!(action["outputs"][output.trim_end_matches(" }}")].is_object(), "{output}");
    for kind in ["main", "post"] {
        let file = action["runs"][kind].as_str().unwrap();
        assert!(Path::new(ACTION_FILES).join(file).exists(), "{file}");
    }
}
