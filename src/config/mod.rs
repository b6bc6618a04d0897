//! The settings: flags over environment over file over defaults, parsed once.
//!
//! `config/lockkeeper.toml` is both the documentation and the defaults of every setting.
//! [`Sources`] merges the layers and remembers the origin of each value; here they become a
//! [`Config`], or one sentence about the first error.

mod bounds;
mod entry;
mod listen;
mod prefixes;
mod sources;

use std::path::PathBuf;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};
use tracing::level_filters::LevelFilter;

use crate::auth::{AllowedHosts, ApiKey, DefaultOwner, TrustedProxies, words};
use crate::lock::time::{Ttl, TtlBounds, parse_duration};
use crate::lock::token::TokenMaker;
use crate::lock::waiting::WaitLimits;

pub(crate) use crate::config::entry::new_api_key;
pub use crate::config::listen::ListenOn;
pub use crate::config::sources::{Flags, Sources};
pub(crate) use crate::config::sources::{MOST_OF_FILE, read_text, read_up_to};

use crate::config::listen::SocketMode;
use crate::config::prefixes::PrefixSection;

/// All settings, validated. `config/lockkeeper.toml` says what each one is.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The place to listen on.
    pub listen: ListenOn,
    #[serde(deserialize_with = "listen::unless_empty")]
    pub(crate) admin_listen: Option<ListenOn>,
    pub(crate) socket_mode: SocketMode,
    /// The store of the locks.
    pub store: StoreUrl,
    pub(crate) allow_anonymous: bool,
    /// The host names under which a service without API keys may be called.
    pub allowed_hosts: AllowedHosts,
    /// The proxies whose `X-Forwarded-For` is believed.
    pub trusted_proxies: TrustedProxies,
    /// The owner of a claim that names none.
    pub default_owner: DefaultOwner,
    pub(crate) tls: TlsSection,
    pub(crate) ttl: TtlSettings,
    /// The limits for clients.
    pub limits: Limits,
    /// The settings of the embedded store.
    pub embedded: EmbeddedSection,
    pub(crate) quotas: QuotaSection,
    pub(crate) redis: RedisSection,
    pub(crate) redlock: RedlockSection,
    pub(crate) log: LogSection,
    #[serde(default)]
    pub(crate) prefixes: Vec<PrefixSection>,
    /// The API keys.
    #[serde(default)]
    pub api_keys: Vec<ApiKey>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TlsSection {
    #[serde(deserialize_with = "listen::unless_empty")]
    pub(crate) certificate: Option<PathBuf>,
    #[serde(deserialize_with = "listen::unless_empty")]
    pub(crate) key: Option<PathBuf>,
    #[serde(deserialize_with = "listen::unless_empty")]
    pub(crate) client_ca: Option<PathBuf>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct TtlSettings {
    default: Span,
    min: Span,
    max: Span,
}

/// The section `limits`. What is `pub` is used by `fuzz/inputs`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Connections at a time.
    pub connections: usize,
    pub(crate) connections_per_address: usize,
    pub(crate) head_bytes: usize,
    pub(crate) head_time: Span,
    /// Bytes of a request body.
    pub body_bytes: usize,
    /// The time limit for a body.
    pub body_time: Span,
    pub(crate) idle_time: Span,
    pub(crate) max_wait: Span,
    pub(crate) waiters_per_key: usize,
    pub(crate) waiters_per_instance: usize,
    pub(crate) waited_keys_per_instance: usize,
    pub(crate) hold_streams: usize,
    pub(crate) lists: usize,
    pub(crate) position_kept: Span,
    /// The time limit for a graceful shutdown.
    pub shutdown_time: Span,
}

/// The section `embedded`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmbeddedSection {
    /// The time limit of a call.
    pub command_timeout: Span,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct QuotaSection {
    pub(crate) leases: usize,
    pub(crate) waiters: usize,
    pub(crate) streams: usize,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RedisSection {
    pub(crate) key_prefix: String,
    #[serde(deserialize_with = "token_maker")]
    token_prefix: TokenMaker,
    pub(crate) command_timeout: Span,
    pub(crate) connect_timeout: Span,
    pub(crate) min_replicas: u32,
    pub(crate) tls: RedisTlsSection,
}

/// The section `redis.tls`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RedisTlsSection {
    #[serde(deserialize_with = "listen::unless_empty")]
    pub(crate) ca: Option<PathBuf>,
    #[serde(deserialize_with = "listen::unless_empty")]
    pub(crate) certificate: Option<PathBuf>,
    #[serde(deserialize_with = "listen::unless_empty")]
    pub(crate) key: Option<PathBuf>,
}

/// The maker of tokens that begin with a text.
fn token_maker<'de, D: Deserializer<'de>>(deserializer: D) -> Result<TokenMaker, D::Error> {
    let what = "must be at most 92 characters of A-Z a-z 0-9 . _ ~ + / = -";
    TokenMaker::new(&String::deserialize(deserializer)?).map_err(|_| D::Error::custom(what))
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RedlockSection {
    pub(crate) node_timeout: Span,
    longest_lease: Span,
    pub(crate) trust_restarted: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LogSection {
    #[serde(deserialize_with = "level")]
    pub(crate) level: LevelFilter,
    pub(crate) format: LogFormat,
    pub(crate) audit: bool,
}

/// The lowest level that is logged.
fn level<'de, D: Deserializer<'de>>(deserializer: D) -> Result<LevelFilter, D::Error> {
    let text = String::deserialize(deserializer)?;
    // Not by its own parser, which takes an empty text for `error`.
    let most = [LevelFilter::OFF, LevelFilter::ERROR, LevelFilter::WARN, LevelFilter::INFO];
    let all = most.into_iter().chain([LevelFilter::DEBUG, LevelFilter::TRACE]);
    let found = all.into_iter().find(|level| level.to_string() == text);
    found.ok_or_else(|| D::Error::custom("expected off, error, warn, info, debug or trace"))
}

/// The format of the log.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum LogFormat {
    /// Text on a terminal, JSON otherwise.
    Auto,
    /// For people.
    Text,
    /// For machines.
    Json,
}

/// The store of the locks.
#[derive(Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// The embedded store in this directory.
    Embedded(PathBuf),
    /// Redis, Sentinel or Cluster at this URL.
    Redis(String),
    /// Redlock on these independent nodes.
    Redlock(Vec<String>),
}

impl StoreUrl {
    /// Returns whether a connection to Redis is made with TLS.
    fn is_secured(&self) -> bool {
        match self {
            Self::Embedded(_) => false,
            Self::Redis(url) => url.starts_with("rediss"),
            Self::Redlock(urls) => urls.iter().any(|url| url.starts_with("rediss")),
        }
    }

    /// Parses the setting `store`.
    fn parse(text: &str) -> Result<Self, String> {
        let (scheme, rest) = text.split_once(':').unwrap_or((text, ""));
        if text.matches("://").count() > 1 {
            let how = "give each node of Redlock apart: --store URL --store URL, in the variable \
                       with a blank between them, in the file as a list";
            return Err(how.to_owned());
        }
        match scheme {
            "embedded" if rest.is_empty() => Err("name a directory: embedded:DIRECTORY".to_owned()),
            "embedded" => Ok(Self::Embedded(rest.into())),
            "redis" | "rediss" if rest.starts_with("///") => {
                let text = sources::redacted(text);
                Err(format!(
                    "`{text}` names no host; a unix socket is redis+unix:///run/redis.sock"
                ))
            }
            "redis+unix" if rest.starts_with("///") => Ok(Self::Redis(text.to_owned())),
            "redis" | "redis-sentinel" | "redis-cluster" | "rediss" | "rediss-sentinel"
            | "rediss-cluster"
                if rest.len() > 2 && rest.starts_with("//") =>
            {
                Ok(Self::Redis(text.to_owned()))
            }
            _ => Err(format!(
                "`{}` is not a store: use embedded:DIRECTORY, redis://host:port, \
                 redis-sentinel://host:port/master or redis-cluster://host:port, the last \
                 three with rediss over TLS",
                sources::redacted(text)
            )),
        }
    }

    /// Parses several independent nodes.
    fn redlock(urls: &[String]) -> Result<Self, String> {
        for (number, url) in urls.iter().enumerate() {
            if !["redis://", "rediss://"].iter().any(|scheme| url.starts_with(scheme)) {
                // A part without a scheme may belong to a password with a space.
                let whole = urls.join(" ");
                let is_whole = url.contains("://") || url.starts_with("embedded:");
                let url = sources::redacted(if is_whole { url } else { &whole });
                return Err(format!(
                    "several URLs mean Redlock, and `{url}` is not of the form redis://host:port"
                ));
            }
            if urls[..number].contains(url) {
                let url = sources::redacted(url);
                return Err(format!("`{url}` is listed twice: each node has one vote"));
            }
        }
        urls.iter().try_for_each(|url| Self::parse(url).map(|_| ()))?;
        Ok(Self::Redlock(urls.to_vec()))
    }
}

impl std::fmt::Debug for StoreUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Embedded(directory) => write!(f, "embedded:{}", directory.display()),
            Self::Redis(url) => f.write_str(&sources::redacted(url)),
            Self::Redlock(urls) => {
                let urls: Vec<_> = urls.iter().map(|url| sources::redacted(url)).collect();
                f.write_str(&urls.join(" "))
            }
        }
    }
}

impl<'de> Deserialize<'de> for StoreUrl {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match words(deserializer)?.as_slice() {
            [] => Err(D::Error::custom("name a store, as in embedded:./lockkeeper-data")),
            [one] => Self::parse(one).map_err(D::Error::custom),
            several => Self::redlock(several).map_err(D::Error::custom),
        }
    }
}

/// A duration as written in settings: `30s`.
#[derive(Clone, Copy, Debug)]
pub struct Span(Duration);

impl Span {
    /// The duration.
    pub fn get(self) -> Duration {
        self.0
    }

    fn ttl(self) -> Ttl {
        Ttl::lasting(self.0)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = toml::Value::deserialize(deserializer)?;
        let span = value.as_str().and_then(parse_duration).map(Self);
        span.ok_or_else(|| {
            let (text, form) = match value.as_str() {
                Some(text) => (text.to_owned(), "ms, s, m, h or d, as in 30s or 1h30m"),
                None => (value.to_string(), "ms, s, m, h or d in quotes, as \"30s\""),
            };
            D::Error::custom(format!("`{text}` is not a duration: write a number and {form}"))
        })
    }
}

/// An error in a setting, with its remedy.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub(crate) String);

impl Config {
    /// Builds the settings from `sources`.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] names the wrong setting and its origin.
    pub fn of(sources: &Sources) -> Result<Self, ConfigError> {
        let config: Self = serde_path_to_error::deserialize(sources.table()).map_err(|error| {
            let path = error.path().to_string();
            sources.wrong(&path, error.into_inner().message())
        })?;
        for (path, fits, what) in config.bounds() {
            if !fits {
                return Err(sources.wrong(path, &what));
            }
        }
        if let Some(fault) = config.prefix_fault() {
            return Err(sources.wrong("prefixes", &fault));
        }
        match ApiKey::fault(&config.api_keys) {
            Some(fault) => Err(sources.wrong("api_keys", &fault)),
            None => Ok(config),
        }
    }

    /// The bounds of TTLs; with Redlock the longest is at most `redlock.longest_lease`.
    pub fn ttl_bounds(&self) -> TtlBounds {
        let TtlSettings { default, min, max } = &self.ttl;
        let [default, min, max] = [default, min, max].map(|span| span.ttl());
        let max = if self.is_redlock() { max.min(self.longest_lease()) } else { max };
        TtlBounds { min, default, max }
    }

    /// The longest lease with Redlock: nodes that may have forgotten leases wait this long.
    pub(crate) fn longest_lease(&self) -> Ttl {
        self.redlock.longest_lease.ttl()
    }

    fn is_redlock(&self) -> bool {
        matches!(self.store, StoreUrl::Redlock(_))
    }

    /// The limits of the line.
    pub fn wait_limits(&self) -> WaitLimits {
        WaitLimits {
            per_key: self.limits.waiters_per_key,
            per_instance: self.limits.waiters_per_instance,
            keys: self.limits.waited_keys_per_instance,
        }
    }

    /// The time that an absent claim keeps its place in line.
    pub fn position_kept(&self) -> Ttl {
        self.limits.position_kept.ttl()
    }

    /// The maker of tokens for clients that send none.
    pub fn token_maker(&self) -> TokenMaker {
        self.redis.token_prefix.clone()
    }
}
