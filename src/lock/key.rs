//! The key of a lock, valid by construction.

use std::fmt;
use std::sync::Arc;

/// The longest key, in bytes: enough for any path or URL, and a page of 10 000 keys stays within a
/// few megabytes.
const MAX_BYTES: usize = 512;

/// No key ends in this segment, because `PUT /locks/{key}/refresh` is the refresh of `{key}`. A second
/// reserved segment would make keys invalid that are on disk, which reads as damage.
const RESERVED_LAST_SEGMENT: &str = "refresh";

/// The name of a lock: 1 to 512 bytes of UTF-8 without control characters, its `/`-separated
/// segments neither empty nor `.` nor `..`. Compared byte by byte, cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockKey(Arc<str>);

impl LockKey {
    /// Parses a key that is already percent-decoded.
    ///
    /// # Errors
    ///
    /// [`InvalidKey`] names the rule that the text breaks.
    pub fn parse(text: &str) -> Result<Self, InvalidKey> {
        if text.is_empty() {
            return Err(InvalidKey("is empty"));
        }
        if text.len() > MAX_BYTES {
            return Err(InvalidKey("is longer than 512 bytes"));
        }
        if text.chars().any(char::is_control) {
            return Err(InvalidKey("contains a control character"));
        }
        for segment in text.split('/') {
            let fault = match segment {
                // Proxies merge such slashes.
                "" => "has an empty segment (a slash at an end, or two in a row)",
                // Clients and proxies resolve them away.
                "." | ".." => "has a segment `.` or `..`",
                _ => continue,
            };
            return Err(InvalidKey(fault));
        }
        if text.rsplit('/').next() == Some(RESERVED_LAST_SEGMENT) {
            return Err(InvalidKey("ends in the reserved segment `refresh`"));
        }
        Ok(Self(text.into()))
    }

    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for LockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for LockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

impl std::borrow::Borrow<str> for LockKey {
    fn borrow(&self) -> &str {
        &self.0
    }
}

/// Not a valid key, with the rule that it breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the key {0}")]
pub struct InvalidKey(&'static str);
