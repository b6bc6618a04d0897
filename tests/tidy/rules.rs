//! The numbers of rules, and the files, that sources and ARCHITECTURE.md name.

use std::collections::BTreeSet;

use crate::source::{File, assert_found, assert_none, files, is_word};

/// The rules of a lease, and those of Redlock with the sources that name them.
const LEASE: &str = "docs/rules.md";
const REDLOCK: &str = "src/store/redlock/rules.md";
const NODES: &str = "src/store/redlock/";

/// The endings of the files that ARCHITECTURE.md names.
const ENDINGS: [&str; 5] = [".rs", ".lua", ".html", ".yaml", ".toml"];

#[test]
fn every_rule_that_a_source_names_is_on_its_page() {
    let mut sources = files("src", "rs");
    sources.extend(files("src", "lua"));
    for (page, of_nodes) in [(LEASE, false), (REDLOCK, true)] {
        let all = on(&File::read(page));
        let sources = sources.iter().filter(|file| file.path.starts_with(NODES) == of_nodes);
        let sources: Vec<_> = sources.filter(|file| !named(&file.text).is_empty()).collect();
        assert!(sources.len() >= 5 && all.len() >= 10, "{page}: {all:?} in {sources:?}");
        assert_none(&sources.iter().flat_map(|file| strange(file, &all)).collect::<Vec<_>>());
    }
}

#[test]
fn the_head_of_a_source_names_every_rule_that_its_functions_have() {
    assert_none(&files(NODES, "rs").iter().flat_map(beside_the_head).collect::<Vec<_>>());
}

#[test]
fn every_file_that_the_architecture_names_is_there() {
    let kinds =
        [("src", "rs"), ("src", "lua"), ("src", "html"), ("config", "toml"), ("tests", "rs")];
    let all = kinds.into_iter().chain([("benches", "rs"), ("fuzz", "rs"), ("prove", "rs")]);
    let mut there: Vec<_> = all
        .flat_map(|(directory, ending)| files(directory, ending))
        .map(|file| file.path)
        .collect();
    there.push("openapi.yaml".to_owned());
    let page = File::read("ARCHITECTURE.md");
    assert!(names(&page).len() > 40, "only {:?}", names(&page));
    assert_none(&absent(&page, &there));
}

/// The numbers of the rules of a page: `1. **One.**` or `- **R1 One.**`.
fn on(page: &File) -> BTreeSet<usize> {
    let first = |line: &str| line.trim_start_matches("- **").split(' ').next().and_then(number);
    page.text.lines().filter(|line| line.contains("**")).filter_map(first).collect()
}

/// `4`, `4.` and `R4`.
fn number(word: &str) -> Option<usize> {
    let word = word.trim_end_matches([',', ':', '.', ';', ')', '`']);
    word.strip_prefix('R').unwrap_or(word).parse().ok()
}

/// The numbers of the rules that a text names: `rule 2`, `Rules 2 to 5, 8 and 9`, `R2 and R4`.
fn named(text: &str) -> BTreeSet<usize> {
    let mut numbers = BTreeSet::new();
    let (mut last, mut is_range, mut is_rule) = (0, false, false);
    for word in text.split_whitespace() {
        let is_named = word.starts_with('R') && number(word).is_some();
        match number(word).filter(|_| is_rule || is_named) {
            Some(number) => {
                numbers.extend(if is_range { last..=number } else { number..=number });
                (last, is_range) = (number, false);
                is_rule = !word.ends_with([':', '.', ';', ')']);
            }
            None if last > 0 && is_rule && ["and", "to"].contains(&word) => is_range = word == "to",
            None => {
                is_rule = ["rule", "rules", "Rule", "Rules"].contains(&word);
                (last, is_range) = (0, false);
            }
        }
    }
    numbers
}

fn strange(file: &File, all: &BTreeSet<usize>) -> Vec<String> {
    let strange = named(&file.text).into_iter().filter(|number| !all.contains(number));
    strange.map(|number| format!("{}: there is no rule {number}", file.path)).collect()
}

/// The rules that a source names and its head does not, if its head names any.
fn beside_the_head(file: &File) -> Vec<String> {
    let (head, rest): (Vec<_>, Vec<_>) =
        file.text.lines().partition(|line| line.starts_with("//!"));
    let (head, rest) = (named(&head.join("\n")), named(&rest.join("\n")));
    let beside = rest.difference(&head).filter(|_| !head.is_empty());
    beside.map(|number| format!("{}: its head lacks rule {number}", file.path)).collect()
}

/// The files that a page names in code, from any directory.
fn names(page: &File) -> BTreeSet<&str> {
    let spans = page.text.split('`').skip(1).step_by(2);
    let is_path = |span: &&str| span.chars().all(|one| is_word(one) || "/-.".contains(one));
    let has_name = |span: &&str| {
        ENDINGS.iter().any(|ending| span.len() > ending.len() && span.ends_with(ending))
    };
    spans.filter(is_path).filter(has_name).collect()
}

fn absent(page: &File, there: &[String]) -> Vec<String> {
    let is_there =
        |name: &str| there.iter().any(|path| format!("/{path}").ends_with(&format!("/{name}")));
    let absent = names(page).into_iter().filter(|name| !is_there(name));
    absent.map(|name| format!("{}: there is no file {name}", page.path)).collect()
}

#[test]
fn a_rule_or_a_file_that_is_not_there_is_found() {
    assert_eq!(
        named("Rules 2 to 4, 8 and 9: a rule of thumb, rule 12."),
        BTreeSet::from([2, 3, 4, 8, 9, 12])
    );
    assert_eq!(named("R2 to R4, R8 and R9: 5 votes, R11."), BTreeSet::from([2, 3, 4, 8, 9, 11]));
    assert_eq!(
        on(&File::planted(REDLOCK, "- **R1 One.**\n- **R2 Two.**\n")),
        BTreeSet::from([1, 2])
    );
    let page = File::planted(LEASE, "1. **One.** A rule.\n2. **Two.**\n");
    assert_found(
        &strange(&File::planted("src/a.rs", "/// Rules 1 to 3: b.\n"), &on(&page)),
        "rule 3",
    );
    let source = File::planted("src/a.rs", "//! Rule 1: a.\n\n/// Rules 1 and 2: b.\n");
    assert_found(&beside_the_head(&source), "its head lacks rule 2");
    let page = File::planted("ARCHITECTURE.md", "`a/b.rs`, `c.rs`, `.rs`");
    let there = ["src/a/b.rs", "src/cc.rs"].map(str::to_owned);
    assert_found(&absent(&page, &there), "no file c.rs");
}
