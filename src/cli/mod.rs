//! The command line: its words, and what each runs.

mod healthcheck;
mod serve;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use clap::Parser;
use clap::Subcommand;

use crate::config::Config;
use crate::config::ConfigError;
use crate::config::Flags;
use crate::config::Sources;

/// A lock service over HTTP: leases with fencing tokens, on an embedded store or on Redis.
#[derive(Debug, Parser)]
#[command(version, disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    settings: Settings,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve locks (also without a word).
    Serve,
    /// Print the settings in force and where each came from, without secrets.
    Config,
    /// Ask the service of these settings whether it lives; exit code 0 if it does.
    Healthcheck,
    /// Print the version.
    Version,
}

#[derive(Args, Debug)]
struct Settings {
    /// A settings file; config/lockkeeper.toml has every setting with its default.
    #[arg(long, global = true, env = "LOCKKEEPER_CONFIG", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where to listen [default: 127.0.0.1:8080].
    #[arg(long, global = true, value_name = "ADDRESS:PORT")]
    listen: Option<String>,
    /// Where the locks are kept: embedded:DIRECTORY, redis://host:port or rediss://host:port
    /// [default: embedded:./lockkeeper-data].
    #[arg(long, global = true, value_name = "URL")]
    store: Vec<String>,
}

/// Runs what the command line says. Whatever goes wrong is one sentence on standard error.
pub fn run() -> ExitCode {
    let cli = Cli::parse();
    let flags = Flags {
        config: cli.settings.config,
        listen: cli.settings.listen,
        store: cli.settings.store,
    };
    let done = match cli.command {
        None | Some(Command::Serve) => {
            settings(&flags).and_then(|(_, config)| serve::serve(config))
        }
        Some(Command::Config) => settings(&flags).map(|(sources, _)| print!("{}", sources.show())),
        Some(Command::Healthcheck) => {
            settings(&flags).and_then(|(_, config)| healthcheck::healthcheck(&config.listen))
        }
        Some(Command::Version) => {
            println!("lockkeeper {}", env!("CARGO_PKG_VERSION"));
            Ok(())
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(sentence) => {
            eprintln!("lockkeeper: {sentence}");
            ExitCode::FAILURE
        }
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
