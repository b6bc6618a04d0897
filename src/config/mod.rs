//! The settings: flags over environment over file over defaults, parsed once.
//!
//! `config/lockkeeper.toml` is both the documentation and the defaults; what is not in it is no
//! setting. [`Sources`] lays the layers over one another and remembers where each value came
//! from; here they become a [`Config`], or one sentence that says which is wrong.

mod bounds;
mod sources;

use std::path::PathBuf;
use std::time::Duration;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

use crate::auth::{AllowedHosts, ApiKey, TrustedProxies};
use crate::lock::time::{Ttl, TtlBounds, parse_duration};
use crate::lock::token::TokenMaker;
use crate::lock::waiting::WaitLimits;

pub use crate::config::sources::{Flags, Sources};

/// All settings, valid.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Where to listen: an address or a name, and a port.
    pub listen: String,
    /// Where the locks are kept.
    pub store: StoreUrl,
    /// Whether anybody may call from other machines.
    pub allow_anonymous: bool,
    /// Under which host names a service without API keys may be called.
    pub allowed_hosts: AllowedHosts,
    /// Which proxies say where a client is.
    pub trusted_proxies: TrustedProxies,
    /// How long leases may be.
    pub ttl: TtlSettings,
    /// What clients may cost.
    pub limits: Limits,
    /// How the embedded store is used.
    pub embedded: EmbeddedSection,
    /// What one API key may have.
    pub quotas: QuotaSection,
    /// How Redis is used.
    pub redis: RedisSection,
    /// How several Redis nodes are.
    pub redlock: RedlockSection,
    /// What is logged.
    pub log: Log,
    /// Who may call.
    #[serde(default)]
    pub api_keys: Vec<ApiKey>,
}

/// The section `ttl`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TtlSettings {
    default: Span,
    min: Span,
    max: Span,
}

/// The section `limits`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Clients at a time.
    pub connections: usize,
    /// Clients at a time from one address.
    pub connections_per_address: usize,
    /// Bytes of a head.
    pub head_bytes: usize,
    /// How long a head may take.
    pub head_time: Span,
    /// Bytes of a body.
    pub body_bytes: usize,
    /// How long a body may take.
    pub body_time: Span,
    /// How long a connection may stay without a request.
    pub idle_time: Span,
    /// How long a request may wait in line.
    pub max_wait: Span,
    /// Requests that wait for one key.
    pub waiters_per_key: usize,
    /// Requests that wait.
    pub waiters_per_instance: usize,
    /// Keys that are waited for.
    pub waited_keys_per_instance: usize,
    /// Streams of `POST /hold/{key}`.
    pub hold_streams: usize,
    /// Lists at a time.
    pub lists: usize,
    /// How long a claim that is away keeps its place in line.
    pub position_kept: Span,
    /// How long the end may take.
    pub shutdown_time: Span,
}

/// The section `embedded`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EmbeddedSection {
    /// How long a call may take.
    pub command_timeout: Span,
}

/// The section `quotas`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QuotaSection {
    /// Leases at a time.
    pub leases: usize,
    /// Requests that wait.
    pub waiters: usize,
    /// Streams of `POST /hold/{key}`.
    pub streams: usize,
}

/// The section `redis`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RedisSection {
    /// What stands before every key.
    pub key_prefix: String,
    token_prefix: String,
    /// How long a command may take.
    pub command_timeout: Span,
    /// How long making a connection may take.
    pub connect_timeout: Span,
    /// How many replicas have to have a grant.
    pub min_replicas: u32,
}

/// The section `redlock`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RedlockSection {
    /// How long one node may take.
    pub node_timeout: Span,
    longest_lease: Span,
    /// Whether a node votes as soon as it has restarted.
    pub trust_restarted: bool,
}

/// The section `log`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Log {
    /// The least that is logged.
    pub level: Level,
    /// In which form.
    pub format: LogFormat,
}

/// The least that is logged.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
#[expect(missing_docs, reason = "the names say it")]
pub enum Level {
    Off,
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

/// The form of the log.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Text on a terminal, JSON otherwise.
    Auto,
    /// For people.
    Text,
    /// For machines.
    Json,
}

/// Where the locks are kept.
#[derive(Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// In this directory.
    Embedded(PathBuf),
    /// On the Redis, or the several, of this URL.
    Redis(String),
    /// On these, independent of one another.
    Redlock(Vec<String>),
}

impl StoreUrl {
    /// Parses what `store` says.
    fn parse(text: &str) -> Result<Self, String> {
        let (scheme, rest) = text.split_once(':').unwrap_or((text, ""));
        match scheme {
            "embedded" if rest.is_empty() => Err("name a directory: embedded:DIRECTORY".to_owned()),
            "embedded" => Ok(Self::Embedded(rest.into())),
            "redis" | "redis-sentinel" | "redis-cluster" | "rediss" | "rediss-sentinel"
            | "rediss-cluster"
                if rest.len() > 2 && rest.starts_with("//") =>
            {
                Ok(Self::Redis(text.to_owned()))
            }
            _ => Err(format!(
                "`{}` is none of embedded:DIRECTORY, redis://host:port, \
                 redis-sentinel://host:port/master, redis-cluster://host:port, nor one of these \
                 over TLS, with rediss",
                sources::redacted(text)
            )),
        }
    }
}

impl StoreUrl {
    /// Several nodes that are independent of one another.
    fn redlock(urls: &[String]) -> Result<Self, String> {
        for (number, url) in urls.iter().enumerate() {
            if !["redis://", "rediss://"].iter().any(|scheme| url.starts_with(scheme)) {
                // What has no scheme may be a part of a password with a space in it.
                let whole = urls.join(" ");
                let is_whole = url.contains("://") || url.starts_with("embedded:");
                let url = sources::redacted(if is_whole { url } else { &whole });
                return Err(format!(
                    "several URLs mean Redlock, and `{url}` is no redis://host:port"
                ));
            }
            if urls[..number].contains(url) {
                let url = sources::redacted(url);
                return Err(format!("`{url}` is there twice: each node has one vote"));
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
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a URL in quotes")]
        enum Urls {
            One(String),
            Several(Vec<String>),
        }
        let urls = match Urls::deserialize(deserializer)? {
            Urls::One(text) => text.split_whitespace().map(str::to_owned).collect(),
            Urls::Several(urls) => urls,
        };
        match urls.as_slice() {
            [] => Err(D::Error::custom("name a store, as in embedded:./lockkeeper-data")),
            [one] => Self::parse(one).map_err(D::Error::custom),
            several => Self::redlock(several).map_err(D::Error::custom),
        }
    }
}

/// A duration as people write it: `30s`.
#[derive(Clone, Copy, Debug)]
pub struct Span(Duration);

impl Span {
    /// The duration.
    pub fn get(self) -> Duration {
        self.0
    }

    fn millis(self) -> u64 {
        u64::try_from(self.0.as_millis()).unwrap_or(u64::MAX)
    }
}

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_duration(&text).map(Self).ok_or_else(|| {
            D::Error::custom(format!("`{text}` is no duration: digits and ms, s, m or h"))
        })
    }
}

/// Which setting is wrong, and what would do.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(pub(crate) String);

impl Config {
    /// The settings of `sources`.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] names the setting that is wrong and where it came from.
    pub fn of(sources: &Sources) -> Result<Self, ConfigError> {
        let config: Self = serde_path_to_error::deserialize(sources.table()).map_err(|error| {
            let path = error.path().to_string();
            sources.wrong(&path, error.into_inner().message())
        })?;
        for (path, fits, what) in config.bounds() {
            if !fits {
                return Err(sources.wrong(path, what));
            }
        }
        match ApiKey::fault(&config.api_keys) {
            Some(fault) => Err(sources.wrong("api_keys", &fault)),
            None => Ok(config),
        }
    }

    /// How long leases may be; on several nodes also no longer than [`Config::longest_lease`].
    pub fn ttl_bounds(&self) -> TtlBounds {
        let TtlSettings { default, min, max } = &self.ttl;
        let [default, min, max] = [default, min, max].map(|span| Ttl::from_millis(span.millis()));
        let max = if self.is_redlock() { max.min(self.longest_lease()) } else { max };
        TtlBounds { min, default, max }
    }

    /// The longest lease on several nodes: so long one that may have forgotten leases waits.
    pub fn longest_lease(&self) -> Ttl {
        Ttl::from_millis(self.redlock.longest_lease.millis())
    }

    fn is_redlock(&self) -> bool {
        matches!(self.store, StoreUrl::Redlock(_))
    }

    /// How many may wait in line.
    pub fn wait_limits(&self) -> WaitLimits {
        WaitLimits {
            per_key: self.limits.waiters_per_key,
            per_instance: self.limits.waiters_per_instance,
            keys: self.limits.waited_keys_per_instance,
        }
    }

    /// How long a claim that is away keeps its place in line.
    pub fn position_kept(&self) -> Ttl {
        Ttl::from_millis(self.limits.position_kept.millis())
    }

    /// What makes the tokens of clients that bring none.
    ///
    /// # Panics
    ///
    /// Never: the prefix was tried when the settings were read.
    pub fn token_maker(&self) -> TokenMaker {
        TokenMaker::new(&self.redis.token_prefix).expect("the prefix was tried")
    }
}
