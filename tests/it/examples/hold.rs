//! The script whose lease lives as long as it does.

use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::examples::{HOLDER, Stage, said};
use crate::support::process::signal;
use crate::support::{NOWHERE, PATIENCE, eventually};

const FILES: &[&str] = &["examples/hold/cleanup.sh", "examples/hold/step.sh"];

/// A third of the TTL of the example, and what a busy machine adds.
const BEAT: Duration = Duration::from_secs(1 + 9);

fn cleans(stage: &Stage, files: &[&str]) -> Child {
    let mut cleanup = stage.command("bash");
    cleanup.arg("cleanup.sh").args(files).stdout(Stdio::piped()).stderr(Stdio::piped());
    cleanup.spawn().unwrap()
}

async fn freed(stage: &Stage) -> Duration {
    let began = Instant::now();
    eventually(PATIENCE, async || (stage.look("cleanup").await["held"] == false).then_some(()))
        .await;
    began.elapsed()
}

async fn exists(stage: &Stage, file: &str) {
    let file = stage.directory.path().join(file);
    eventually(PATIENCE, async || file.exists().then_some(())).await;
}

#[tokio::test]
async fn the_script_works_under_a_free_key_and_respects_a_held_one() {
    let stage = Stage::with(FILES);
    let holder = stage.http().token(HOLDER);
    assert_eq!(holder.post("/locks/cleanup", "").await.status, 201);
    stage.writes("a", "");
    let ended = said(cleans(&stage, &["a"]).wait_with_output().unwrap());
    assert_eq!(ended, (String::new(), Some(75)));
    assert!(stage.directory.path().join("a").exists());
    assert_eq!(holder.delete("/locks/cleanup").await.status, 204);
    for _ in 0..2 {
        let ended = said(cleans(&stage, &["a", "b"]).wait_with_output().unwrap());
        assert_eq!(ended, ("at work\ndone\n".to_owned(), Some(0)));
        assert!(!stage.directory.path().join("a").exists());
        freed(&stage).await;
    }
}

#[tokio::test]
async fn a_script_without_a_service_ends_with_69_and_says_so() {
    let stage = Stage::with(FILES);
    let mut cleanup = stage.command("bash");
    cleanup.args(["cleanup.sh", "a"]).env("LOCKKEEPER_URL", format!("http://{NOWHERE}"));
    let (text, code) = said(cleanup.output().unwrap());
    assert!(text.contains("does not answer") && code == Some(69), "{text}");
}

#[tokio::test]
async fn a_killed_script_frees_its_key_within_a_beat_even_if_its_step_goes_on() {
    let stage = Stage::with(FILES);
    stage.writes("step.sh", "echo $$ > step.pid; touch begun; exec sleep 60");
    let mut cleanup = cleans(&stage, &["a"]);
    exists(&stage, "begun").await;
    // For longer than the TTL it is held.
    assert_eq!(stage.http().post("/locks/cleanup?wait=4s", "").await.status, 409);
    cleanup.kill().unwrap();
    cleanup.wait().unwrap();
    let took = freed(&stage).await;
    assert!(took < BEAT, "{took:?}");
    signal(stage.text("step.pid").trim().parse().unwrap(), "KILL");
}

#[tokio::test]
async fn a_step_that_inherits_the_descriptor_keeps_the_key_of_a_killed_script() {
    let stage = Stage::with(FILES);
    let inherits = stage.text("cleanup.sh").replace(" 3<&-", "");
    stage.writes("cleanup.sh", &inherits);
    stage.writes("step.sh", "echo $$ > step.pid; touch begun; exec sleep 60");
    let mut cleanup = cleans(&stage, &["a"]);
    exists(&stage, "begun").await;
    cleanup.kill().unwrap();
    cleanup.wait().unwrap();
    assert_eq!(stage.http().post("/locks/cleanup?wait=4s", "").await.status, 409);
    signal(stage.text("step.pid").trim().parse().unwrap(), "KILL");
    let took = freed(&stage).await;
    assert!(took < BEAT, "{took:?}");
}

#[tokio::test]
async fn the_script_stops_with_79_when_its_lease_is_lost_or_the_service_gone() {
    for how in ["forced", "KILL", "STOP"] {
        let stage = Stage::with(FILES);
        stage.writes("step.sh", "touch begun-$1; while [ ! -e go ]; do sleep 0.1; done");
        let cleanup = cleans(&stage, &["a", "b"]);
        exists(&stage, "begun-a").await;
        match how {
            "forced" => assert_eq!(stage.http().delete("/admin/locks/cleanup").await.status, 200),
            signal => stage.service.signal(signal),
        }
        stage.writes("go", "");
        let ended = said(cleanup.wait_with_output().unwrap());
        assert_eq!(ended, ("at work\n".to_owned(), Some(79)), "{how}");
        assert!(!stage.directory.path().join("begun-b").exists());
    }
}

#[tokio::test]
async fn a_line_of_the_stream_that_comes_in_two_pieces_is_no_loss() {
    let stage = Stage::with(FILES);
    let cut =
        r#" | while read -r it; do printf %s "${it%e*}"; sleep 0.5; echo "e${it##*e}"; done)"#;
    let script = stage.text("cleanup.sh").replace("exec curl", "curl");
    let script = script.replacen(")\ntrap", &format!("{cut}\ntrap"), 1);
    assert!(script.contains("sleep 0.5"), "{script}");
    stage.writes("cleanup.sh", &script);
    stage.writes("step.sh", "sleep 0.2");
    let ended = said(cleans(&stage, &["a"; 15]).wait_with_output().unwrap());
    assert_eq!(ended, ("at work\ndone\n".to_owned(), Some(0)));
}
