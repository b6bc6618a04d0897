//! What every command has that talks to a service: where it is, and how much is said.

use std::time::Duration;

use clap::Args;
use clap::builder::FalseyValueParser;

use crate::cli::voice::Voice;
use crate::client::Client;
use crate::lock::key::LockKey;
use crate::lock::time::parse_duration;
use crate::lock::token::{LeaseToken, TokenMaker};

/// The variable with the API key; a flag would show it to everybody who asks for the processes.
pub(super) const API_KEY: &str = "LOCKKEEPER_API_KEY";

/// Where the service is, and how much is said.
#[derive(Args, Debug)]
pub(super) struct Remote {
    /// Where the service is; an API key for it is read from LOCKKEEPER_API_KEY.
    #[arg(
        short,
        long,
        env = "LOCKKEEPER_URL",
        hide_env_values = true,
        default_value = "http://127.0.0.1:8080"
    )]
    url: String,
    /// Do not warn of an API key that goes over http:// to another host.
    #[arg(
        long,
        env = "LOCKKEEPER_PLAIN_HTTP",
        hide_env_values = true,
        value_parser = FalseyValueParser::new()
    )]
    plain_http: bool,
    /// What tokens begin with, where the service has a redis.token_prefix.
    #[arg(
        long,
        env = "LOCKKEEPER_TOKEN_PREFIX",
        hide_env_values = true,
        default_value = "",
        hide_default_value = true
    )]
    token_prefix: String,
    /// Say nothing, not even what went wrong.
    #[arg(short, long, conflicts_with = "verbose")]
    quiet: bool,
    /// Say what happens.
    #[arg(short, long)]
    verbose: bool,
}

impl Remote {
    /// A client of the service.
    pub(super) fn client(&self) -> Result<Client, String> {
        let api_key = match std::env::var(API_KEY) {
            Ok(secret) if !secret.is_empty() => Some(secret),
            Ok(_) | Err(std::env::VarError::NotPresent) => None,
            Err(_) => return Err(format!("the variable {API_KEY} is not UTF-8")),
        };
        let client = Client::new(&self.url, api_key.as_deref());
        let client = client.map_err(|error| error.to_string())?;
        if client.exposes_api_key() && !self.plain_http {
            self.voice().complain(|| {
                format!(
                    "the API key goes to {} unencrypted: use https://, or allow it (--plain-http)",
                    client.host()
                )
            });
        }
        Ok(client)
    }

    /// A token that nobody else has.
    pub(super) fn new_token(&self) -> Result<LeaseToken, String> {
        let maker = TokenMaker::new(&self.token_prefix).map_err(|error| error.to_string())?;
        Ok(maker.make())
    }

    /// Where the service is.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// How much is said.
    pub(super) fn voice(&self) -> Voice {
        match (self.quiet, self.verbose) {
            (true, _) => Voice::Quiet,
            (_, true) => Voice::Verbose,
            _ => Voice::Usual,
        }
    }
}

/// Reads a key of the command line.
pub(super) fn key(text: &str) -> Result<LockKey, String> {
    LockKey::parse(text).map_err(|error| format!("`{text}` is no key: {error}"))
}

/// Reads a duration of the command line.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    parse_duration(text).ok_or_else(|| "a duration is digits and ms, s, m or h".to_owned())
}
