//! The settings: what the file documents is what the service reads, and the other way round.

use std::collections::BTreeSet;

use toml::{Table, Value};

use crate::source::{File, assert_found, assert_none, files, is_word, words};

const DOCUMENTED: &str = "config/lockkeeper.toml";
const READ: &str = "src/config/mod.rs";
/// The lists, which stand in the file as an example only: name, file and type of their entries.
const LISTS: [(&str, &str, &str); 2] = [
    ("prefixes", "src/config/prefixes.rs", "PrefixSection"),
    ("api_keys", "src/auth/mod.rs", "ApiKey"),
];

#[test]
fn every_setting_is_documented_and_every_documented_one_is_read() {
    let (documented, read) = (File::read(DOCUMENTED), File::read(READ));
    assert_none(&differences(&leaves(&documented.text), &fields_below(&read, "Config", "")));
    for (list, path, entry) in LISTS {
        let read = fields(&File::read(path), entry).into_iter().map(|(name, _)| name).collect();
        assert_none(&differences(&example(&documented.text, list), &read));
    }
}

#[test]
fn every_setting_has_an_effect() {
    let read = File::read(READ);
    let mut code = read.code_before_tests(); // Not bounds.rs: to check a setting is not to use it.
    for file in files("src/server", "rs").iter().chain(&files("src/cli", "rs")) {
        code.push_str(&file.code_before_tests());
    }
    assert_none(&unused(&fields_below(&read, "Config", ""), &code));
}

/// Every documented setting.
pub(crate) fn documented() -> BTreeSet<String> {
    leaves(&File::read(DOCUMENTED).text)
}

/// The settings of the lists' entries.
pub(crate) fn of_lists() -> BTreeSet<String> {
    let text = File::read(DOCUMENTED).text;
    let of = |list| example(&text, list).into_iter().map(move |name| format!("{list}.{name}"));
    LISTS.into_iter().flat_map(|(list, ..)| of(list)).collect()
}

fn leaves(text: &str) -> BTreeSet<String> {
    fn open(section: &str, table: Table, found: &mut BTreeSet<String>) {
        for (name, value) in table {
            match value {
                Value::Table(table) => open(&format!("{section}{name}."), table, found),
                _ => assert!(found.insert(format!("{section}{name}"))),
            }
        }
    }
    let mut found = BTreeSet::new();
    open("", text.parse().unwrap(), &mut found);
    found
}

/// The names in the example of a list's entry, which is a comment.
fn example(text: &str, list: &str) -> BTreeSet<String> {
    let lines = text.lines().skip_while(|line| *line != format!("# [[{list}]]")).skip(1);
    let lines = lines
        .take_while(|line| line.starts_with('#'))
        .filter_map(|line| line.strip_prefix("# ")?.split_once(" = "));
    lines.map(|(name, _)| name.to_owned()).filter(|name| name.chars().all(is_word)).collect()
}

/// The fields of a struct with their types, as they are written.
fn fields(file: &File, name: &str) -> Vec<(String, String)> {
    let code = file.code();
    let Some((_, body)) = code.split_once(&format!("struct {name} {{")) else { return Vec::new() };
    let lines = body.split('}').next().unwrap().lines();
    let lines =
        lines.map(|line| line.trim().trim_start_matches("pub(crate) ").trim_start_matches("pub "));
    let lines = lines.filter_map(|line| line.strip_suffix(',')?.split_once(": "));
    lines.map(|(name, its)| (name.to_owned(), its.to_owned())).collect()
}

/// The fields of a struct, those of its sections with the section's name before them; lists stand
/// in the file as an example only.
fn fields_below(file: &File, name: &str, section: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for (field, its) in fields(file, name).into_iter().filter(|(_, its)| !its.starts_with("Vec<")) {
        let path = format!("{section}{field}");
        if fields(file, &its).is_empty() {
            found.insert(path);
        } else {
            found.extend(fields_below(file, &its, &format!("{path}.")));
        }
    }
    found
}

fn differences(documented: &BTreeSet<String>, read: &BTreeSet<String>) -> Vec<String> {
    let unread = documented.difference(read).map(|path| format!("nothing reads `{path}`"));
    let unknown = read.difference(documented).map(|path| format!("`{path}` is not documented"));
    unread.chain(unknown).collect()
}

/// Settings whose names stand nowhere but where they are read.
fn unused(read: &BTreeSet<String>, code: &str) -> Vec<String> {
    let name = |path: &str| path.rsplit('.').next().unwrap().to_owned();
    let idle =
        read.iter().filter(|path| words(code).filter(|word| *word == name(path)).count() < 2);
    idle.map(|path| format!("`{path}` has no effect")).collect()
}

#[test]
fn a_setting_on_one_side_only_is_found() {
    let code = "pub struct Config {\n    /// A.\n    pub listen: String,\n    pub(crate) ttl: TtlSettings,\n    \
                pub api_keys: Vec<ApiKey>,\n}\nstruct TtlSettings {\n    min: Span,\n}\n\
                struct Span(Duration);\nlet a = config.listen;";
    let file = File::planted(READ, code);
    let read = fields_below(&file, "Config", "");
    assert_none(&differences(&leaves("listen = 'a'\n[ttl]\nmin = '1s'"), &read));
    assert_found(&differences(&leaves("listen = 'a'"), &read), "`ttl.min` is not documented");
    let more = leaves("listen = 'a'\n[ttl]\nmin = '1s'\nmax = '2s'");
    assert_found(&differences(&more, &read), "nothing reads `ttl.max`");
    assert_found(&unused(&read, code), "`ttl.min` has no effect");
    let text = "a = 1\n# b = 2\n# [[c]]\n# name = 'd' # e\n#    # f = g\n\n# [[h]]\n# i = 1\n";
    assert_eq!(example(text, "c").into_iter().collect::<Vec<_>>(), ["name"]);
    assert_eq!(example(text, "h").into_iter().collect::<Vec<_>>(), ["i"]);
}
