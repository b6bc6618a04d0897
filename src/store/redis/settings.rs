//! What a store on Redis has to know, and what can be wrong with it.

use std::time::Duration;

use crate::lock::time::Ttl;
use crate::store::redis::keys::SIDE_PREFIX;

/// What the store has to know.
#[derive(Clone)]
pub struct RedisSettings {
    /// `redis://`, `redis-sentinel://` or `redis-cluster://`, or the same over TLS with `rediss`.
    pub url: String,
    /// What stands before every key.
    pub key_prefix: String,
    /// How long a call may take.
    pub command_timeout: Duration,
    /// How long making a connection may take.
    pub connect_timeout: Duration,
    /// How many replicas have to have a grant before it is answered.
    pub min_replicas: u32,
    /// The TTL of a lease that was taken without one, by a client on Redis with a token of ours.
    pub default_ttl: Ttl,
    /// How long a claim that is away keeps its place in line.
    pub position_kept: Ttl,
}

impl RedisSettings {
    /// What stands before every key, unless the locks would lie among the records.
    pub(in crate::store) fn checked_key_prefix(&self) -> Result<&str, SettingsError> {
        let fits = !self.key_prefix.starts_with(SIDE_PREFIX);
        fits.then_some(self.key_prefix.as_str()).ok_or(SettingsError::KeyPrefix)
    }
}

/// Why the store cannot be made.
#[derive(Debug, thiserror::Error)]
pub enum SettingsError {
    /// The URL is none.
    #[error("`store` is no URL of a Redis: {0}")]
    Url(#[from] redis::RedisError),
    /// Its hosts, or what follows them, are none.
    #[error("`store`: {0}")]
    Place(String),
    /// The locks would lie among the records.
    #[error(
        "`redis.key_prefix` must not begin with `{SIDE_PREFIX}`, as the service's own records do"
    )]
    KeyPrefix,
}
