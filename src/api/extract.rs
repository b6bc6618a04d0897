//! The extractors of handlers: the caller and the key. Checked in the order of the contract:
//! method, API key, lock key. Rights and options follow in the handler.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use axum::extract::FromRequestParts;
use axum::http::header::{ACCEPT, AUTHORIZATION};
use axum::http::request::Parts;
use axum::http::{HeaderMap, Method, Uri};
use percent_encoding::percent_decode_str;
use uuid::Uuid;

use crate::api::error::{ApiError, shown};
use crate::api::{App, pages, trace};
use crate::auth::{Caller, Permission};
use crate::lock::key::LockKey;
use crate::lock::lease::Owner;
use crate::lock::token::LeaseToken;
use crate::wire::{Code, LOCK_TOKEN, REQUEST_ID};

const MAX_REQUEST_ID_BYTES: usize = 128;

/// The methods of a key and of its refresh.
const KEY_METHODS: &str = "DELETE, GET, HEAD, POST";
const REFRESH_METHODS: &str = "PUT";

/// The id of a request, its trace, its client's address, and its arrival.
#[derive(Clone, Debug)]
pub(super) struct RequestId {
    pub(super) text: Arc<str>,
    /// The trace id of the header `traceparent`, or of the request's span.
    pub(super) trace: Option<Arc<str>>,
    pub(super) client: IpAddr,
    pub(super) began: Instant,
}

impl RequestId {
    /// The id that was sent, if it is 1 to 128 visible ASCII characters, or a new one.
    pub(super) fn of(headers: &HeaderMap, client: IpAddr) -> Self {
        let given = headers.get(REQUEST_ID).and_then(|value| value.to_str().ok()).filter(|text| {
            (1..=MAX_REQUEST_ID_BYTES).contains(&text.len())
                && text.bytes().all(|byte| byte.is_ascii_graphic())
        });
        let text = given.map_or_else(|| Uuid::new_v4().to_string().into(), Arc::from);
        Self { text, trace: trace::id(headers), client, began: Instant::now() }
    }
}

/// A call about one key by a known caller.
#[derive(Debug)]
pub(super) struct KeyCall {
    pub(super) caller: Caller,
    pub(super) key: LockKey,
    pub(super) id: RequestId,
}

impl KeyCall {
    /// The owner of a claim of this call that names none.
    pub(super) fn default_owner(&self, app: &App) -> Option<Owner> {
        app.default_owner.of(self.caller.name(), self.id.client)
    }

    /// Refuses a caller that may do none of `permitted` to the key.
    pub(super) fn allow(&self, permitted: &[Permission]) -> Result<(), ApiError> {
        has_one(&self.caller, permitted)?;
        if self.caller.may(permitted, self.key.as_str()) {
            return Ok(());
        }
        let prefixes = self.caller.visible("").join(", ");
        let [key, prefixes] = [self.key.as_str(), &prefixes].map(shown);
        let detail = match prefixes.as_str() {
            "" => "this API key has no prefixes, so it may use no key".to_owned(),
            prefixes => format!("'{key}' has none of the prefixes of this API key: {prefixes}"),
        };
        Err(ApiError::forbidden(&self.caller, detail))
    }
}

impl FromRequestParts<Arc<App>> for KeyCall {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, ApiError> {
        let path = KeyPath::of(parts.uri.path());
        path.check(&parts.method)?;
        let caller = identify(app, parts)?;
        Ok(Self { caller, key: path.key()?, id: id(parts) })
    }
}

/// A call of a known caller about several keys, which its options name.
#[derive(Debug)]
pub(super) struct SeveralCall {
    caller: Caller,
    id: RequestId,
}

impl SeveralCall {
    /// The call about one of the keys, if the caller may use it.
    pub(super) fn about(&self, key: LockKey) -> Result<KeyCall, ApiError> {
        let call = KeyCall { caller: self.caller.clone(), key, id: self.id.clone() };
        call.allow(&[Permission::Acquire]).map(|()| call)
    }
}

impl FromRequestParts<Arc<App>> for SeveralCall {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, ApiError> {
        Ok(Self { caller: identify(app, parts)?, id: id(parts) })
    }
}

/// A known caller without a key, for the list and the metrics.
#[derive(Debug)]
pub(super) struct Reader(pub(super) Caller);

impl FromRequestParts<Arc<App>> for Reader {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Self, ApiError> {
        let caller = identify(app, parts)?;
        has_one(&caller, &[Permission::Read]).map(|()| Self(caller))
    }
}

/// The media types that a client accepts, as it wrote them, in lower case.
pub(super) fn accepted(headers: &HeaderMap) -> String {
    let values = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    values.collect::<Vec<_>>().join(",").to_ascii_lowercase()
}

/// Answers an unsupported method with the methods of this path.
pub(super) async fn refuse_method(uri: Uri) -> ApiError {
    ApiError::method(match uri.path() {
        path if path.starts_with("/locks/") && KeyPath::of(path).refresh => REFRESH_METHODS,
        path if path == "/locks" || path.starts_with("/locks/") => KEY_METHODS,
        path if path.starts_with("/hold/") => "POST",
        path if path.starts_with("/admin/") => "DELETE",
        _ => "GET, HEAD",
    })
}

/// The key of a path, if it has one that is valid.
pub(super) fn key_of(path: &str) -> Option<LockKey> {
    KeyPath::of(path).key().ok()
}

/// The part of a path that is a key, percent-decoded once.
struct KeyPath {
    bytes: Result<Vec<u8>, &'static str>,
    refresh: bool,
    /// Under `/locks/`, the only routes with a refresh.
    plain: bool,
}

impl KeyPath {
    fn of(path: &str) -> Self {
        let plain = path.strip_prefix("/locks/");
        let others = ["/hold/", "/admin/locks/", "/terraform/"];
        let other = others.into_iter().find_map(|root| path.strip_prefix(root));
        let rest = plain.or(other).unwrap_or_default();
        let mut bytes: Vec<u8> = percent_decode_str(rest).collect();
        let mut refresh = false;
        if plain.is_some() && (bytes.ends_with(b"/refresh") || bytes == b"refresh") {
            bytes.truncate(bytes.len().saturating_sub("/refresh".len()));
            refresh = true;
        }
        Self { bytes: badly_encoded(rest).map_or(Ok(bytes), Err), refresh, plain: plain.is_some() }
    }

    /// `/refresh` allows only `PUT`, and only `/refresh` allows it: `curl -d` without `-X PUT` is a
    /// POST, and must not acquire another lock.
    fn check(&self, method: &Method) -> Result<(), ApiError> {
        match (self.plain, self.refresh, method == Method::PUT) {
            (true, true, false) => Err(ApiError::method(REFRESH_METHODS)),
            (true, false, true) => Err(ApiError::method(KEY_METHODS)),
            _ => Ok(()),
        }
    }

    fn key(&self) -> Result<LockKey, ApiError> {
        let bad = |detail: &str| ApiError::new(Code::InvalidKey, detail);
        let bytes = self.bytes.as_ref().map_err(|detail| bad(detail))?;
        let text = std::str::from_utf8(bytes).map_err(|_| bad("the key is not UTF-8"))?;
        Ok(LockKey::parse(text)?)
    }
}

/// The lease token in the header, with or without the `<...>` of RFC 4918.
pub(super) fn header_token(headers: &HeaderMap) -> Result<Option<LeaseToken>, ApiError> {
    let mut found = None;
    for value in headers.get_all(LOCK_TOKEN) {
        let text = value.to_str().unwrap_or_default().trim();
        let text = text.strip_prefix('<').and_then(|text| text.strip_suffix('>')).unwrap_or(text);
        let token = parse_token(text)?;
        if found.as_ref().is_some_and(|other| *other != token) {
            return Err(two_tokens());
        }
        found = Some(token);
    }
    Ok(found)
}

pub(super) fn parse_token(text: &str) -> Result<LeaseToken, ApiError> {
    LeaseToken::parse(text).map_err(|error| ApiError::invalid("token", error.to_string()))
}

pub(super) fn two_tokens() -> ApiError {
    ApiError::invalid("token", "the request names two different tokens")
}

fn id(parts: &Parts) -> RequestId {
    parts.extensions.get().cloned().expect("Api::answer names every request")
}

fn identify(app: &App, parts: &Parts) -> Result<Caller, ApiError> {
    if app.keyring.is_open() {
        pages::refuse_others(parts, &app.hosts)?;
    }
    let mut all = parts.headers.get_all(AUTHORIZATION).iter();
    let authorization = all.next().map(|value| value.as_bytes());
    if !app.keyring.is_open() && all.next().is_some() {
        return Err(ApiError::unauthenticated("send one `Authorization` header"));
    }
    app.keyring.identify(authorization).ok_or_else(|| {
        ApiError::unauthenticated(match authorization {
            Some(_) => "unknown API key, or not of the form `Bearer <api key>`",
            None => "send `Authorization: Bearer <api key>`",
        })
    })
}

/// Refuses a caller that has none of these permissions, for any keys.
fn has_one(caller: &Caller, permitted: &[Permission]) -> Result<(), ApiError> {
    if caller.has(permitted) {
        return Ok(());
    }
    let names: Vec<_> = permitted.iter().map(|one| format!("`{one}`")).collect();
    let detail = format!("this API key lacks the permission {}", names.join(" or "));
    Err(ApiError::forbidden(caller, detail))
}

/// The fault in the encoding of a path. Some encoders write a space as `+`, others a plus: two
/// clients would lock two keys and not exclude each other.
fn badly_encoded(path: &str) -> Option<&'static str> {
    if path.contains('+') {
        return Some("a bare `+` in the path: send `%20` for a space, `%2B` for a plus");
    }
    let is_byte = |rest: &str| {
        rest.len() >= 2 && rest.as_bytes()[..2].iter().all(|digit| digit.is_ascii_hexdigit())
    };
    let bad = "a `%` in the path is not followed by two hexadecimal digits; write it as `%25`";
    (!path.split('%').skip(1).all(is_byte)).then_some(bad)
}
