//! The two tokens of a lease: the secret that proves ownership, and the public number by which the
//! guarded resource refuses a late writer.

use std::fmt;
use std::sync::Arc;

use subtle::ConstantTimeEq;
use uuid::Uuid;

/// Shorter tokens could be guessed, or written down in a crontab that two hosts share.
const MIN_TOKEN_BYTES: usize = 16;
/// Long enough for any signed or hashed identifier.
const MAX_TOKEN_BYTES: usize = 128;

/// The secret that proves that its bearer holds a lease.
///
/// 16 to 128 characters of `[A-Za-z0-9._~+/=-]`. Never shown: `Debug` is redacted, there is no
/// `Display`, and two are compared in constant time.
#[derive(Clone)]
pub struct LeaseToken(Arc<str>);

impl LeaseToken {
    /// Parses a token that a client chose.
    ///
    /// # Errors
    ///
    /// [`InvalidToken`] if its length or a character is not allowed.
    pub fn parse(text: &str) -> Result<Self, InvalidToken> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._~+/=-".contains(&byte);
        if (MIN_TOKEN_BYTES..=MAX_TOKEN_BYTES).contains(&text.len()) && text.bytes().all(allowed) {
            Ok(Self(text.into()))
        } else {
            Err(InvalidToken)
        }
    }

    /// The token as text, for the store and its owner only.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl PartialEq for LeaseToken {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_bytes().ct_eq(other.0.as_bytes()).into()
    }
}

impl Eq for LeaseToken {}

impl std::hash::Hash for LeaseToken {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.0.hash(state);
    }
}

impl fmt::Debug for LeaseToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("LeaseToken(…)")
    }
}

/// Not a valid lease token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a token has {MIN_TOKEN_BYTES} to {MAX_TOKEN_BYTES} characters of A-Z a-z 0-9 . _ ~ + / = -"
)]
pub struct InvalidToken;

/// Makes tokens for clients that bring none: a random UUID v4 after a fixed prefix.
#[derive(Clone, Debug)]
pub struct TokenMaker {
    prefix: String,
}

impl TokenMaker {
    /// A maker of tokens that begin with `prefix`.
    ///
    /// # Errors
    ///
    /// [`InvalidToken`] if tokens with this prefix are too long or contain another character.
    pub fn new(prefix: &str) -> Result<Self, InvalidToken> {
        let maker = Self { prefix: prefix.to_owned() };
        LeaseToken::parse(&format!("{prefix}{}", Uuid::nil())).map(|_| maker)
    }

    /// Makes a new token: 122 random bits.
    pub fn make(&self) -> LeaseToken {
        LeaseToken(format!("{}{}", self.prefix, Uuid::new_v4()).into())
    }

    /// The token of a secret with this digest: always the same.
    pub fn of_digest(&self, digest: u128) -> LeaseToken {
        LeaseToken(format!("{}{digest:032x}", self.prefix).into())
    }
}

/// A number that rises with every new lease of a key, from 1 to 2^53 - 1, which every JSON reader
/// can hold. Neither dense nor a time, and comparable only within one key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(u64);

impl FencingToken {
    /// The first number that is too large: JavaScript rounds from here on.
    const END: u64 = 1 << 53;

    /// The lowest one.
    pub const LEAST: Self = Self(1);

    /// The highest one.
    pub const MOST: Self = Self(Self::END - 1);

    /// The fencing token with this number, if it is in range.
    pub fn from_number(number: u64) -> Option<Self> {
        (1..Self::END).contains(&number).then_some(Self(number))
    }

    /// Its number.
    pub fn number(self) -> u64 {
        self.0
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::{FencingToken, LeaseToken, TokenMaker};

    #[test]
    fn a_token_of_the_service_is_a_token_and_never_repeats() {
        let maker = TokenMaker::new("9999999999-").unwrap();
        let one = maker.make();
        let two = maker.make();
        assert!(one.expose().starts_with("9999999999-"));
        assert_eq!(LeaseToken::parse(one.expose()), Ok(one.clone()));
        assert_ne!(one, two);
        let derived = maker.of_digest(7);
        assert_eq!(LeaseToken::parse(derived.expose()), Ok(maker.of_digest(7)));
        assert_ne!(derived, maker.of_digest(8));
    }

    #[test]
    fn a_prefix_that_makes_no_token_is_refused() {
        assert!(TokenMaker::new("a b").is_err());
        assert!(TokenMaker::new(&"x".repeat(93)).is_err());
        assert!(TokenMaker::new(&"x".repeat(92)).is_ok());
    }

    #[test]
    fn a_lease_token_is_never_printed() {
        let token = LeaseToken::parse("a-very-secret-token").unwrap();
        assert!(!format!("{token:?} {:?}", Some(&token)).contains("secret"));
    }

    #[test]
    fn a_fencing_token_is_a_number_that_json_readers_can_hold() {
        assert_eq!(FencingToken::from_number(0), None);
        assert_eq!(FencingToken::from_number(1 << 53), None);
        assert_eq!(
            FencingToken::from_number((1 << 53) - 1).map(FencingToken::number),
            Some((1 << 53) - 1)
        );
    }
}
