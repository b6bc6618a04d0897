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
            return Err(InvalidKey::Empty);
        }
        if text.len() > MAX_BYTES {
            return Err(InvalidKey::TooLong);
        }
        if text.chars().any(char::is_control) {
            return Err(InvalidKey::ControlCharacter);
        }
        for segment in text.split('/') {
            match segment {
                "" => return Err(InvalidKey::EmptySegment),
                "." | ".." => return Err(InvalidKey::DotSegment),
                _ => (),
            }
        }
        if text.rsplit('/').next() == Some(RESERVED_LAST_SEGMENT) {
            return Err(InvalidKey::Reserved);
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

/// The rule that an invalid key breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidKey {
    /// The text is empty.
    #[error("the key is empty")]
    Empty,
    /// More than 512 bytes.
    #[error("the key is longer than {MAX_BYTES} bytes")]
    TooLong,
    /// A character of C0, DEL or C1.
    #[error("the key contains a control character")]
    ControlCharacter,
    /// `a//b`, `/a` or `a/`: proxies merge such slashes.
    #[error("the key has an empty segment (a slash at an end, or two in a row)")]
    EmptySegment,
    /// `.` or `..` between slashes: clients and proxies resolve them away.
    #[error("the key has a segment `.` or `..`")]
    DotSegment,
    /// The last segment is `refresh`.
    #[error("the key ends in the reserved segment `{RESERVED_LAST_SEGMENT}`")]
    Reserved,
}
