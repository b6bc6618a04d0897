//! The files for coding agents: the script for worktrees, the settings of a harness, the skill.

use std::process::{Command, Output};

use serde_json::Value;

use crate::examples::{HOLDER, Stage, said};
use crate::support::process::succeeds;

const SKILL: &str = include_str!("../../../examples/agents/locks/SKILL.md");
const SETTINGS: &str = include_str!("../../../examples/agents/mcp.json");

fn with_lock(stage: &Stage, directory: &str) -> Output {
    let mut script = stage.command("../with-lock");
    let worktree: &mut Command = script.current_dir(stage.directory.path().join(directory));
    worktree.env("WAIT", "0").args(["test-db", "sh", "-c", "echo $LOCK_KEY"]).output().unwrap()
}

#[tokio::test]
async fn worktrees_and_clones_of_a_repository_take_one_key_for_what_they_share() {
    let stage = Stage::with(&["examples/agents/with-lock"]);
    let git = |directory: &str, arguments: &[&str]| {
        let mut git = stage.command("git");
        git.current_dir(stage.directory.path().join(directory));
        succeeds(git.args(["-c", "user.name=a", "-c", "user.email=a@b.example"]).args(arguments))
    };
    git(".", &["init", "-q", "first"]);
    git("first", &["commit", "-q", "--allow-empty", "-m", "first"]);
    git("first", &["worktree", "add", "-q", "../second"]);
    let (alone, code) = said(with_lock(&stage, "first"));
    assert!(alone.starts_with("test-db/") && alone.ends_with("/first\n"), "{alone} {code:?}");
    assert_eq!(said(with_lock(&stage, "second")), (alone, Some(0)));
    git("first", &["remote", "add", "origin", "git@forge.example:team/shop.git"]);
    git(".", &["init", "-q", "clone"]);
    git("clone", &["remote", "add", "origin", "ssh://git@forge.example:2222/team/shop"]);
    let key = "test-db/forge.example/team/shop";
    for directory in ["first", "second", "clone"] {
        let free = said(with_lock(&stage, directory));
        assert_eq!(free, (format!("{key}\n"), Some(0)), "{directory}");
    }
    let holder = stage.http().token(HOLDER);
    assert_eq!(holder.post(&format!("/locks/{key}"), "").await.status, 201);
    for directory in ["first", "second", "clone"] {
        let (told, code) = said(with_lock(&stage, directory));
        assert!(code == Some(75) && told.contains(key), "{directory}: {told}");
    }
}

#[tokio::test]
async fn the_settings_of_the_harness_start_the_server() {
    let stage = Stage::with(&[]);
    let settings: Value = serde_json::from_str(SETTINGS).unwrap();
    let server = &settings["mcpServers"]["locks"];
    let words = server["args"].as_array().unwrap().iter().map(|word| word.as_str().unwrap());
    let words = words.map(|word| match word {
        url if url.starts_with("http://") => stage.url(),
        word => word.to_owned(),
    });
    let mut started = stage.command(server["command"].as_str().unwrap());
    // Its input ends at once.
    assert_eq!(said(started.args(words).output().unwrap()), (String::new(), Some(0)));
}

#[test]
fn the_skill_says_what_a_harness_reads_of_it() {
    let head = SKILL.strip_prefix("---\n").unwrap().split("\n---\n").next().unwrap();
    let head: Value = serde_norway::from_str(head).unwrap();
    assert_eq!(head["name"], "locks", "its directory");
    assert!(head["description"].as_str().unwrap().contains("Use before"), "{head}");
    for tool in ["acquire", "release"] {
        assert!(SKILL.contains(&format!("`{tool}`")), "{tool}");
    }
}
