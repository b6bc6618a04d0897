//! The clients of all languages in the situations of `clients/SITUATIONS.md`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use crate::support::packages::once;
use crate::support::process::{BINARY, command, succeeds};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// What a build or a run leaves beside the sources.
const MADE: [&str; 4] = ["node_modules", "dist", "build", "__pycache__"];

/// The rows of every change; `make clients` has all of them, and the tests of each package.
const ROWS: [&str; 20] = [
    "plain",
    "acquire-lost",
    "acquire-503",
    "acquire-429",
    "acquire-behind-in-line",
    "busy",
    "odd-key",
    "wrong-api-key",
    "wait-longer-than-cap",
    "cancel-in-line",
    "refresh-503",
    "refresh-silent",
    "restart-in-work",
    "forced-release-blocked",
    "error-of-work",
    "kill",
    "term-in-work",
    "release-lost",
    "fork",
    "units",
];

/// Those of several keys, in the languages whose clients have them.
const SEVERAL: [&str; 8] = [
    "several-shared",
    "several-acquire-lost",
    "several-acquire-mine",
    "several-busy-after-wait",
    "several-cancel-in-line",
    "several-lost-then-busy",
    "several-forced-release",
    "several-release-lost",
];

/// A language: the directory of its client, and how the client is built there.
pub(crate) struct Language {
    client: &'static str,
    commands: &'static [&'static [&'static str]],
}

const PHP: Language = Language { client: "clients/php", commands: &[] };

const PYTHON: Language = Language { client: "clients/python", commands: &[] };

pub(crate) const TYPESCRIPT: Language = Language {
    client: "clients/typescript",
    commands: &[
        &["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"],
        &["npm", "run", "build", "--silent"],
    ],
};

const GO: Language = Language { client: "clients/go", commands: &[&["go", "vet", "./..."]] };

const RUBY: Language = Language { client: "clients/ruby", commands: &[] };

impl Language {
    /// A copy of the client and of the programs that drive it, built.
    pub(crate) fn built(&self) -> PathBuf {
        let mut files = Vec::new();
        list(Path::new(self.client), &mut files);
        list(Path::new("tests/clients"), &mut files);
        files.sort();
        let sources = files.iter().map(|file| fs::read(Path::new(ROOT).join(file)).unwrap());
        let sources = sources.map(|text| String::from_utf8_lossy(&text).into_owned());
        let sources = sources.collect::<String>();
        once(&self.client.replace('/', "-"), &sources, |there| {
            for file in &files {
                let copy = there.join(file);
                fs::create_dir_all(copy.parent().unwrap()).unwrap();
                fs::copy(Path::new(ROOT).join(file), copy).unwrap();
            }
            for words in self.commands {
                let mut run = command(words[0]);
                run.args(&words[1..]).current_dir(there.join(self.client));
                succeeds(&mut run);
            }
        })
    }

    /// Runs these rows of the table.
    fn does_what_the_table_says(&self, driver: &str, rows: &[&str]) {
        let program = self.built().join("tests/clients/situations.py");
        let mut run = command("python3");
        run.arg(program).args(["--bin", BINARY, "--lang", driver, "--jobs", "3"]);
        run.args(["--rows", &rows.join(",")]);
        let Output { status, stdout, stderr } = run.output().unwrap();
        let told =
            [stdout, stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        assert!(status.success(), "{told}");
        eprintln!("{told}");
    }
}

/// The files below a directory.
fn list(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(Path::new(ROOT).join(directory)).unwrap() {
        let entry = entry.unwrap();
        let path = directory.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            if !MADE.iter().any(|made| entry.file_name() == *made) {
                list(&path, files);
            }
        } else {
            files.push(path);
        }
    }
}

#[test]
fn python_holds_a_lease_waits_in_line_and_stops_before_it_is_lost() {
    PYTHON.does_what_the_table_says("py", &["plain", "wait-longer-than-cap", "refresh-silent"]);
}

/// Not beside the rows, which tell by the clock: installing and starting Jest, NestJS and BullMQ takes
/// all of two cores.
mod recipes {
    use crate::support::process::{BINARY, command, succeeds};

    use super::TYPESCRIPT;

    #[test]
    fn each_recipe_of_the_typescript_page_runs_and_so_does_jest() {
        let program = TYPESCRIPT.built().join("tests/clients/recipes.mjs");
        succeeds(command("node").arg(program).arg(BINARY));
    }
}

mod rows {
    use super::{GO, PHP, PYTHON, ROWS, RUBY, SEVERAL, TYPESCRIPT};

    fn all() -> Vec<&'static str> {
        [&ROWS[..], &SEVERAL[..]].concat()
    }

    #[test]
    fn each_row_holds_in_php() {
        // Only PHP waits in the C library for a name server.
        let rows = [&ROWS[..], &["refresh-silent-without-names"]].concat();
        PHP.does_what_the_table_says("php", &rows);
    }

    #[test]
    fn each_row_holds_in_php_with_a_lease_that_the_work_refreshes() {
        let rows = ROWS.into_iter().filter(|row| *row != "refresh-silent").collect::<Vec<_>>();
        PHP.does_what_the_table_says("php-lock", &rows);
    }

    #[test]
    fn each_row_holds_in_python_with_threads() {
        PYTHON.does_what_the_table_says("py", &all());
    }

    #[test]
    fn each_row_holds_in_python_with_asyncio() {
        PYTHON.does_what_the_table_says("py-asyncio", &all());
    }

    #[test]
    fn each_row_holds_in_typescript() {
        TYPESCRIPT.does_what_the_table_says("ts", &all());
    }

    #[test]
    fn each_row_holds_in_go() {
        GO.does_what_the_table_says("go", &all());
    }

    #[test]
    fn each_row_holds_in_ruby() {
        RUBY.does_what_the_table_says("ruby", &all());
    }
}
