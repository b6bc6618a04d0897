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
    let all = kinds.into_iter().chain([("benches", "rs"), ("prove", "rs")]);
    let mut there: Vec<_> = all
        .flat_map(|(directory, ending)| files(directory, ending))
        .map(|file| file.path)
        .collect();
    there.push("openapi.yaml".to_owned());
    let page = File::read("ARCHITECTURE.md");
    assert!(names(&page).len() > 40, "only {:?}", names(&page));
    assert_none(&absent(&page, &there));
}

/// The numbers of the rules of a page.
fn on(page: &File) -> BTreeSet<usize> {
    let lines = page.text.lines().filter_map(|line| line.split_once(". "));
    lines.filter_map(|(number, _)| number.parse().ok()).collect()
}

/// The numbers behind `rule` and `rules`: `2`, `2 and 4`, `2 to 5, 8 and 9`.
fn named(text: &str) -> BTreeSet<usize> {
    let mut numbers = BTreeSet::new();
    let text = text.replace("rules ", "rule ").replace("Rules ", "rule ").replace("Rule ", "rule ");
    for rest in text.split("rule ").skip(1) {
        let (mut last, mut is_range) = (0, false);
        for word in rest.split_whitespace() {
            let number = word.trim_end_matches([',', ':', '.', ';', ')', '`']);
            match number.parse::<usize>() {
                Ok(number) => {
                    numbers.extend(if is_range { last..=number } else { number..=number });
                    (last, is_range) = (number, false);
                }
                Err(_) if last > 0 && ["and", "to"].contains(&word) => is_range = word == "to",
                Err(_) => break,
            }
            if word.ends_with([':', '.', ';', ')']) {
                break;
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
