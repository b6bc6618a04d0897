//! The pages that name tests: the track record, and the list of those to read first.

use std::collections::BTreeSet;

use crate::source::{File, assert_found, assert_none, files, is_word};

/// The fewest tests that the page names: with a name written in another way none would be held.
const LEAST: usize = 50;

#[test]
fn every_test_that_the_track_record_names_is_there() {
    let mut sources = files("tests", "rs");
    sources.extend(files("src", "rs"));
    sources.extend(files("prove", "rs"));
    let page = File::read("docs/track-record.md");
    let named = named_tests(&page);
    assert!(named.len() >= LEAST, "only {} tests are named", named.len());
    assert_none(&missing(&page, &sources));
    assert_none(&missing(&File::read("CONTRIBUTING.md"), &sources));
    assert_none(&missing(&File::read("SECURITY.md"), &sources));
}

/// What stands between backquotes and is a path of names in lower case.
fn named_tests(page: &File) -> BTreeSet<&str> {
    let spans = page.text.split('`').skip(1).step_by(2);
    let paths = spans.map(|span| span.trim_start_matches("lib "));
    let is_path =
        |path: &&str| path.contains("::") && path.split("::").all(|name| name.chars().all(is_word));
    paths.filter(is_path).collect()
}

fn missing(page: &File, sources: &[File]) -> Vec<String> {
    let there: BTreeSet<_> = sources.iter().flat_map(|file| functions(&file.text)).collect();
    let name = |path: &str| path.rsplit("::").next().unwrap().to_owned();
    let named = named_tests(page).into_iter().filter(|path| !there.contains(&name(path)));
    named.map(|path| format!("{}: there is no test {path}", page.path)).collect()
}

fn functions(text: &str) -> impl Iterator<Item = String> {
    let begins = text.split("fn ").skip(1);
    begins.map(|rest| rest.chars().take_while(|letter| is_word(*letter)).collect())
}

#[test]
fn a_test_that_there_is_not_is_found() {
    let page = File::planted("docs/track-record.md", "`a::b` and `lib c::d`, `e f`, `g`");
    assert_eq!(named_tests(&page), BTreeSet::from(["a::b", "c::d"]));
    let source = File::planted("tests/it/a.rs", "async fn b() {}");
    assert_found(&missing(&page, std::slice::from_ref(&source)), "no test c::d");
}
