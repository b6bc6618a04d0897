//! A new entry of `[[api_keys]]` with its secret.

use toml::{Table, Value};
use uuid::Uuid;

use crate::auth::ApiKey;
use crate::config::ConfigError;

/// What secrets begin with, so that people and scanners recognise one where it should not be.
const PREFIX: &str = "lk_";

/// A new secret of 244 random bits, and the lines of TOML that admit it, without the secret. Fails as
/// settings with these lines would.
pub(crate) fn new_api_key(
    name: &str,
    prefixes: &[String],
    permissions: &[String],
) -> Result<(String, String), ConfigError> {
    // Two, because one has only 122 random bits.
    let secret = format!("{PREFIX}{}{}", Uuid::new_v4().simple(), Uuid::new_v4().simple());
    let mut lines = "[[api_keys]]\n".to_owned();
    for (field, value) in [
        ("name", Value::from(name)),
        ("sha256", Value::from(ApiKey::sha256_of(&secret))),
        ("prefixes", Value::from(prefixes.to_vec())),
        ("permissions", Value::from(permissions.to_vec())),
    ] {
        lines.push_str(&format!("{field} = {value}\n"));
    }
    let wrong = |what: &str| ConfigError(format!("not a usable API key: {what}"));
    let table: Table = lines.parse().map_err(|_| wrong("the name cannot be written as TOML"))?;
    let keys = table["api_keys"].clone().try_into::<Vec<ApiKey>>();
    let keys = keys.map_err(|error| wrong(error.message()))?;
    match ApiKey::fault(&keys) {
        Some(fault) => Err(wrong(&fault)),
        None => Ok((secret, lines)),
    }
}
