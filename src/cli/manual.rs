//! The examples in the help of the commands, and the manual page.

use clap::Command;
use clap_mangen::Man;

/// Commands with their examples.
const EXAMPLES: [(&str, &[&str]); 15] = [
    (
        "serve",
        &[
            "lockkeeper serve",
            "lockkeeper serve --store redis://redis:6379 --listen 127.0.0.1:8080",
        ],
    ),
    (
        "config",
        &["lockkeeper config --config lockkeeper.toml", "lockkeeper config --check || exit"],
    ),
    ("healthcheck", &["lockkeeper healthcheck --listen 127.0.0.1:8080"]),
    ("redlock", &["lockkeeper redlock status", "lockkeeper redlock admit redis-2:6379"]),
    ("api-key", &["lockkeeper api-key new web-1"]),
    (
        "exec",
        &[
            "lockkeeper exec -n nightly -- report.sh  # not if it runs elsewhere",
            "lockkeeper exec -w 10m -T 1h30m deploy/shop -- make deploy  # in line",
            "lockkeeper exec --slots 3 gpu -- ./train  # three at a time",
            "lockkeeper exec --slots 8 --units 3 gpu -- ./train  # on three of eight",
        ],
    ),
    (
        "acquire",
        &[
            "lockkeeper acquire -w 10s --token-file lease report",
            "LOCK_TOKEN=$(lockkeeper acquire -n report) || exit",
        ],
    ),
    ("refresh", &["lockkeeper refresh --ttl 5m --token-file lease report"]),
    ("release", &["lockkeeper release --token-file lease report"]),
    ("get", &["lockkeeper get report"]),
    ("list", &["lockkeeper list --prefix deploy/", "lockkeeper list --json"]),
    ("force-release", &["lockkeeper force-release --reason OPS-7 report"]),
    ("hook", &["lockkeeper hook --ttl 10m  # as a harness runs it"]),
    ("mcp", &["lockkeeper mcp  # as a harness starts it"]),
    ("completions", &["lockkeeper completions bash > /etc/bash_completion.d/lockkeeper"]),
];

/// The exit codes, as docs/reference.md has them.
const EXIT_STATUS: [(&str, &str); 13] = [
    ("0", "it worked; exec: COMMAND's own exit code"),
    ("1", "a command of the service itself failed, or serve cannot start"),
    ("2", "wrong usage of those"),
    ("3", "serve was ended by a signal before all requests were answered"),
    ("4", "serve failed while serving: restart it"),
    ("69", "the service is unreachable"),
    ("75", "another client holds the key"),
    ("79", "the lease is lost"),
    ("80", "an outer exec has the key, and would be waited for"),
    ("124", "exec: COMMAND ran longer than --max-run"),
    ("125", "wrong usage, a refused request, or an internal error"),
    ("141", "get, list: standard output has no reader any more"),
    ("126, 127", "exec: COMMAND cannot be executed, or was not found"),
];

/// The command with examples in the help of each of its commands.
pub(super) fn with_examples(command: Command) -> Command {
    EXAMPLES.into_iter().fold(command, |command, (name, examples)| {
        let text = format!("Examples:\n  {}", examples.join("\n  "));
        command.mut_subcommand(name, |command| command.after_help(text))
    })
}

/// One page in roff, with a section for each command.
pub(super) fn manual(mut command: Command) -> Result<String, String> {
    command.build();
    let page = || {
        let mut text = Vec::new();
        let man = Man::new(command.clone());
        man.render_title(&mut text)?;
        man.render_name_section(&mut text)?;
        man.render_synopsis_section(&mut text)?;
        man.render_description_section(&mut text)?;
        parts(&command).try_for_each(|part| describe("", part, &mut text))?;
        Ok(text)
    };
    let page = page().map_err(|error: std::io::Error| error.to_string())?;
    let examples = EXAMPLES.iter().flat_map(|(_, examples)| examples.iter());
    let examples = examples.map(|example| format!(".PP\n{}\n", escaped(example)));
    Ok([
        String::from_utf8_lossy(&page).into_owned(),
        section("EXIT STATUS", EXIT_STATUS.map(|(code, what)| item(code, what))),
        section("ENVIRONMENT", variables(&command)),
        section("EXAMPLES", examples),
    ]
    .concat())
}

/// The section of a command, and those of its own commands.
fn describe(before: &str, command: &Command, text: &mut Vec<u8>) -> std::io::Result<()> {
    let name = format!("{before}{}", command.get_name().to_uppercase());
    text.extend(format!(".SH \"{name}\"\n").bytes());
    let page = Man::new(command.clone());
    page.render_synopsis_section(text)?;
    page.render_description_section(text)?;
    page.render_options_section(text)?;
    parts(command).try_for_each(|part| describe(&format!("{name} "), part, text))
}

/// The commands of a command that have anything to say.
fn parts(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|part| !["help", "man", "version"].contains(&part.get_name()))
}

/// The variables that set an option, each once.
fn variables(command: &Command) -> Vec<String> {
    let mut found = vec![
        item("LOCKKEEPER_API_KEY", "The API key."),
        item("LOCK_TOKEN", "The token of refresh and release, where no file is named."),
    ];
    for arg in command.get_subcommands().flat_map(Command::get_arguments) {
        let Some(name) = arg.get_env() else { continue };
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        found.push(item(&name.to_string_lossy(), &help));
    }
    found.sort();
    found.dedup();
    found
}

fn section(name: &str, items: impl IntoIterator<Item = String>) -> String {
    format!(".SH \"{name}\"\n") + &items.into_iter().collect::<String>()
}

fn item(name: &str, what: &str) -> String {
    format!(".TP\n{}\n{}\n", escaped(name), escaped(what))
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-")
}

#[cfg(test)]
mod tests {
    use super::EXAMPLES;
    use crate::cli::command;

    #[test]
    fn each_command_has_examples_that_are_accepted() {
        for part in command().get_subcommands() {
            let name = part.get_name();
            let has = EXAMPLES.iter().any(|(command, _)| *command == name);
            assert!(has || ["man", "version"].contains(&name), "{name}");
        }
        for example in EXAMPLES.iter().flat_map(|(_, examples)| examples.iter()) {
            let typed = example.trim_start_matches("LOCK_TOKEN=$(");
            let words = typed.split([')', '#', '>', '|']).next().unwrap().split_whitespace();
            // The help of a terminal of 80 columns has them on a line each.
            assert!(example.len() <= 76, "{example}");
            let parsed = command().try_get_matches_from(words);
            assert!(parsed.is_ok(), "{example}: {}", parsed.unwrap_err());
        }
    }
}
