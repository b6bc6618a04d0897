//! The options of every command that talks to a service: its URL, and the verbosity.

use std::cell::OnceCell;
use std::env::VarError;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::FalseyValueParser;

use crate::cli::voice::Voice;
use crate::client::{Client, KeyWish, Trust};
use crate::config::read_text;
use crate::lock::key::LockKey;
use crate::lock::slots::{Share, Slots};
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
        Ok(self.token_maker()?.make())
    }

    /// The maker of the tokens for this service.
    pub(super) fn token_maker(&self) -> Result<TokenMaker, String> {
        TokenMaker::new(&self.token_prefix).map_err(|error| error.to_string())
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

/// Parses a key with its share: `KEY,shared`, or `KEY,slots=N` and `,units=N`. All else behind a
/// comma is the key's own; a comma at the end says that none is a share.
pub(super) fn shared_key(text: &str) -> Result<KeyWish, String> {
    if let Some(name) = text.strip_suffix(',') {
        return Ok((key(name)?, None));
    }
    let mut commas = text.match_indices(',').map(|(at, _)| at);
    let Some(at) = commas.find(|at| is_like_a_share(&text[at + 1..])) else {
        return Ok((key(text)?, None));
    };
    let share = share(&text[at + 1..]).map_err(|error| format!("`{text}`: {error}"))?;
    Ok((key(&text[..at])?, Some(share)))
}

/// Whether the first word of these is meant as a share.
fn is_like_a_share(words: &str) -> bool {
    let word = words.split(',').next().unwrap_or_default().trim().to_ascii_lowercase();
    let name = word.split('=').next().unwrap_or_default().trim_end();
    word == "shared" || word.contains('=') && matches!(name, "slots" | "units")
}

/// Parses `shared`, or `slots=N` and `units=N` in any order.
fn share(words: &str) -> Result<Share, String> {
    let (mut its_slots, mut its_units) = (None, None);
    for word in words.split(',') {
        match word.split_once('=') {
            None if words == "shared" => its_slots = Some(Slots::SHARED),
            Some(("slots", number)) if its_slots.is_none() => its_slots = Some(slots(number)?),
            Some(("units", number)) if its_units.is_none() => its_units = Some(units(number)?),
            _ => {
                return Err("a share is `shared`, or `slots=N`, or `slots=N,units=N`; if all of \
                            it is a key, write a comma behind it"
                    .to_owned());
            }
        }
    }
    let slots = its_slots.ok_or("units are of slots, as in KEY,slots=8,units=3")?;
    let units = its_units.unwrap_or(1);
    let share = Share { slots, units, slot: None };
    slots.has(units).then_some(share).ok_or_else(|| "more units than slots".to_owned())
}

/// Parses a number of slots.
pub(super) fn slots(text: &str) -> Result<Slots, String> {
    let slots = text.parse().ok().and_then(Slots::from_number);
    slots.filter(|slots| *slots <= Slots::MOST).ok_or_else(|| "expected 1 to 1000".to_owned())
}

/// Parses a number of units.
pub(super) fn units(text: &str) -> Result<u16, String> {
    slots(text).map(Slots::number)
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

#[cfg(test)]
mod tests {
    use super::shared_key;
    use crate::lock::slots::{Share, Slots};

    #[test]
    fn a_share_stands_behind_a_comma_of_a_key() {
        let share = |slots, units| {
            Some(Share { slots: Slots::from_number(slots).unwrap(), units, slot: None })
        };
        for (text, key, expected) in [
            ("gpu", "gpu", None),
            ("order:7", "order:7", None),
            ("lib,shared", "lib", Some(Share { slots: Slots::SHARED, ..Share::ALONE })),
            ("gpu,slots=8", "gpu", share(8, 1)),
            ("gpu,slots=8,units=3", "gpu", share(8, 3)),
            ("gpu,slots=1", "gpu", share(1, 1)),
            ("a,b", "a,b", None),
            ("a,shared,", "a,shared", None),
            ("a,b,slots=2", "a,b", share(2, 1)),
            ("gpu,units=3,slots=8", "gpu", share(8, 3)),
            ("a,shared,slots=3,", "a,shared,slots=3", None),
            ("a,slots,sharedness", "a,slots,sharedness", None),
            ("shared", "shared", None),
        ] {
            let (found, its) = shared_key(text).unwrap();
            assert_eq!((found.as_str(), its), (key, expected), "{text}");
        }
        for text in [
            "",
            ",",
            ",shared",
            "gpu,slots=0",
            "gpu,slots=1001",
            "gpu,slots=2,units=3",
            "/a,shared",
            "gpu,units=1",
        ] {
            assert!(shared_key(text).is_err(), "{text}");
        }
        for text in [
            "b,shared,slots=3",
            "b,slots=3,shared",
            "b,shared,shared",
            "b,shared,units=3",
            "b,slots=8,slots=9",
            "b,slots=8,units=3,units=3",
            "b,slots=8,unit=3",
            "b,shared,c",
            "b,SHARED",
            "b, shared",
            "b,Slots=8",
            "b,slots =8",
            "b,units=3,SLOTS=8",
        ] {
            let refused = shared_key(text).unwrap_err();
            assert!(refused.starts_with(&format!("`{text}`: a share is ")), "{text}: {refused}");
        }
    }
}
