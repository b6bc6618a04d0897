//! What makes a module hard to take apart: two types of one name, and files in a circle.

use std::collections::{BTreeMap, BTreeSet};

use crate::layers::{module, named, within};
use crate::source::{File, assert_found, assert_none, files, is_word};

/// Names that two types of a module share, and what they are.
const TWINS: &[(&str, &str)] = &[
    ("store::OpenError", "that of any store, and that of the embedded one in it"),
    ("platform::Alarm", "that of Linux and that of other systems; one of them is compiled"),
    ("platform::Arrivals", "as platform::Alarm"),
];

#[test]
fn a_name_means_one_type_in_a_module() {
    assert_none(&twins(&files("src", "rs"), TWINS));
}

#[test]
fn no_files_name_each_other_in_a_circle() {
    assert_none(&circles(&files("src", "rs")));
    let judge = files("prove/src", "rs").into_iter();
    let judge = judge.map(|file| File::planted(file.path.trim_start_matches("prove/"), &file.text));
    assert_none(&circles(&judge.collect::<Vec<_>>()));
}

fn twins(files: &[File], listed: &[(&str, &str)]) -> Vec<String> {
    let mut places: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for file in files {
        let module = module(&file.path);
        let top = module.split("::").next().unwrap();
        for name in file.code_before_tests().lines().filter_map(type_of) {
            places.entry(format!("{top}::{name}")).or_default().push(&file.path);
        }
    }
    places.retain(|_, paths| paths.len() > 1);
    let unlisted = places.iter().filter(|(name, _)| listed.iter().all(|(one, _)| one != name));
    let mut faults: Vec<_> =
        unlisted.map(|(name, paths)| format!("two types {name}: {}", paths.join(" "))).collect();
    for (name, _) in listed.iter().filter(|(name, _)| !places.contains_key(*name)) {
        faults.push(format!("{name}: is listed for nothing"));
    }
    faults
}

/// The type that a line defines; those within functions are no names of a module.
fn type_of(line: &str) -> Option<&str> {
    let kinds = ["struct ", "enum ", "trait ", "type "];
    let (before, rest) = kinds.iter().find_map(|kind| line.split_once(kind))?;
    let end = rest.find(|letter| !is_word(letter)).unwrap_or(rest.len());
    (before.is_empty() || before.starts_with("pub")).then_some(&rest[..end])
}

fn circles(files: &[File]) -> Vec<String> {
    let modules: BTreeSet<_> = files.iter().map(|file| module(&file.path)).collect();
    let names: BTreeMap<_, _> =
        files.iter().map(|file| (module(&file.path), other_modules(file, &modules))).collect();
    let reached: BTreeMap<_, _> = modules.iter().map(|one| (one, reached(one, &names))).collect();
    let mut faults = Vec::new();
    for one in &modules {
        let circle = reached[one].iter().filter(|other| reached[other].contains(one));
        let circle: Vec<_> = circle.map(String::as_str).collect();
        if circle.first() == Some(&one.as_str()) {
            faults.push(format!("a circle of files: {}", circle.join(" ")));
        }
    }
    faults
}

/// The modules that a file names, except those that it is in and those in it.
fn other_modules(file: &File, modules: &BTreeSet<String>) -> BTreeSet<String> {
    let own = module(&file.path);
    let code = file.code_before_tests().replace("pub(in crate::", "pub(in ");
    let homes = named(&code).into_iter().filter_map(|mut path| {
        while !modules.contains(&path) {
            path.truncate(path.rfind("::")?);
        }
        Some(path)
    });
    homes.filter(|other| !within(&own, other) && !within(other, &own)).collect()
}

/// The modules that lie behind those that `one` names, and these.
fn reached(one: &str, names: &BTreeMap<String, BTreeSet<String>>) -> BTreeSet<String> {
    let (mut reached, mut next) = (BTreeSet::new(), vec![one]);
    while let Some(module) = next.pop() {
        for other in &names[module] {
            if reached.insert(other.clone()) {
                next.push(other);
            }
        }
    }
    reached
}

#[test]
fn a_second_type_of_a_name_is_found() {
    let file = |path: &str, text: &str| File::planted(path, text);
    let one = || file("src/a/b.rs", "pub(super) struct Call<'a> {\n}\n");
    for kind in ["enum Call {}", "pub trait Call {}", "pub(in crate::a) type Call = u8;"] {
        assert_found(&twins(&[one(), file("src/a/mod.rs", kind)], &[]), "two types a::Call");
    }
    for (path, text) in [
        ("src/c/d.rs", "struct Call;"),
        ("src/a/c.rs", "struct Caller; // struct Call"),
        ("src/a/c.rs", "fn a() {\n    struct Call;\n}"),
        ("src/a/c.rs", "#[cfg(test)]\nmod tests {}\nstruct Call;"),
    ] {
        assert_none(&twins(&[one(), file(path, text)], &[]));
    }
    let listed = &[("a::Call", "why")];
    assert_none(&twins(&[one(), one()], listed));
    assert_found(&twins(&[one()], listed), "a::Call: is listed for nothing");
}

#[test]
fn a_circle_of_files_is_found() {
    let planted = |code: &[(&str, &str)]| -> Vec<_> {
        code.iter().map(|(path, text)| File::planted(path, text)).collect()
    };
    let two = planted(&[
        ("src/a/b.rs", "use crate::a::c::{C, D};"),
        ("src/a/c.rs", "fn c() { crate::a::b::d() }"),
    ]);
    assert_found(&circles(&two), "a circle of files: a::b a::c");
    let three = planted(&[
        ("src/a/b.rs", "use crate::a::{C, c};"),
        ("src/a/c.rs", "use crate::d::D;"),
        ("src/a/mod.rs", ""),
        ("src/d.rs", "use crate::a::b;"),
    ]);
    assert_found(&circles(&three), "a::b a::c d");
    let none = planted(&[
        ("src/a/b.rs", "use crate::a::{A, c};"),
        ("src/a/c.rs", "use crate::a::A;\n#[cfg(test)]\nmod tests { use crate::a::b; }"),
        ("src/a/mod.rs", "pub use crate::a::b::B;"),
    ]);
    assert_none(&circles(&none));
}
