//! The API keys and their rights. Headers and settings come in; the keys may be replaced while
//! requests are under way.

mod default_owner;
mod hosts;
mod proxies;

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer};
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq;
use tokio::sync::watch;

pub use crate::auth::default_owner::DefaultOwner;
pub use crate::auth::hosts::AllowedHosts;
pub use crate::auth::proxies::TrustedProxies;

/// A right of an API key under its prefixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize)]
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
    name: CallerName,
    sha256: Digest,
    prefixes: BTreeSet<String>,
    permissions: BTreeSet<Permission>,
}

/// The name of a caller. Two API keys with one name are two secrets of one caller, which lets it
/// change from one to the other.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(from = "String")]
pub struct CallerName(Arc<str>);

impl From<String> for CallerName {
    fn from(name: String) -> Self {
        Self(name.into())
    }
}

impl ApiKey {
    /// The reason why these keys cannot be used together; `None` if they can. Without this check a
    /// mistake would show only when a client is refused, or admitted.
    pub fn fault(keys: &[Self]) -> Option<String> {
        let mut names = HashMap::new();
        let mut digests = HashSet::new();
        for key in keys {
            let name = &*key.name.0;
            let needs_prefix = |one: &Permission| *one != Permission::Read;
            let fault = if name.is_empty() {
                "an API key needs a name, which the log shows"
            } else if !names.entry(name).or_insert(key).has_rights_of(key) {
                "two API keys with this name differ in their prefixes or permissions; those of one \
                 caller are the same, another caller needs another name"
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

    /// The SHA-256 of a secret, as the settings have it.
    pub fn sha256_of(secret: &str) -> String {
        Sha256::digest(secret).iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn has(&self, permitted: &[Permission]) -> bool {
        permitted.iter().any(|one| self.permissions.contains(one))
    }

    fn may(&self, permitted: &[Permission], text: &str) -> bool {
        self.has(permitted) && self.prefixes.iter().any(|one| text.starts_with(one.as_str()))
    }

    /// Returns whether both are the same secret of the same caller.
    fn is_secret_of(&self, other: &Self) -> bool {
        self.name == other.name && self.sha256.0 == other.sha256.0
    }

    fn has_rights_of(&self, other: &Self) -> bool {
        self.permissions == other.permissions && self.prefixes == other.prefixes
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ApiKey").field(&self.name.0).finish()
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

/// All API keys. Without any, every caller may do everything. A clone has the same keys, also after
/// they were replaced.
#[derive(Clone, Debug, Default)]
pub struct Keyring {
    keys: watch::Sender<Vec<Arc<ApiKey>>>,
}

/// The names of the API keys that a replacement has added, removed, and given other rights.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyChanges {
    /// With new secrets.
    pub added: Vec<String>,
    /// Without secrets that they had.
    pub removed: Vec<String>,
    /// With other prefixes or permissions.
    pub changed: Vec<String>,
}

impl Keyring {
    /// A keyring with the keys of the settings.
    pub fn new(keys: Vec<ApiKey>) -> Self {
        Self { keys: watch::Sender::new(keys.into_iter().map(Arc::new).collect()) }
    }

    /// Replaces all keys.
    pub fn replace(&self, keys: Vec<ApiKey>) -> KeyChanges {
        let keys = keys.into_iter().map(Arc::new).collect::<Vec<_>>();
        let before = self.keys.send_replace(keys.clone());
        let names = |those: &mut dyn Iterator<Item = &Arc<ApiKey>>| {
            those.map(|key| key.name.0.to_string()).collect()
        };
        let lack =
            |those: &[Arc<ApiKey>], key: &ApiKey| !those.iter().any(|one| one.is_secret_of(key));
        let changed = |key: &ApiKey| {
            before.iter().any(|one| one.is_secret_of(key) && !one.has_rights_of(key))
        };
        KeyChanges {
            added: names(&mut keys.iter().filter(|key| lack(&before, key))),
            removed: names(&mut before.iter().filter(|key| lack(&keys, key))),
            changed: names(&mut keys.iter().filter(|key| changed(key))),
        }
    }

    /// Returns whether there are no keys, so that every caller may do everything.
    pub fn is_open(&self) -> bool {
        self.keys.borrow().is_empty()
    }

    /// The number of callers: several keys with one name are one.
    pub fn callers(&self) -> usize {
        self.keys.borrow().iter().map(|key| &key.name).collect::<HashSet<_>>().len()
    }

    /// The caller that sent this `Authorization` header; `None` if it is unknown.
    ///
    /// Compares all keys, each in constant time, so that the duration tells nothing about a secret.
    pub fn identify(&self, authorization: Option<&[u8]>) -> Option<Caller> {
        if self.is_open() {
            return Some(Caller { key: None });
        }
        let (scheme, secret) = authorization?.split_at_checked(7)?;
        if !scheme.eq_ignore_ascii_case(b"Bearer ") {
            return None;
        }
        let digest = Sha256::digest(secret.trim_ascii());
        let mut found = None;
        for key in self.keys.borrow().iter() {
            if bool::from(key.sha256.0.as_slice().ct_eq(digest.as_slice())) {
                found = Some(Caller { key: Some(key.clone()) });
            }
        }
        found
    }

    /// Waits until a caller may no longer do any of `permitted` to the lock key `text`, because its
    /// API key was removed or its rights were changed; without API keys, until there are some.
    ///
    /// # Cancel safety
    ///
    /// No change is lost: the next call sees it.
    pub async fn revoked(&self, caller: &Caller, permitted: &[Permission], text: &str) {
        let goes_on = |keys: &Vec<Arc<ApiKey>>| match &caller.key {
            None => keys.is_empty(),
            Some(own) => keys.iter().any(|key| key.is_secret_of(own) && key.may(permitted, text)),
        };
        // An error would mean that this keyring is gone.
        let _ = self.keys.subscribe().wait_for(|keys| !goes_on(keys)).await;
    }

    /// The caller that most likely acquired a lock key: the one with the longest matching prefix,
    /// of those that may.
    pub fn likely(&self, text: &str) -> Option<CallerName> {
        let longest = |key: &Arc<ApiKey>| {
            let within = key.prefixes.iter().filter(|one| text.starts_with(one.as_str()));
            let may = key.permissions.contains(&Permission::Acquire);
            within.map(String::len).max().filter(|_| may)
        };
        let keys = self.keys.borrow();
        let fits = keys.iter().filter_map(|key| Some((longest(key)?, &key.name)));
        fits.max_by_key(|(length, _)| *length).map(|(_, name)| name.clone())
    }
}

/// A caller: the bearer of an API key, or anonymous if there are none. Keeps the rights that it had
/// when it was identified.
#[derive(Clone, Debug)]
pub struct Caller {
    key: Option<Arc<ApiKey>>,
}

impl Caller {
    /// The name of the API key; empty if there are none.
    pub fn name(&self) -> &str {
        self.key.as_ref().map_or("", |key| &key.name.0)
    }

    /// The name under which its use is counted; `None` if there are no API keys.
    pub fn counted_as(&self) -> Option<&CallerName> {
        self.key.as_ref().map(|key| &key.name)
    }

    /// Returns whether the caller may do one of `permitted` at all.
    pub fn has(&self, permitted: &[Permission]) -> bool {
        self.key.as_ref().is_none_or(|key| key.has(permitted))
    }

    /// Returns whether the caller may do one of `permitted` to the lock key `text`.
    pub fn may(&self, permitted: &[Permission], text: &str) -> bool {
        self.key.as_ref().is_none_or(|key| key.may(permitted, text))
    }

    /// The prefixes of the visible keys under `prefix`, none within another.
    pub fn visible(&self, prefix: &str) -> Vec<String> {
        let Some(key) = &self.key else { return vec![prefix.to_owned()] };
        let mut visible: Vec<String> = Vec::new();
        // In their order: a prefix comes before all that begin with it.
        for own in &key.prefixes {
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
pub(crate) fn words<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "a text or a list of texts")]
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

    /// An API key with these lists of TOML.
    fn key(name: &str, secret: &str, prefixes: &str, permissions: &str) -> ApiKey {
        let sha256 = ApiKey::sha256_of(secret);
        let text = format!(
            "name = '{name}'\nsha256 = '{sha256}'\nprefixes = {prefixes}\n\
             permissions = {permissions}"
        );
        toml::from_str(&text).unwrap()
    }

    /// An API key that may acquire under `prefix`.
    fn one(name: &str, secret: &str, prefix: &str) -> ApiKey {
        key(name, secret, &format!("['{prefix}']"), "['acquire']")
    }

    #[test]
    fn a_lease_is_most_likely_of_the_api_key_with_the_longest_prefix() {
        let keyring = Keyring::new(vec![
            key("a", "1", "['', 'shop/x']", "['acquire']"),
            key("b", "2", "['shop/']", "['acquire']"),
            key("c", "3", "['shop/a']", "['read']"),
        ]);
        for (key, name) in [("shop/a", "b"), ("shop/x", "a"), ("other", "a")] {
            assert_eq!(keyring.likely(key), Some(name.to_owned().into()), "{key}");
        }
        assert_eq!(Keyring::default().likely("a"), None);
    }

    #[test]
    fn two_secrets_of_one_name_are_one_caller() {
        let keyring = Keyring::new(vec![one("shop", "old", ""), one("shop", "new", "")]);
        let [old, new] = ["Bearer old", "Bearer new"]
            .map(|header| keyring.identify(Some(header.as_bytes())).unwrap());
        assert_eq!(keyring.callers(), 1);
        assert_eq!(old.counted_as(), new.counted_as());
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_is_revoked_with_its_secret_its_rights_or_the_first_keys() {
        const ACQUIRE: &[Permission] = &[Permission::Acquire];
        let keyring = Keyring::new(vec![one("shop", "a", "")]);
        let caller = keyring.identify(Some(b"Bearer a")).unwrap();
        let second = std::time::Duration::from_secs(1);
        let revoked = async || {
            let waits = keyring.revoked(&caller, ACQUIRE, "x/1");
            tokio::time::timeout(second, waits).await.is_ok()
        };
        for (keys, expected) in [
            (vec![one("shop", "a", "x/"), one("shop", "b", "x/")], false),
            (vec![one("shop", "a", "y/")], true),
            (vec![one("shop", "b", "")], true),
            (vec![one("other", "a", "")], true),
            (vec![one("shop", "a", ""), one("shop", "b", "")], false),
        ] {
            let shown = format!("{keys:?}");
            keyring.replace(keys);
            assert_eq!(revoked().await, expected, "{shown}");
        }
        let open = Keyring::default();
        let anonymous = open.identify(None).unwrap();
        let waits = open.revoked(&anonymous, ACQUIRE, "x/1");
        let adds = async { open.replace(vec![one("shop", "a", "")]) };
        tokio::join!(waits, adds);
    }

    #[test]
    fn api_keys_that_cannot_be_meant_are_refused() {
        let shop = || one("shop", "a", "shop/");
        assert_eq!(ApiKey::fault(&[shop(), key("metrics", "b", "[]", "['read']")]), None);
        assert_eq!(ApiKey::fault(&[shop(), one("shop", "b", "shop/")]), None);
        for (second, fault) in [
            (one("", "b", ""), "needs a name"),
            (one("shop", "b", ""), "differ in their prefixes"),
            (key("shop", "b", "['shop/']", "['acquire', 'read']"), "differ in their prefixes"),
            (one("b", "a", ""), "the same secret"),
            (one("b", "", ""), "empty secret"),
            (key("b", "b", "['']", "[]"), "may do nothing"),
            (key("b", "b", "[]", "['read', 'admin']"), "may use no lock key"),
        ] {
            let told = ApiKey::fault(&[shop(), second]).unwrap();
            assert!(told.contains(fault), "{told}");
        }
    }

    #[test]
    fn a_digest_is_64_hexadecimal_digits() {
        let digest = ApiKey::sha256_of("sesame");
        assert!(Digest::try_from(digest.to_uppercase()).is_ok());
        for wrong in ["", "sesame", &digest[1..], &digest.replace('d', "g"), &"+1".repeat(32)] {
            assert!(Digest::try_from(wrong.to_owned()).is_err(), "{wrong}");
        }
    }
}
