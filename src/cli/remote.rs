//! The options of every command that talks to a service: its URL, and the verbosity.

use std::cell::OnceCell;
use std::env::VarError;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::FalseyValueParser;

use crate::cli::voice::Voice;
use crate::client::{Client, Trust};
use crate::config::read_text;
use crate::lock::key::LockKey;
use crate::lock::time::parse_duration;
use crate::lock::token::{LeaseToken, TokenMaker};

/// The variable with the API key; the process list would show a flag.
pub(super) const API_KEY: &str = "LOCKKEEPER_API_KEY";

/// The most bytes of a file with an API key.
const MOST_OF_API_KEY: u64 = 4_096;

/// The URL of a service with the default settings.
const LOCAL: &str = "http://127.0.0.1:8080";

/// The URL of the service, and the verbosity.
#[derive(Args, Debug)]
pub(super) struct Remote {
    /// URL of the service, or unix:FILE.
    #[arg(short, long, env = "LOCKKEEPER_URL", value_parser = url, default_value = LOCAL)]
    url: String,
    /// File with the API key. Without it, the key is the value of LOCKKEEPER_API_KEY.
    #[arg(long, env = "LOCKKEEPER_API_KEY_FILE", value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    #[arg(skip)]
    known_api_key: OnceCell<Option<String>>,
    /// Do not warn when an API key goes over http:// to another host.
    #[arg(long, env = "LOCKKEEPER_PLAIN_HTTP", value_parser = FalseyValueParser::new())]
    plain_http: bool,
    /// Trust only the authorities in this PEM file.
    #[arg(long, env = "LOCKKEEPER_CA", value_name = "FILE")]
    ca: Option<PathBuf>,
    /// Show this client certificate (PEM) to the service.
    #[arg(long, env = "LOCKKEEPER_CERT", value_name = "FILE", requires = "cert_key")]
    cert: Option<PathBuf>,
    /// Private key of the client certificate (PEM).
    #[arg(long, env = "LOCKKEEPER_CERT_KEY", value_name = "FILE", requires = "cert")]
    cert_key: Option<PathBuf>,
    /// Prefix of the tokens that acquire and exec make, where the service has a redis.token_prefix.
    #[arg(long, env = "LOCKKEEPER_TOKEN_PREFIX", default_value = "", hide_default_value = true)]
    token_prefix: String,
    /// Print nothing, not even errors.
    #[arg(short, long, conflicts_with = "verbose")]
    quiet: bool,
    /// Print progress.
    #[arg(short, long)]
    verbose: bool,
}

impl Remote {
    pub(super) fn client(&self) -> Result<Client, String> {
        let api_key = self.api_key()?;
        let trust = self.ca.as_deref().map_or(Trust::System, Trust::Only);
        let own = self.cert.as_deref().zip(self.cert_key.as_deref());
        let client = Client::new(&self.url, api_key, trust, own)?;
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

    /// The API key, read once, without a line break at its end.
    fn api_key(&self) -> Result<Option<&str>, String> {
        if let Some(known) = self.known_api_key.get() {
            return Ok(known.as_deref());
        }
        let text = match &self.api_key_file {
            Some(file) => read_text(file, MOST_OF_API_KEY).map_err(|error| {
                format!("the API key in {} cannot be read: {error}", file.display())
            })?,
            None => match std::env::var(API_KEY) {
                Err(VarError::NotUnicode(_)) => {
                    return Err(format!("the variable {API_KEY} is not UTF-8"));
                }
                found => found.unwrap_or_default(),
            },
        };
        let text = text.trim_end_matches(['\r', '\n']);
        if let (Some(file), "") = (&self.api_key_file, text) {
            return Err(format!("{} has no API key", file.display()));
        }
        let api_key = (!text.is_empty()).then(|| text.to_owned());
        Ok(self.known_api_key.get_or_init(|| api_key).as_deref())
    }

    pub(super) fn new_token(&self) -> Result<LeaseToken, String> {
        let maker = TokenMaker::new(&self.token_prefix).map_err(|error| error.to_string())?;
        Ok(maker.make())
    }

    /// The variables by which another process of this program reaches the same service; those with
    /// `None` have to be removed.
    pub(super) fn variables(&self) -> Vec<(&'static str, Option<OsString>)> {
        let api_key = self.api_key().ok().flatten().map(OsString::from);
        let file = |file: &Option<PathBuf>| file.clone().map(OsString::from);
        vec![
            ("LOCKKEEPER_URL", Some(self.url.clone().into())),
            (API_KEY, api_key),
            ("LOCKKEEPER_API_KEY_FILE", None),
            ("LOCKKEEPER_CA", file(&self.ca)),
            ("LOCKKEEPER_CERT", file(&self.cert)),
            ("LOCKKEEPER_CERT_KEY", file(&self.cert_key)),
        ]
    }

    pub(super) fn url(&self) -> &str {
        &self.url
    }

    pub(super) fn is_quiet(&self) -> bool {
        self.quiet
    }

    pub(super) fn voice(&self) -> Voice {
        match (self.quiet, self.verbose) {
            (true, _) => Voice::Quiet,
            (_, true) => Voice::Verbose,
            _ => Voice::Usual,
        }
    }
}

/// Parses a key of the command line. A path is refused with a key in its place.
pub(super) fn key(text: &str) -> Result<LockKey, String> {
    LockKey::parse(text).map_err(|error| {
        let segments = text.split('/').filter(|segment| !matches!(*segment, "" | "." | ".."));
        let instead = LockKey::parse(&segments.collect::<Vec<_>>().join("/"));
        let hint = instead.map(|key| format!("; a key is a name, not a file: use `{key}`"));
        format!("`{text}` is not a key: {error}{}", hint.unwrap_or_default())
    })
}

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let expected = "expected a number and ms, s, m, h or d, as in 30s, 0.5 or 1h30m";
    parse_duration(text).ok_or_else(|| expected.to_owned())
}

/// Takes a URL; a number is the descriptor of `flock -u`.
fn url(text: &str) -> Result<String, String> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        let told = "-u is the URL of the service: a lease ends with its COMMAND, or by `release`";
        return Err(told.to_owned());
    }
    Ok(text.to_owned())
}
