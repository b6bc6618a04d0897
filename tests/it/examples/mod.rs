//! The examples, each copied into an empty directory as its page says, and run.

mod agents;
mod ci;
mod cron;
mod deploy;
mod hold;
pub(crate) mod php_fpm;
mod recipes;

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

use crate::readme::{Newcomer, RECIPES, SHELL, blocks, section};
use crate::support::process::{BINARY, command};
use crate::support::{Http, Process};

/// The token of somebody else.
const HOLDER: &str = "somebody-elses-token";

/// A service, and a directory with copies of some files of this package.
struct Stage {
    directory: TempDir,
    service: Process,
    _store: TempDir,
}

impl Stage {
    fn with(files: &[&str]) -> Self {
        Self::limited(files, &[])
    }

    /// One whose service has these variables.
    fn limited(files: &[&str], variables: &[(&str, &str)]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        for file in files {
            let name = Path::new(file).file_name().unwrap();
            let from = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
            std::fs::copy(from, directory.path().join(name)).unwrap();
        }
        let store = tempfile::tempdir().unwrap();
        let service = Process::start(&format!("embedded:{}", store.path().display()), variables);
        Self { directory, service, _store: store }
    }

    fn http(&self) -> Http {
        self.service.http()
    }

    fn url(&self) -> String {
        self.http().url()
    }

    /// What a file says; nothing if it is not there.
    fn text(&self, file: &str) -> String {
        std::fs::read_to_string(self.directory.path().join(file)).unwrap_or_default()
    }

    fn writes(&self, file: &str, text: &str) {
        std::fs::write(self.directory.path().join(file), text).unwrap();
    }

    /// A program in the directory, without a terminal, that finds lockkeeper and the service.
    fn command(&self, program: &str) -> Command {
        let mut command = command("setsid");
        command.arg(program).current_dir(self.directory.path());
        command.env("PATH", format!("{}:/usr/bin:/bin", beside_the_binary()));
        command.env("LOCKKEEPER_URL", self.url());
        command
    }

    async fn look(&self, key: &str) -> Value {
        self.http().get(&format!("/locks/{key}")).await.json()
    }
}

/// The directory that lockkeeper is in.
fn beside_the_binary() -> String {
    Path::new(BINARY).parent().unwrap().display().to_string()
}

/// All that it said, and how it ended.
fn said(output: Output) -> (String, Option<i32>) {
    let text = [output.stdout, output.stderr].concat();
    (String::from_utf8(text).unwrap(), output.status.code())
}

/// The blocks of the pages that take a token for later lines.
#[tokio::test]
async fn a_script_that_takes_a_token_of_a_held_key_goes_no_further() {
    let stage = Stage::with(&[]);
    let shell = (SHELL, "## Verbs for scripts", "backup");
    for (page, heading, key) in [shell, (RECIPES, "### Who leads", "leader/reports")] {
        let holder = stage.http().token(HOLDER);
        assert_eq!(holder.post(&format!("/locks/{key}"), "").await.status, 201);
        let text = blocks(section(page, heading))[0].1.replace("-w 10s ", "");
        let text = text.replace("lockkeeper acquire", "lockkeeper acquire -q -n");
        let mut script = stage.command("bash");
        let ended = said(script.args(["-e", "-c", &text]).output().unwrap());
        assert_eq!(ended, (String::new(), Some(75)), "{text}");
    }
}

/// Follows a page from top to bottom; every command shows what stands below it.
fn follows(page: &str, answers: usize) {
    let mut newcomer = Newcomer::new();
    for directory in ["examples", "clients"] {
        newcomer.has(directory);
    }
    for (_, text) in blocks(page).iter().filter(|(kind, _)| *kind == "sh") {
        newcomer.types(text);
    }
    assert_eq!(newcomer.answers, answers);
}

#[test]
fn every_command_of_the_pages_shows_what_stands_below_it() {
    follows(include_str!("../../../examples/cron/README.md"), 1);
    follows(include_str!("../../../examples/deploy/README.md"), 2);
    follows(include_str!("../../../examples/hold/README.md"), 1);
    follows(include_str!("../../../examples/php-fpm/README.md"), 1);
}
