//! The names and values of a body or a query, in the forms that clients send: an empty body typed as
//! JSON, JSON under any type, a form.

use std::collections::HashSet;
use std::fmt;

use axum::http::HeaderMap;
use axum::http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use percent_encoding::percent_decode;
use serde::Deserialize;
use serde::de::{Error, IgnoredAny, MapAccess, SeqAccess, Unexpected, Visitor};
use serde_json::Value;

use crate::api::error::{ApiError, shown};
use crate::wire::Code;

/// Some Windows programs write it before JSON.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// The values of `Content-Encoding` that are refused.
const COMPRESSED: [&[u8]; 6] = [b"gzip", b"x-gzip", b"deflate", b"br", b"zstd", b"compress"];

/// The first bytes of gzip data.
const GZIP: &[u8] = b"\x1f\x8b";

const FORM: &str = "application/x-www-form-urlencoded";

/// The members of a body, in order and with duplicates; within a member each name stands once.
pub(super) fn fields(headers: &HeaderMap, body: &[u8]) -> Result<Vec<(String, Value)>, ApiError> {
    let media_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    let media_type = media_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let body = body.strip_prefix(BYTE_ORDER_MARK).unwrap_or(body).trim_ascii();
    if body.is_empty() {
        return Ok(Vec::new());
    }
    let coding = headers.get(CONTENT_ENCODING).map_or(&b""[..], |value| value.as_bytes());
    if COMPRESSED.contains(&coding) || body.starts_with(GZIP) {
        let detail = "compressed bodies are not supported: send it without `Content-Encoding`";
        return Err(ApiError::new(Code::InvalidRequest, detail));
    }
    if media_type.starts_with("multipart/") {
        let detail = "multipart is not supported: send JSON, or a form with http_build_query()";
        return Err(ApiError::new(Code::InvalidRequest, detail));
    }
    if media_type == FORM && !matches!(body[0], b'{' | b'[') && body != b"null" {
        if !body.contains(&b'=') {
            // Not shown: it may be a misplaced lease token.
            let detail = "the body has to be a form such as `ttl_ms=5000`, or a JSON object";
            return Err(ApiError::new(Code::InvalidRequest, detail));
        }
        return form(body);
    }
    match serde_json::from_slice(body) {
        Ok(Fields(fields)) => {
            let are_flat = !fields.iter().any(|(_, value)| value.is_array() || value.is_object());
            if !are_flat {
                once_within(body)?;
            }
            Ok(fields)
        }
        Err(error) if error.is_data() => {
            Err(ApiError::new(Code::InvalidRequest, "the body has to be a JSON object"))
        }
        Err(error) => {
            Err(ApiError::new(Code::InvalidRequest, format!("the body is not valid JSON: {error}")))
        }
    }
}

/// Refuses a name that stands there twice.
pub(super) fn once(fields: Vec<(String, Value)>) -> Result<Vec<(String, Value)>, ApiError> {
    let mut names = HashSet::new();
    for (name, _) in &fields {
        if !names.insert(name) {
            let shown = shown(name);
            return Err(ApiError::invalid(&shown, format!("the request names `{shown}` twice")));
        }
    }
    Ok(fields)
}

/// Refuses a name that stands twice in an object within the body, which is valid JSON.
fn once_within(body: &[u8]) -> Result<(), ApiError> {
    match serde_json::from_slice(body) {
        Ok(Twice(Some(name))) => {
            let shown = shown(&name);
            let detail = format!("an object in the body names `{shown}` twice");
            Err(ApiError::invalid(&shown, detail))
        }
        _ => Ok(()),
    }
}

/// The pairs of a form or a query.
pub(super) fn form(text: &[u8]) -> Result<Vec<(String, Value)>, ApiError> {
    // The parser takes other bytes for a replacement character, and two names for one.
    if percent_decode(text).decode_utf8().is_err() {
        let detail = "the options are not UTF-8, once `%` and two digits are read as a byte";
        return Err(ApiError::new(Code::InvalidRequest, detail));
    }
    let pairs = form_urlencoded::parse(text);
    Ok(pairs.map(|(name, value)| (name.into_owned(), Value::String(value.into_owned()))).collect())
}

/// The members of a JSON object, in order and with duplicates, which a map would hide. Some clients
/// send `[]` or `null` for an empty one.
struct Fields(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members;

        impl<'de> Visitor<'de> for Members {
            type Value = Fields;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Fields, A::Error> {
                let mut fields = Vec::new();
                while let Some(field) = map.next_entry()? {
                    fields.push(field);
                }
                Ok(Fields(fields))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Fields, A::Error> {
                match items.next_element::<IgnoredAny>()? {
                    None => Ok(Fields(Vec::new())),
                    Some(_) => Err(A::Error::invalid_type(Unexpected::Seq, &self)),
                }
            }

            fn visit_unit<E>(self) -> Result<Fields, E> {
                Ok(Fields(Vec::new()))
            }
        }

        deserializer.deserialize_any(Members)
    }
}

/// The first name that stands twice in one object of a JSON value, at any depth.
struct Twice(Option<String>);

impl<'de> Deserialize<'de> for Twice {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Values;

        impl<'de> Visitor<'de> for Values {
            type Value = Twice;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON value")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Twice, A::Error> {
                let (mut names, mut twice) = (HashSet::new(), None);
                while let Some((name, Twice(within))) = map.next_entry::<String, Twice>()? {
                    let again = names.contains(&name).then(|| name.clone());
                    twice = twice.or(within).or(again);
                    names.insert(name);
                }
                Ok(Twice(twice))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Twice, A::Error> {
                let mut twice = None;
                while let Some(Twice(within)) = items.next_element()? {
                    twice = twice.or(within);
                }
                Ok(Twice(twice))
            }

            fn visit_bool<E>(self, _: bool) -> Result<Twice, E> {
                Ok(Twice(None))
            }

            fn visit_i64<E>(self, _: i64) -> Result<Twice, E> {
                Ok(Twice(None))
            }

            fn visit_u64<E>(self, _: u64) -> Result<Twice, E> {
                Ok(Twice(None))
            }

            fn visit_f64<E>(self, _: f64) -> Result<Twice, E> {
                Ok(Twice(None))
            }

            fn visit_str<E>(self, _: &str) -> Result<Twice, E> {
                Ok(Twice(None))
            }

            fn visit_unit<E>(self) -> Result<Twice, E> {
                Ok(Twice(None))
            }
        }

        deserializer.deserialize_any(Values)
    }
}
