//! The settings of a store on Redis, and their errors.

use std::time::Duration;

use crate::lock::prefixes::Prefixes;
use crate::lock::time::Ttl;
use crate::store::redis::keys::SIDE_PREFIX;
use crate::store::redis::tls::NodeTls;

/// The settings of the store.
#[derive(Clone)]
pub struct RedisSettings {
    /// `redis://`, `redis-sentinel://` or `redis-cluster://`, or the same over TLS with `rediss`.
    pub url: String,
    /// The prefix of every key.
    pub key_prefix: String,
    /// The time limit of a call.
    pub command_timeout: Duration,
    /// The time limit of making a connection.
    pub connect_timeout: Duration,
    /// The certificates for `rediss`.
    pub tls: NodeTls,
    /// The number of replicas that must have a grant before it is answered.
    pub min_replicas: u32,
    /// The TTL of a lease that a direct Redis client took without one, with a token of ours.
    pub default_ttl: Ttl,
    /// The time for which an absent claim keeps its place in line.
    pub position_kept: Ttl,
    /// The longest time that a lease lasts.
    pub prefixes: Prefixes,
}

impl RedisSettings {
    /// The prefix of every key, unless it would put locks among the records.
    pub(in crate::store) fn checked_key_prefix(&self) -> Result<&str, SettingsError> {
        let fits = !self.key_prefix.starts_with(SIDE_PREFIX);
        fits.then_some(self.key_prefix.as_str()).ok_or(SettingsError::KeyPrefix)
    }
}

/// The reason why the store cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// Not a Redis URL.
    #[error(
        "`store` is not a Redis URL ({0}); write `%2F` for a `/` in a password, `%23` for a `#`"
    )]
    Url(#[from] redis::RedisError),
    /// Invalid hosts, or an invalid rest after them.
    #[error("`store`: {0}")]
    Place(String),
    /// A prefix that would put locks among the records.
    #[error(
        "`redis.key_prefix` must not begin with `{SIDE_PREFIX}`, as the service's own records do"
    )]
    KeyPrefix,
}
