//! The API keys and their rights. Pure: headers and settings come in.

mod hosts;
mod proxies;

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq;

pub use crate::auth::hosts::{AllowedHosts, Exposure, HostNames};
pub use crate::auth::proxies::TrustedProxies;

/// A right of an API key under its prefixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Permission {
    /// Acquire, refresh, release, and inspect a single key.
    Acquire,
    /// Inspect keys, the list and the metrics.
    Read,
    /// Force a release.
    Admin,
}

impl fmt::Display for Permission {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Acquire => "acquire",
            Self::Read => "read",
            Self::Admin => "admin",
        })
    }
}

/// An API key, known by the SHA-256 of its secret. An entry of `[[api_keys]]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApiKey {
    name: String,
    sha256: Digest,
    prefixes: Vec<String>,
    permissions: Vec<Permission>,
}

impl ApiKey {
    /// The reason why these keys cannot be used together; `None` if they can. Without this check a
    /// mistake would show only when a client is refused, or admitted.
    pub fn fault(keys: &[Self]) -> Option<String> {
        let (mut names, mut digests) = (HashSet::new(), HashSet::new());
        for key in keys {
            let name = &key.name;
            let needs_prefix = |one: &Permission| *one != Permission::Read;
            let fault = if name.is_empty() {
                "an API key needs a name, which the log shows"
            } else if !names.insert(name) {
                "two API keys have this name"
            } else if key.sha256.0 == *Sha256::digest(b"") {
                "sha256 is that of an empty secret"
            } else if !digests.insert(key.sha256.0) {
                "another API key has the same secret"
            } else if key.permissions.is_empty() {
                "it has no permissions, so it may do nothing"
            } else if key.prefixes.is_empty() && key.permissions.iter().any(needs_prefix) {
                "it has no prefixes, so it may use no lock key; [\"\"] means all"
            } else {
                continue;
            };
            return Some(format!("`{}`: {fault}", name.escape_debug()));
        }
        None
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ApiKey").field(&self.name).finish()
    }
}

/// A SHA-256, written as 64 hexadecimal digits.
#[derive(Deserialize)]
#[serde(try_from = "String")]
struct Digest([u8; 32]);

impl TryFrom<String> for Digest {
    type Error = &'static str;

    fn try_from(digits: String) -> Result<Self, Self::Error> {
        const FORM: &str = "a SHA-256 has 64 hexadecimal digits: printf %s \"$SECRET\" | sha256sum";
        let mut bytes = [0; 32];
        if digits.len() != 64 || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return Err(FORM);
        }
        for (at, byte) in bytes.iter_mut().enumerate() {
            *byte = u8::from_str_radix(&digits[2 * at..2 * at + 2], 16).map_err(|_| FORM)?;
        }
        Ok(Self(bytes))
    }
}

/// All API keys. Without any, every caller may do everything.
#[derive(Debug, Default)]
pub struct Keyring {
    keys: Vec<Arc<ApiKey>>,
}

impl Keyring {
    /// A keyring with the keys of the settings.
    pub fn new(keys: Vec<ApiKey>) -> Self {
        Self { keys: keys.into_iter().map(Arc::new).collect() }
    }

    /// Returns whether there are no keys, so that every caller may do everything.
    pub fn is_open(&self) -> bool {
        self.keys.is_empty()
    }

    /// The number of keys.
    pub fn count(&self) -> usize {
        self.keys.len()
    }

    /// The caller that sent this `Authorization` header; `None` if it is unknown.
    ///
    /// Compares all keys, each in constant time, so that the duration tells nothing about a secret.
    pub fn identify(&self, authorization: Option<&[u8]>) -> Option<Caller> {
        if self.keys.is_empty() {
            return Some(Caller { key: None, number: 0 });
        }
        let (scheme, secret) = authorization?.split_at_checked(7)?;
        if !scheme.eq_ignore_ascii_case(b"Bearer ") {
            return None;
        }
        let digest = Sha256::digest(secret.trim_ascii());
        let mut found = None;
        for (number, key) in self.keys.iter().enumerate() {
            if bool::from(key.sha256.0.as_slice().ct_eq(digest.as_slice())) {
                found = Some(Caller { key: Some(key.clone()), number });
            }
        }
        found
    }

    /// The number of the API key that most likely acquired a lock key: the one with the longest
    /// matching prefix, of those that may.
    pub fn likely(&self, text: &str) -> Option<usize> {
        let longest = |key: &Arc<ApiKey>| {
            let within = key.prefixes.iter().filter(|one| text.starts_with(one.as_str()));
            let may = key.permissions.contains(&Permission::Acquire);
            within.map(String::len).max().filter(|_| may)
        };
        let fits = self.keys.iter().enumerate().filter_map(|(n, key)| Some((longest(key)?, n)));
        fits.max().map(|(_, number)| number)
    }
}

/// A caller: the bearer of an API key, or anonymous if there are none.
#[derive(Clone, Debug)]
pub struct Caller {
    key: Option<Arc<ApiKey>>,
    number: usize,
}

impl Caller {
    /// The name of the API key; empty if there are none.
    pub fn name(&self) -> &str {
        self.key.as_ref().map_or("", |key| &key.name)
    }

    /// The number of the API key.
    pub fn number(&self) -> Option<usize> {
        self.key.as_ref().map(|_| self.number)
    }

    /// Returns whether the caller may do one of `permitted` at all.
    pub fn has(&self, permitted: &[Permission]) -> bool {
        let has = |key: &Arc<ApiKey>| permitted.iter().any(|one| key.permissions.contains(one));
        self.key.as_ref().is_none_or(has)
    }

    /// Returns whether the caller may do one of `permitted` to the lock key `text`.
    pub fn may(&self, permitted: &[Permission], text: &str) -> bool {
        let within = |key: &Arc<ApiKey>| key.prefixes.iter().any(|one| text.starts_with(one));
        self.has(permitted) && self.key.as_ref().is_none_or(within)
    }

    /// The prefixes of the visible keys under `prefix`, none within another.
    pub fn visible(&self, prefix: &str) -> Vec<String> {
        let Some(key) = &self.key else { return vec![prefix.to_owned()] };
        let mut visible: Vec<String> = Vec::new();
        let mut own: Vec<&String> = key.prefixes.iter().collect();
        own.sort(); // A prefix comes before all that begin with it.
        for own in own {
            let seen = if own.starts_with(prefix) { own.as_str() } else { prefix };
            if prefix.starts_with(own.as_str()) || own.starts_with(prefix) {
                let covered = visible.iter().any(|wider| seen.starts_with(wider.as_str()));
                visible.extend((!covered).then(|| seen.to_owned()));
            }
        }
        visible
    }
}

/// Reads a list of words: an array in a file, or words separated by spaces in the environment.
fn words<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "a list of texts")]
    enum Words {
        One(String),
        Several(Vec<String>),
    }
    Ok(match Words::deserialize(deserializer)? {
        Words::One(text) => text.split_whitespace().map(str::to_owned).collect(),
        Words::Several(words) => words,
    })
}

#[cfg(test)]
mod tests {
    use super::{ApiKey, Digest, Keyring, Permission};

    /// The SHA-256 of `sesame`.
    const SESAME: &str = "d0c04f4b1951e4aeaaec8223ed2039e542f3aae805a6fa7f6d794e5afff5d272";

    /// The SHA-256 of nothing.
    const EMPTY: &str = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn keyring(prefixes: &[&str]) -> Keyring {
        let key = format!(
            "name = 'shop'\nsha256 = '{SESAME}'\nprefixes = {prefixes:?}\npermissions = ['acquire']"
        );
        Keyring::new(vec![toml::from_str(&key).unwrap()])
    }

    #[test]
    fn only_the_bearer_of_the_secret_is_known() {
        let keyring = keyring(&[""]);
        for (header, known) in [
            (Some("Bearer sesame"), true),
            (Some("bearer  sesame "), true),
            (Some("Bearer Sesame"), false),
            (Some("Bearer "), false),
            (Some("Basic sesame"), false),
            (Some("sesame"), false),
            (None, false),
        ] {
            assert_eq!(keyring.identify(header.map(str::as_bytes)).is_some(), known, "{header:?}");
        }
        assert!(Keyring::default().identify(None).is_some());
    }

    #[test]
    fn a_right_is_a_permission_and_a_prefix() {
        let caller = keyring(&["shop/", "cron"]).identify(Some(b"Bearer sesame")).unwrap();
        assert!(caller.may(&[Permission::Acquire], "shop/7"));
        assert!(caller.may(&[Permission::Read, Permission::Acquire], "crontab"));
        assert!(!caller.may(&[Permission::Acquire], "shop"));
        assert!(!caller.may(&[Permission::Admin], "shop/7"));
    }

    #[test]
    fn a_list_shows_what_is_asked_for_and_allowed_and_nothing_twice() {
        let caller = keyring(&["b/", "b/c", "a"]).identify(Some(b"Bearer sesame")).unwrap();
        assert_eq!(caller.visible(""), ["a", "b/"]);
        assert_eq!(caller.visible("b"), ["b/"]);
        assert_eq!(caller.visible("b/c/d"), ["b/c/d"]);
        assert!(caller.visible("c").is_empty());
    }

    #[test]
    fn a_lease_is_most_likely_of_the_api_key_with_the_longest_prefix() {
        let keys = [
            ("a", "['', 'shop/x']", "acquire"),
            ("b", "['shop/']", "acquire"),
            ("c", "['shop/a']", "read"),
        ];
        let keys = keys.map(|(name, prefixes, permission)| {
            toml::from_str(&format!(
                "name = '{name}'\nsha256 = '{SESAME}'\nprefixes = {prefixes}\n\
                 permissions = ['{permission}']"
            ))
            .unwrap()
        });
        let keyring = Keyring::new(keys.into());
        for (key, number) in [("shop/a", 1), ("shop/x", 0), ("other", 0)] {
            assert_eq!(keyring.likely(key), Some(number), "{key}");
        }
        assert_eq!(Keyring::default().likely("a"), None);
    }

    #[test]
    fn api_keys_that_cannot_be_meant_are_refused() {
        let key = |name: &str, sha256: &str, prefixes: &str, permissions: &str| {
            let text = format!(
                "name = '{name}'\nsha256 = '{sha256}'\nprefixes = {prefixes}\n\
                 permissions = {permissions}"
            );
            toml::from_str::<ApiKey>(&text).unwrap()
        };
        let other = SESAME.replace('d', "e");
        let shop = || key("shop", SESAME, "['shop/']", "['acquire']");
        let metrics = key("metrics", &other, "[]", "['read']");
        assert_eq!(ApiKey::fault(&[shop(), metrics]), None);
        for (second, fault) in [
            (key("", &other, "['']", "['acquire']"), "needs a name"),
            (key("shop", &other, "['']", "['acquire']"), "have this name"),
            (key("b", SESAME, "['']", "['acquire']"), "the same secret"),
            (key("b", EMPTY, "['']", "['acquire']"), "empty secret"),
            (key("b", &other, "['']", "[]"), "may do nothing"),
            (key("b", &other, "[]", "['read', 'admin']"), "may use no lock key"),
        ] {
            let told = ApiKey::fault(&[shop(), second]).unwrap();
            assert!(told.contains(fault), "{told}");
        }
    }

    #[test]
    fn a_digest_is_64_hexadecimal_digits() {
        assert!(Digest::try_from(SESAME.to_uppercase()).is_ok());
        for digest in ["", "sesame", &SESAME[1..], &SESAME.replace('d', "g"), &"+1".repeat(32)] {
            assert!(Digest::try_from(digest.to_owned()).is_err(), "{digest}");
        }
    }
}
