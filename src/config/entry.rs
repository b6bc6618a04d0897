//! A new entry of `[[api_keys]]` with its secret.

use toml::{Table, Value};
use uuid::Uuid;

use crate::auth::ApiKey;
use crate::config::ConfigError;

/// What secrets begin with, so that people and scanners recognise one where it should not be.
const PREFIX: &str = "lk_";

/// A new secret of 244 random bits, and the lines of TOML that admit it, without the secret.
///
/// # Errors
///
/// [`ConfigError`] as for settings with these lines.
pub fn new_api_key(
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

#[cfg(test)]
mod tests {
    use super::new_api_key;

    fn words(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn each_secret_is_new_and_is_not_in_the_lines() {
        let make = || new_api_key("a \"b\"\n", &words(&["x/"]), &words(&["acquire"])).unwrap();
        let ((one, lines), (other, _)) = (make(), make());
        assert_ne!(one, other);
        assert!(one.starts_with("lk_") && one.len() == 67, "{one}");
        assert!(!lines.contains(&one), "{lines}");
    }

    #[test]
    fn an_entry_that_settings_refuse_is_not_made() {
        for (name, prefixes, permissions, fault) in [
            ("", &["x/"][..], "acquire", "needs a name"),
            ("shop", &[], "acquire", "may use no lock key"),
            ("shop", &["x/"], "root", "unknown variant `root`"),
        ] {
            let refused = new_api_key(name, &words(prefixes), &words(&[permissions]));
            let told = refused.unwrap_err().to_string();
            assert!(told.contains(fault), "{told}");
        }
    }
}
