//! `lockkeeper api-key`: makes API keys.
//!
//! The secret and the lines for the settings go different ways, so that redirecting the lines into
//! a file does not store the secret.

use std::fs::OpenOptions;
use std::io;
use std::io::{IsTerminal, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};

use crate::cli::voice::print;
use crate::config::new_api_key;

/// The commands for API keys.
#[derive(Debug, Subcommand)]
pub(super) enum ApiKeyCommand {
    /// Print the settings of a new API key, and show its secret once.
    New(NewKey),
}

#[derive(Args, Debug)]
pub(super) struct NewKey {
    /// Name of the caller, shown in the log. A second key with the same name replaces the first
    /// step by step: both are valid until you remove one.
    #[arg(value_name = "NAME")]
    name: String,
    /// Prefix of the keys that it may use; may be repeated, "" is all keys [default: NAME/].
    #[arg(long = "prefix", value_name = "TEXT")]
    prefixes: Vec<String>,
    /// acquire, read or admin; may be repeated.
    #[arg(long = "permission", value_name = "NAME", default_value = "acquire")]
    permissions: Vec<String>,
    /// Write the secret into this new file, which only its owner can read, instead of showing it.
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
}

pub(super) fn api_key(ApiKeyCommand::New(new): &ApiKeyCommand) -> Result<(), String> {
    let prefixes = match new.prefixes.as_slice() {
        [] => vec![format!("{}/", new.name)],
        prefixes => prefixes.to_vec(),
    };
    let made = new_api_key(&new.name, &prefixes, &new.permissions);
    let (secret, lines) = made.map_err(|error| error.to_string())?;
    match &new.secret_file {
        Some(path) => store(path, &secret)
            .map_err(|error| format!("cannot write the secret to {}: {error}", path.display()))?,
        None if io::stderr().is_terminal() => {
            // Also if standard output is a file: this is for the person at the terminal.
            eprintln!("The secret, shown only now:\n\n    {secret}\n");
        }
        None => {
            return Err("standard error is not a terminal, so a log may keep the secret: name a \
                        new file for it with --secret-file"
                .to_owned());
        }
    }
    print(&lines)
}

fn store(path: &Path, secret: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(format!("{secret}\n").as_bytes())?;
    file.sync_all()
}
