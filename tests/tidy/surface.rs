//! What stays until 2.0, by name: a change of it is a change of docs/surface.txt, which reviewers see.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;

use crate::metrics::exported_with_labels;
use crate::settings::{documented, of_lists};
use crate::source::{File, assert_found, assert_none};

const LISTED: &str = "docs/surface.txt";

#[test]
fn what_stays_until_2_0_is_listed_and_exists() {
    let mut found = BTreeSet::new();
    commands(&mut Vec::new(), &mut found);
    found.extend(man("EXIT STATUS").into_iter().flat_map(exit_codes));
    found.extend(man("ENVIRONMENT").into_iter().map(|name| format!("variable {name}")));
    let settings = documented().into_iter().chain(of_lists());
    found.extend(settings.map(|name| format!("setting {name}")));
    found.extend(exported_with_labels().into_iter().map(|metric| format!("metric {metric}")));
    found.extend(contract(&File::read("openapi.yaml").text));
    let listed: BTreeSet<_> = File::read(LISTED).text.lines().map(str::to_owned).collect();
    assert_none(&differences(&listed, &found));
}

/// The lines to remove and to add, as a patch has them.
fn differences(listed: &BTreeSet<String>, found: &BTreeSet<String>) -> Vec<String> {
    let gone = listed.difference(found).map(|line| format!("{LISTED}: - {line}"));
    let new = found.difference(listed).map(|line| format!("{LISTED}: + {line}"));
    gone.chain(new).collect()
}

fn printed(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_lockkeeper"))
        .args(arguments)
        .env_clear()
        .output()
        .unwrap();
    assert!(output.status.success(), "{arguments:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// The flags of a command, and all commands below it.
fn commands(path: &mut Vec<String>, found: &mut BTreeSet<String>) {
    let words: Vec<_> = path.iter().map(String::as_str).collect();
    let help = printed(&[&words[..], &["--help"]].concat());
    let name = words.join(" ");
    let own = flags(&help).into_iter().filter(|flag| !flag.ends_with("--help"));
    found.extend(own.map(|flag| match name.as_str() {
        "" => format!("command {flag}"),
        name => format!("command {name} {flag}"),
    }));
    for inner in section(&help, "Commands:").into_iter().filter(|inner| inner != "help") {
        path.push(inner);
        found.insert(format!("command {}", path.join(" ")));
        commands(path, found);
        path.pop();
    }
}

/// The first words of the lines of a section, but for those that go on with the line before.
fn section(help: &str, title: &str) -> Vec<String> {
    let lines = help.lines().skip_while(|line| *line != title).skip(1);
    let lines = lines.take_while(|line| !line.is_empty());
    let own = lines.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    own.filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// The flags of a help text, each with its short form and its value, and their other names.
fn flags(help: &str) -> Vec<String> {
    let mut flags = Vec::new();
    for line in help.lines().map(str::trim_start) {
        let aliases = line.strip_prefix("[alias: ").or_else(|| line.strip_prefix("[aliases: "));
        match aliases.and_then(|rest| rest.strip_suffix(']')) {
            Some(names) => flags.extend(names.split(", ").map(str::to_owned)),
            None if line.starts_with('-') => {
                let names = line.split("  ").next().unwrap();
                let names = names.split(" [default").next().unwrap();
                flags.push(names.trim().to_owned());
            }
            None => (),
        }
    }
    flags
}

/// The names in a section of the manual page.
fn man(title: &str) -> Vec<String> {
    let page = printed(&["man"]);
    let begin = format!(".SH \"{title}\"");
    let lines = page.lines().skip_while(|line| *line != begin).skip(1);
    let lines: Vec<_> = lines.take_while(|line| !line.starts_with(".SH")).collect();
    assert!(lines.contains(&".TP"), "the manual page has no {title}");
    lines
        .split(|line| *line == ".TP")
        .filter_map(|entry| Some((*entry.first()?).to_owned()))
        .collect()
}

fn exit_codes(names: String) -> Vec<String> {
    names.split(", ").map(|code| format!("exit code {code}")).collect()
}

/// The operations, and the codes of problems.
fn contract(openapi: &str) -> BTreeSet<String> {
    let spec: Value = serde_norway::from_str(openapi).unwrap();
    let mut found = BTreeSet::new();
    for (path, operations) in spec["paths"].as_object().unwrap() {
        let methods = operations.as_object().unwrap().keys().filter(|name| *name != "parameters");
        found.extend(methods.map(|method| format!("operation {} {path}", method.to_uppercase())));
    }
    let codes = &spec["components"]["schemas"]["Problem"]["properties"]["code"]["description"];
    let codes = codes.as_str().unwrap().split('`').skip(1).step_by(2);
    found.extend(codes.map(|code| format!("code {code}")));
    found
}

#[test]
fn a_removed_flag_and_a_new_one_are_found() {
    let set = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect();
    let listed = set(&["command exec --wait <DURATION>"]);
    assert_none(&differences(&listed, &listed));
    assert_found(&differences(&listed, &set(&[])), "- command exec --wait");
    assert_found(&differences(&set(&[]), &listed), "+ command exec --wait");
}

#[test]
fn a_help_text_has_commands_flags_and_other_names() {
    let help = "Commands:\n  get   Print\n          more\n  help  Print\n\nOptions:\n  -w, --wait \
                <D>\n          Wait [default: forever]\n          \n          [alias: --timeout]\n\n  \
                    --shared\n          Share\n";
    assert_eq!(section(help, "Commands:"), ["get", "help"]);
    assert_eq!(flags(help), ["-w, --wait <D>", "--timeout", "--shared"]);
}
