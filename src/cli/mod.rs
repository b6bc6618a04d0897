//! The command line: the commands and what each runs.

mod api_key;
mod claimant;
mod clock;
mod exec;
mod exit;
mod healthcheck;
mod hook;
mod listen;
mod live;
mod locks;
mod log;
mod manual;
mod mcp;
mod outer;
mod owner;
mod redlock;
mod reload;
mod remote;
mod runtime;
mod serve;
mod signals;
mod stderr;
mod table;
mod terminal;
mod voice;

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::error::ErrorKind::InvalidSubcommand;
use clap::{Arg, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use clap_complete::{Shell, generate};

use crate::cli::exit::Failure;
use crate::cli::voice::print;
use crate::config::{Config, ConfigError, Flags, Sources};
use crate::server::Server;

/// The commands with the exit codes of [`exit`].
const CLIENTS: &[&str] = &["exec", "acquire", "refresh", "release", "get", "list", "force-release"];

/// Words that other programs have for what these commands do, and the commands.
const TIPS: &[(&str, &str)] = &[
    (
        "lock",
        "`exec KEY COMMAND` holds a key while COMMAND runs, `acquire KEY` takes it for a script",
    ),
    ("unlock", "`release KEY` ends a lease by its token, `force-release KEY` without it"),
    ("status", "`get KEY` shows a key, `list` those that are held, `healthcheck` asks the service"),
    ("hold", "`exec KEY COMMAND` holds a key while COMMAND runs; POST /hold is for programs"),
    ("run", "`exec KEY COMMAND` runs COMMAND while it holds a key, `serve` runs the service"),
];

/// The settings file of the packages.
const PACKAGED: &str = "/etc/lockkeeper/lockkeeper.toml";

/// A lock service over HTTP: leases with fencing tokens, on an embedded store or on Redis.
#[derive(Debug, Parser)]
#[command(version, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve locks.
    Serve(SettingFlags),
    /// Print the settings in force and the source of each, without secrets.
    Config(ShownConfig),
    /// Check that the service is alive; exit code 0 if it is.
    Healthcheck(healthcheck::Healthcheck),
    /// Show or admit the nodes of a Redlock store.
    Redlock {
        #[command(subcommand)]
        what: redlock::NodeCommand,
        #[command(flatten)]
        settings: SettingFlags,
    },
    /// Make API keys.
    #[command(subcommand)]
    ApiKey(api_key::ApiKeyCommand),
    Exec(Box<exec::Exec>),
    #[command(flatten)]
    Lock(locks::LockCommand),
    Hook(hook::Hook),
    Mcp(mcp::Mcp),
    /// Print completions for a shell, as in `lockkeeper completions bash`.
    Completions {
        shell: Shell,
    },
    /// Print the manual page, as in `lockkeeper man | man -l -`.
    Man,
    /// Print the version.
    Version,
}

#[derive(Args, Debug)]
#[command(next_help_heading = "Settings of the service")]
struct SettingFlags {
    /// Settings file; config/lockkeeper.toml has every setting with its default. Without it, all
    /// but `serve` read /etc/lockkeeper/lockkeeper.toml if there is one.
    #[arg(long, global = true, env = "LOCKKEEPER_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Address to listen on, or unix:FILE for a unix socket [default: 127.0.0.1:8080].
    #[arg(long, global = true, value_name = "ADDRESS:PORT")]
    listen: Option<String>,
    /// Store of the locks: embedded:DIRECTORY, redis://host:port,
    /// redis-sentinel://host:port/master or redis-cluster://host:port, the last three with rediss
    /// over TLS; several redis:// are Redlock [default: embedded:./lockkeeper-data].
    #[arg(long, global = true, value_name = "URL")]
    store: Vec<String>,
}

#[derive(Args, Debug)]
struct ShownConfig {
    /// Print nothing, and refuse what `serve` would refuse, such as missing files of TLS. The store
    /// is not opened.
    #[arg(long)]
    check: bool,
    #[command(flatten)]
    settings: SettingFlags,
}

impl ShownConfig {
    fn run(self) -> Result<(), String> {
        let (sources, config) = settings(&self.settings.found())?;
        if !self.check {
            return print(&sources.show());
        }
        runtime::run(async {
            let addresses = listen::check(&config).await?;
            Server::check(&config, &addresses).map_err(|error| error.to_string())
        })?
    }
}

impl SettingFlags {
    /// The flags as they were given.
    fn given(self) -> Flags {
        Flags { config: self.config, listen: self.listen, store: self.store }
    }

    /// The same, with the settings file of the packages if none is named.
    fn found(self) -> Flags {
        let packaged = || Some(PathBuf::from(PACKAGED)).filter(|file| file.exists());
        let given = self.given();
        Flags { config: given.config.or_else(packaged), ..given }
    }
}

/// Runs the command line. Any error is one sentence on standard error.
pub fn run() -> ExitCode {
    if let Some(code) = exec::as_part_of_exec() {
        return code.into();
    }
    let cli = match parsed() {
        Ok(cli) => cli,
        Err(code) => return code,
    };
    let done = match cli.command {
        Command::Serve(flags) => return ended(serve::serve(flags.given())),
        Command::Exec(exec) => return exec::exec(*exec).into(),
        Command::Lock(verb) => return locks::run(&verb).into(),
        Command::Hook(hook) => return hook::hook(&hook).into(),
        Command::Mcp(mcp) => return mcp::mcp(mcp).into(),
        Command::Config(shown) => shown.run(),
        Command::Healthcheck(healthcheck) => healthcheck.run(),
        Command::Redlock { what, settings: flags } => {
            settings(&flags.found()).and_then(|(_, config)| redlock::redlock(&what, &config))
        }
        Command::ApiKey(what) => api_key::api_key(&what),
        Command::Completions { shell } => completions(shell),
        Command::Man => manual::manual(command()).and_then(|page| print(&page)),
        Command::Version => print(concat!("lockkeeper ", env!("CARGO_PKG_VERSION"), "\n")),
    };
    ended(done.map(|()| 0).map_err(exit::failed))
}

/// Releases a lease by its token in the environment, as `lockkeeper release` does.
fn release(fencing_token: &str, key: &str) -> Option<u8> {
    let words = ["lockkeeper", "release", "--quiet", "--fencing-token", fencing_token, "--", key];
    match Cli::from_arg_matches(&command().try_get_matches_from(words).ok()?).ok()?.command {
        Command::Lock(release) => Some(locks::run(&release)),
        _ => None,
    }
}

/// Reports why a command of the service itself failed, and returns its exit code.
fn ended(done: Result<u8, Failure>) -> ExitCode {
    let code = done.unwrap_or_else(|failure| {
        voice::last_words(&failure.why);
        failure.code
    });
    code.into()
}

/// The command line. Its help names variables, and shows no value of one. An empty variable is an
/// absent one.
fn command() -> clap::Command {
    let hidden = |arg: Arg| arg.hide_env_values(true);
    let is_empty = |name: &OsStr| std::env::var_os(name).is_some_and(|value| value.is_empty());
    let known = move |arg: Arg| match arg.get_env().is_some_and(is_empty) {
        true => arg.env(None::<&str>),
        false => hidden(arg),
    };
    let command = Cli::command().mut_subcommands(|command| command.mut_args(known));
    manual::with_examples(command)
}

/// The same with a usage for each command that does not change with the arguments: that of an error
/// would name `--url` where a variable has it, and not the other options.
fn with_usages(command: clap::Command) -> clap::Command {
    let mut whole = command.clone();
    whole.build();
    command.mut_subcommands(|command| {
        let built = whole.find_subcommand_mut(command.get_name());
        let usage = built.expect("one of the same commands").render_usage().to_string();
        let usage = usage.trim_start_matches("Usage:").trim_start().to_owned();
        command.override_usage(usage)
    })
}

/// Parses the arguments, or reports what is wrong with them and returns the exit code.
fn parsed() -> Result<Cli, ExitCode> {
    let command = || command().mut_subcommand("exec", exec::compatibility::added_to);
    let matches = command().try_get_matches();
    let matches = matches.or_else(|_| with_usages(command()).try_get_matches());
    let matches = matches.map_err(|error| misused(&error))?;
    if let Some(told) = matches.subcommand_matches("exec").and_then(exec::compatibility::refused) {
        voice::last_words(&told);
        return Err(exit::INTERNAL.into());
    }
    Cli::from_arg_matches(&matches).map_err(|error| misused(&error))
}

fn completions(shell: Shell) -> Result<(), String> {
    let mut text = Vec::new();
    generate(shell, &mut command(), "lockkeeper", &mut text);
    print(&String::from_utf8_lossy(&text))
}

/// Prints help, a version or a usage error; errors have the exit code of their command.
fn misused(error: &clap::Error) -> ExitCode {
    let word = std::env::args_os().nth(1).unwrap_or_default();
    match TIPS.iter().find(|(known, _)| error.kind() == InvalidSubcommand && word == *known) {
        Some((known, tip)) => voice::last_words(&format!("`{known}` is not a command: {tip}")),
        // Standard error may be closed.
        None => drop(error.print()),
    }
    match error.exit_code() {
        0 => ExitCode::SUCCESS,
        _ if CLIENTS.iter().any(|client| word == *client) => exit::INTERNAL.into(),
        _ => exit::WRONG_USAGE.into(),
    }
}

fn settings(flags: &Flags) -> Result<(Sources, Config), String> {
    let sources = Sources::find(flags, environment()?).map_err(|error| error.to_string())?;
    let config = Config::of(&sources).map_err(|error: ConfigError| error.to_string())?;
    Ok((sources, config))
}

/// The variables whose names are ours; another one may hold whatever it likes.
fn environment() -> Result<Vec<(String, String)>, String> {
    let mut found = Vec::new();
    for (name, text) in std::env::vars_os() {
        let Some(name) = name.into_string().ok().filter(|name| name.starts_with("LOCKKEEPER_"))
        else {
            continue;
        };
        let text = text.into_string().map_err(|_| format!("the variable {name} is not UTF-8"))?;
        found.push((name, text));
    }
    Ok(found)
}
