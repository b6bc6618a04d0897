//! The configured prefixes of keys, which group keys in the metrics and limit how long a lease lasts.

use std::sync::Arc;

use crate::lock::key::LockKey;
use crate::lock::time::Ttl;

/// The most prefixes: each is a label of several metrics.
const MOST: usize = 50;

/// The label of the keys under no other prefix.
const OTHER: &str = "other";

/// A configured prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prefix {
    /// The beginning of its keys.
    pub text: String,
    /// The longest time that a lease of its keys lasts, however often it is renewed.
    pub max_hold: Option<Ttl>,
}

/// The configured prefixes. A key belongs to the longest one that it begins with, or to the rest.
#[derive(Clone, Debug)]
pub struct Prefixes {
    /// The longest first; the last is empty and has the rest.
    sorted: Arc<[Prefix]>,
}

impl Prefixes {
    /// Checks and sorts prefixes.
    ///
    /// # Errors
    ///
    /// The reason why they cannot be used together.
    pub fn new(mut prefixes: Vec<Prefix>) -> Result<Self, String> {
        if prefixes.len() > MOST {
            return Err(format!("there are more than {MOST}"));
        }
        for (at, Prefix { text, .. }) in prefixes.iter().enumerate() {
            if text == OTHER {
                let reason = "is the label of the keys under no prefix; write";
                return Err(format!("`{OTHER}` {reason} `{OTHER}/`"));
            }
            if prefixes[..at].iter().any(|earlier| earlier.text == *text) {
                return Err(format!("`{}` is listed twice", text.escape_debug()));
            }
            if text.is_empty() || LockKey::parse(&format!("{text}a")).is_err() {
                return Err(format!("no key begins with `{}`", text.escape_debug()));
            }
        }
        prefixes.sort_by_key(|prefix| std::cmp::Reverse(prefix.text.len()));
        prefixes.extend(Self::default().sorted.iter().cloned());
        Ok(Self { sorted: prefixes.into() })
    }

    /// The number of the prefix that a key belongs to.
    pub fn of(&self, key: &LockKey) -> usize {
        let found = self.sorted.iter().position(|prefix| prefix.has(key));
        found.unwrap_or(self.sorted.len() - 1)
    }

    /// The names of the prefixes, by number; the last is that of the rest.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        let names = self.sorted.iter().map(|prefix| prefix.text.as_str());
        names.map(|text| if text.is_empty() { OTHER } else { text })
    }

    /// The longest time that a lease of the key lasts: that of the longest of its prefixes that has
    /// one.
    pub fn max_hold(&self, key: &LockKey) -> Option<Ttl> {
        self.sorted.iter().filter(|prefix| prefix.has(key)).find_map(|prefix| prefix.max_hold)
    }
}

impl Default for Prefixes {
    /// No prefixes.
    fn default() -> Self {
        Self { sorted: Arc::new([Prefix { text: String::new(), max_hold: None }]) }
    }
}

impl Prefix {
    fn has(&self, key: &LockKey) -> bool {
        key.as_str().starts_with(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::{MOST, Prefix, Prefixes};
    use crate::lock::key::LockKey;
    use crate::lock::time::Ttl;

    fn new(prefixes: &[&str]) -> Result<Prefixes, String> {
        limiting(&prefixes.iter().map(|prefix| (*prefix, None)).collect::<Vec<_>>())
    }

    fn limiting(prefixes: &[(&str, Option<u64>)]) -> Result<Prefixes, String> {
        let prefix = |(text, ms): &(&str, Option<u64>)| Prefix {
            text: (*text).to_owned(),
            max_hold: ms.map(Ttl::from_millis),
        };
        Prefixes::new(prefixes.iter().map(prefix).collect())
    }

    #[test]
    fn a_key_is_limited_by_the_longest_of_its_prefixes_that_has_a_limit() {
        let prefixes =
            limiting(&[("a/", Some(9)), ("a/b/", None), ("a/b/c/", Some(5)), ("d/", None)]);
        let prefixes = prefixes.unwrap();
        for (key, expected) in
            [("a/x", Some(9)), ("a/b/x", Some(9)), ("a/b/c/x", Some(5)), ("d/x", None), ("e", None)]
        {
            let most = prefixes.max_hold(&LockKey::parse(key).unwrap());
            assert_eq!(most, expected.map(Ttl::from_millis), "{key}");
        }
    }

    #[test]
    fn prefixes_that_no_key_has_or_that_are_not_told_apart_are_refused() {
        for (prefixes, expected) in [
            (vec!["a", "b", "a"], "`a` is listed twice"),
            (vec![""], "no key begins with ``"),
            (vec!["/a"], "no key begins with `/a`"),
            (vec!["a//"], "no key begins with `a//`"),
            (vec!["a\n"], "no key begins with `a\\n`"),
            (vec!["other"], "write `other/`"),
        ] {
            let error = new(&prefixes).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        let many: Vec<_> = (0..=MOST).map(|number| number.to_string()).collect();
        let many: Vec<_> = many.iter().map(String::as_str).collect();
        assert_eq!(new(&many).unwrap_err(), "there are more than 50");
        assert!(new(&many[..MOST]).is_ok());
    }
}
