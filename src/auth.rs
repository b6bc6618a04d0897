//! Who may call, and what they may do. Pure: headers and settings come in.

use std::fmt;
use std::sync::Arc;

use serde::Deserialize;
use sha2::Digest as _;
use sha2::Sha256;
use subtle::ConstantTimeEq;

/// What an API key may do under its prefixes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Permission {
    /// Acquire, refresh, release, and look at a single key.
    Acquire,
    /// Look at keys, the list and the figures.
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

/// A client's right to call: known by the SHA-256 of its secret. An entry of `[[api_keys]]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ApiKey {
    name: String,
    sha256: Digest,
    prefixes: Vec<String>,
    permissions: Vec<Permission>,
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

/// All API keys. Without any, everybody may do everything.
#[derive(Debug, Default)]
pub struct Keyring {
    keys: Vec<Arc<ApiKey>>,
}

impl Keyring {
    /// The keys of the settings.
    pub fn new(keys: Vec<ApiKey>) -> Self {
        Self { keys: keys.into_iter().map(Arc::new).collect() }
    }

    /// Who sent this `Authorization` header; `None` if it is nobody who is known.
    ///
    /// Every key is compared, each in constant time: the time tells nothing of a secret.
    pub fn identify(&self, authorization: Option<&[u8]>) -> Option<Caller> {
        if self.keys.is_empty() {
            return Some(Caller { key: None });
        }
        let (scheme, secret) = authorization?.split_at_checked(7)?;
        if !scheme.eq_ignore_ascii_case(b"Bearer ") {
            return None;
        }
        let digest = Sha256::digest(secret.trim_ascii());
        let mut found = None;
        for key in &self.keys {
            if bool::from(key.sha256.0.as_slice().ct_eq(digest.as_slice())) {
                found = Some(key.clone());
            }
        }
        found.map(|key| Caller { key: Some(key) })
    }
}

/// Who calls: the bearer of an API key, or anybody where there are none.
#[derive(Clone, Debug)]
pub struct Caller {
    key: Option<Arc<ApiKey>>,
}

impl Caller {
    /// The name of their API key; empty where there are none.
    pub fn name(&self) -> &str {
        self.key.as_ref().map_or("", |key| &key.name)
    }

    /// Whether they may do one of `permitted` at all.
    pub fn has(&self, permitted: &[Permission]) -> bool {
        let has = |key: &Arc<ApiKey>| permitted.iter().any(|one| key.permissions.contains(one));
        self.key.as_ref().is_none_or(has)
    }

    /// Whether they may do one of `permitted` to the lock key `text`.
    pub fn may(&self, permitted: &[Permission], text: &str) -> bool {
        let within = |key: &Arc<ApiKey>| key.prefixes.iter().any(|one| text.starts_with(one));
        self.has(permitted) && self.key.as_ref().is_none_or(within)
    }

    /// The prefixes of what they may see under `prefix`, none within another.
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

#[cfg(test)]
mod tests {
    use super::Digest;
    use super::Keyring;
    use super::Permission;

    /// The SHA-256 of `sesame`.
    const SESAME: &str = "d0c04f4b1951e4aeaaec8223ed2039e542f3aae805a6fa7f6d794e5afff5d272";

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
    fn a_digest_is_64_hexadecimal_digits() {
        assert!(Digest::try_from(SESAME.to_uppercase()).is_ok());
        for digest in ["", "sesame", &SESAME[1..], &SESAME.replace('d', "g"), &"+1".repeat(32)] {
            assert!(Digest::try_from(digest.to_owned()).is_err(), "{digest}");
        }
    }
}
