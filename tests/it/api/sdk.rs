//! Clients that generators make of openapi.yaml, with a running service: the commands and the
//! snippets of docs/clients.md, and all calls that applications need.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::api::{Lockkeeper, api_keys};
use crate::readme::{SERVICE, blocks, section};
use crate::support::openapi::{CONTRACT, SPEC};
use crate::support::packages::{TESTS, node_modules, once, pinned, python, venv};
use crate::support::process::{command, succeeds};

const PAGE: &str = include_str!("../../../docs/clients.md");

/// The generators: what pip installs.
const TODAYS: &str = "sdk/requirements.txt";
const OLDEST: &str = "sdk/requirements-old.txt";

/// What PHP complains of; the oldest generator did not know PHP 8.1.
const ALL: &str = "error_reporting=-1";
const ALL_BUT_DEPRECATIONS: &str = "error_reporting=24575";

const SECRET: &str = "the-secret-of-an-api-key";

/// Keys with all that has to be encoded in a path.
const KEYS: [&str; 6] =
    ["report", "invoices/42", "Büro 7 & Söhne/Ключ/日本語", "100% off", "a%2Fb", "it's a+b?c#d"];

#[tokio::test(flavor = "multi_thread")]
async fn the_php_client_does_all_that_applications_need() {
    assert_does_it_all(&Project::of("php", TODAYS)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_php_client_of_the_oldest_generator_does_all_that_applications_need() {
    assert_does_it_all(&Project::of("php", OLDEST)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_python_client_does_all_that_applications_need() {
    assert_does_it_all(&Project::of("python", TODAYS)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_typescript_client_does_all_that_applications_need() {
    assert_does_it_all(&Project::of("typescript", TODAYS)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_php_client_returns_a_refusal_as_a_lease_where_guzzle_throws_nothing() {
    let service = guarded().await;
    for (generator, does) in [(TODAYS, "returned"), (OLDEST, "thrown")] {
        let project = Project::of("php", generator);
        let mut quiet = project.run("quiet.php");
        let shown = shown(quiet.args([&service.http.0.url(), SECRET, generator]));
        assert_eq!(shown, format!("Lockkeeper\\Model\\LockHeld {does}\n"), "{generator}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_snippets_of_the_page_work_under_a_free_key_give_it_back_and_respect_a_held_one() {
    let service = Lockkeeper::start().await;
    for language in ["php", "python", "typescript"] {
        let project = Project::of(language, TODAYS);
        let snippet = project.snippet(&service);
        for _ in 0..2 {
            assert_eq!(shown(&mut project.run(&snippet)), "at work\n", "{language}");
        }
        let grant = service.post("/locks/invoice/42?owner=me", "").await;
        let held = shown(&mut project.run(&snippet));
        assert!(held.starts_with("not now: 'invoice/42' is held by me for another "), "{held}");
        let holder = service.token(&grant.text("token"));
        assert_eq!(holder.delete("/locks/invoice/42").await.status, 204);
    }
}

#[test]
fn generators_give_every_schema_its_own_name_and_make_up_none() {
    let schemas: BTreeSet<_> = SPEC.schemas().map(|(name, _)| name.clone()).collect();
    let project = Project::of("php", TODAYS);
    let models = fs::read_dir(project.directory.path().join("sdk/php/lib/Model")).unwrap();
    let models = models.map(|file| file.unwrap().path().file_stem().unwrap().to_owned());
    let mut models: BTreeSet<_> = models.map(|name| name.into_string().unwrap()).collect();
    assert!(models.remove("ModelInterface"));
    assert_eq!(models, schemas);
}

#[test]
fn the_page_names_the_versions_that_are_run() {
    for generator in [TODAYS, OLDEST] {
        let version = pinned(generator, "openapi-generator-cli==");
        assert!(PAGE.contains(version.as_str()), "{version}");
    }
}

/// A service with an API key that may do everything.
async fn guarded() -> Lockkeeper {
    let all = r#"["acquire", "read", "admin"]"#;
    Lockkeeper::with_settings(&api_keys(&[(SECRET, r#"[""]"#, all)])).await
}

async fn assert_does_it_all(project: &Project) {
    let service = guarded().await;
    let mut client = project.run(&format!("client.{}", project.ending()));
    client.args([&service.http.0.url(), SECRET]).args(KEYS);
    assert_eq!(shown(&mut client), "as it has to be\n");
}

/// All that a program shows, whatever its exit code.
fn shown(program: &mut Command) -> String {
    let done = program.output().unwrap();
    String::from_utf8([done.stdout, done.stderr].concat()).unwrap()
}

/// The project of a user, with a generated client in `sdk/`.
pub(crate) struct Project {
    language: &'static str,
    generator: &'static str,
    directory: TempDir,
}

impl Project {
    fn of(language: &'static str, generator: &'static str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let here = directory.path();
        symlink(generated(language, generator).join("sdk"), here.join("sdk")).unwrap();
        for program in fs::read_dir(Path::new(TESTS).join("sdk")).unwrap() {
            let program = program.unwrap();
            fs::copy(program.path(), here.join(program.file_name())).unwrap();
        }
        fs::create_dir(here.join("vendor")).unwrap();
        fs::rename(here.join("autoload.php"), here.join("vendor/autoload.php")).unwrap();
        Self { language, generator, directory }
    }

    fn ending(&self) -> &'static str {
        match self.language {
            "php" => "php",
            "python" => "py",
            "typescript" => "ts",
            other => panic!("{other}"),
        }
    }

    /// The snippet of the page in a file, asking this service.
    fn snippet(&self, service: &Lockkeeper) -> String {
        let kind = if self.language == "typescript" { "ts" } else { self.language };
        let (_, text) = *shown_blocks().iter().find(|(other, _)| *other == kind).unwrap();
        let name = format!("snippet.{}", self.ending());
        let text = text.replace(SERVICE, &service.http.0.address.to_string());
        fs::write(self.directory.path().join(&name), text).unwrap();
        name
    }

    /// What runs a program of the project.
    pub(crate) fn run(&self, program: &str) -> Command {
        let here = self.directory.path();
        let mut run = match self.language {
            "php" => {
                let mut php = command("php");
                let strict = if self.generator == TODAYS { ALL } else { ALL_BUT_DEPRECATIONS };
                php.args(["-d", "display_errors=stderr", "-d", strict, program]);
                php
            }
            "python" => {
                let mut python = command(python(&venv(TODAYS)));
                python.env("PYTHONPATH", here.join("sdk/python")).arg(program);
                python
            }
            _ => {
                let compiled = Path::new("js").join(program).with_extension("js");
                if !here.join(&compiled).exists() {
                    let compiler = node_modules("sdk").join("typescript/bin/tsc");
                    succeeds(command("node").arg(compiler).current_dir(here));
                }
                let mut node = command("node");
                node.arg(compiled);
                node
            }
        };
        run.current_dir(here);
        run
    }
}

/// Where the client for a language is, as the page's command makes it.
fn generated(language: &str, generator: &str) -> PathBuf {
    let output = format!("sdk/{language}");
    let lines = shown_blocks()[0].1.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    let words = lines.into_iter().find(|words| words.contains(&output.as_str())).unwrap();
    let venv = venv(generator);
    let name = format!("{}-{language}", generator.replace(['/', '.'], "-"));
    once(&name, &format!("{words:?}\n{CONTRACT}"), |there| {
        fs::write(there.join("openapi.yaml"), CONTRACT).unwrap();
        let mut generator = command(python(&venv));
        generator.arg(venv.join("bin").join(words[0])).args(&words[1..]).current_dir(there);
        succeeds(&mut generator);
    })
}

/// The blocks of the page's section.
fn shown_blocks() -> Vec<(&'static str, &'static str)> {
    blocks(section(PAGE, "## Generated clients"))
}
