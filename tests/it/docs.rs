//! The page of the contract in a browser, and the library that shows it.

use std::path::{Path, PathBuf};

use crate::support::Process;
use crate::support::packages::{TESTS, node_modules};
use crate::support::process::{command, succeeds};

const VENDORED: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/vendor/scalar");

/// What a browser shows is looked at by `docs.mjs`, in every view that it lists.
#[test]
fn a_browser_shows_the_page_without_a_fault_and_asks_no_other_host() {
    let directory = tempfile::tempdir().unwrap();
    let store = format!("embedded:{}", directory.path().join("data").display());
    let service = Process::start_with(&["--store", &store], &[]);
    let url = format!("{}/docs", service.http().url());
    let mut node = command("node");
    node.arg(Path::new(TESTS).join("ui/docs.mjs")).arg(node_modules("ui")).arg(url);
    // Whoever wants to look at it names a directory.
    let screenshots =
        std::env::var_os("SCREENSHOTS").map_or_else(|| directory.path().into(), Into::into);
    let found = succeeds(node.arg::<PathBuf>(screenshots));
    assert_eq!(found, "");
}

#[test]
fn the_library_is_the_one_that_its_page_names() {
    let mut shell = command("sh");
    let digest =
        succeeds(shell.current_dir(VENDORED).args(["-c", "gzip -dc standalone.js.gz | sha256sum"]));
    let page = std::fs::read_to_string(Path::new(VENDORED).join("README.md")).unwrap();
    assert!(page.contains(&format!("`{}`", digest.trim_end_matches("  -"))), "{digest}: {page}");
}
