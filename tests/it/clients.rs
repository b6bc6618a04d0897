//! The clients of all languages in the situations of `clients/SITUATIONS.md`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use crate::support::packages::once;
use crate::support::process::{BINARY, command, succeeds};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// What a build or a run leaves beside the sources.
const MADE: [&str; 4] = ["node_modules", "dist", "build", "__pycache__"];

/// A language: the directory of its client, and how the client is built and tested there.
struct Language {
    client: &'static str,
    commands: &'static [&'static [&'static str]],
}

const PYTHON: Language = Language {
    client: "clients/python",
    commands: &[&["env", "PYTHONPATH=src", "python3", "-m", "unittest", "discover", "-s", "tests"]],
};

const TYPESCRIPT: Language = Language {
    client: "clients/typescript",
    commands: &[
        &["npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--loglevel=error"],
        &["npm", "run", "build", "--silent"],
        &["npm", "test", "--silent"],
    ],
};

const GO: Language = Language {
    client: "clients/go",
    commands: &[&["go", "vet", "./..."], &["go", "test", "./..."]],
};

impl Language {
    /// A copy of the client and of the programs that drive it, built and tested.
    fn built(&self) -> PathBuf {
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
                succeeds(run.env("LOCKKEEPER_BIN", BINARY));
            }
        })
    }

    /// Runs rows of the table, all without names.
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

mod all_rows {
    use super::{GO, PYTHON, TYPESCRIPT};

    #[test]
    fn each_row_holds_in_python_with_threads() {
        PYTHON.does_what_the_table_says("py", &[]);
    }

    #[test]
    fn each_row_holds_in_python_with_asyncio() {
        PYTHON.does_what_the_table_says("py-asyncio", &[]);
    }

    #[test]
    fn each_row_holds_in_typescript() {
        TYPESCRIPT.does_what_the_table_says("ts", &[]);
    }

    #[test]
    fn each_row_holds_in_go() {
        GO.does_what_the_table_says("go", &[]);
    }
}
