//! The options of a request, from its body and its query. Unknown options are refused by name,
//! because a misspelt TTL must never silently mean the default. `fields` reads the body.

use std::time::Duration;

use axum::body::Body;
use axum::extract::Request;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::Value;

use crate::api::error::{ApiError, shown};
use crate::api::extract::{KeyCall, header_token, parse_token, two_tokens};
use crate::api::fields::{fields, form, once};
use crate::api::{ApiLimits, App};
use crate::lock::key::LockKey;
use crate::lock::lease::{Claim, Origin, Owner};
use crate::lock::slots::Slots;
use crate::lock::time::{Ttl, TtlBounds, millis_down, parse_duration};
use crate::lock::token::{FencingToken, LeaseToken};
use crate::wire::Code;

/// Long enough to reconnect and resume, short enough to wait out.
const MAX_LINGER_MS: u64 = 60_000;

/// The most keys of a request: a client waits for each of their calls to the store.
const MOST_KEYS: usize = 16;

/// The names of a key and of a list of keys.
pub(super) const KEY: &str = "key";
pub(super) const KEYS: &str = "keys";

/// The options of a request: those of the body, then those of the query.
#[derive(Debug)]
pub(super) struct Options {
    fields: Vec<(String, Value)>,
    header_token: Option<LeaseToken>,
}

/// The option names of a verb.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known {
    pub(super) query: &'static [&'static str],
    pub(super) body: &'static [&'static str],
}

impl Options {
    /// Reads all options, and refuses those that `known` does not list.
    pub(super) async fn read(
        request: Request,
        limits: &ApiLimits,
        known: Known,
    ) -> Result<Self, ApiError> {
        let (parts, body) = request.into_parts();
        let header_token = header_token(&parts.headers)?;
        let query = query(parts.uri.query(), known.query)?;
        let fields = fields(&parts.headers, &collect(body, limits).await?)?;
        refuse_others(&fields, known.body)?;
        let mut fields = once(fields)?;
        fields.extend(query);
        Ok(Self { fields, header_token })
    }

    /// The lease token, from the header or the body.
    pub(super) fn token(&self) -> Result<Option<LeaseToken>, ApiError> {
        let body = match self.find("token") {
            Some(Value::String(text)) => Some(parse_token(text)?),
            Some(_) => return Err(ApiError::invalid("token", "a token has to be a string")),
            None => None,
        };
        match (self.header_token.clone(), body) {
            (Some(header), Some(body)) if header != body => Err(two_tokens()),
            (header, body) => Ok(header.or(body)),
        }
    }

    /// The lease token, which this verb requires.
    pub(super) fn required_token(&self) -> Result<LeaseToken, ApiError> {
        self.token()?.ok_or_else(|| {
            ApiError::new(Code::TokenRequired, "send the lease token as the header `Lock-Token`")
        })
    }

    /// The keys of a request about several, each once and with options of its own: they are named by
    /// `keys`, also in the query, or by one of the other `lists`, with the options that each knows.
    pub(super) fn keys(
        &self,
        lists: &[(&'static str, &'static [&'static str])],
    ) -> Result<Vec<(LockKey, Self)>, ApiError> {
        let wrong = || {
            let detail =
                format!("name 1 to {MOST_KEYS} keys, as `?key=a&key=b` or in a JSON list `keys`");
            ApiError::invalid(KEYS, detail)
        };
        let mixed = || {
            let lists: Vec<_> = lists.iter().map(|(name, _)| format!("`{name}`")).collect();
            let lists = lists.join(" or ");
            let detail = format!("name all keys in one place: in the query, or in a list {lists}");
            ApiError::invalid(KEYS, detail)
        };
        let named =
            self.fields.iter().filter(|(_, value)| !value.is_null()).filter_map(|(name, list)| {
                let (_, known) = lists.iter().find(|(one, _)| one == name)?;
                Some((list, *known))
            });
        let named: Vec<_> = named.collect();
        let (items, known) = match named[..] {
            [(Value::Array(items), known)] => (items, known),
            [] | [_] => return Err(wrong()),
            _ => return Err(mixed()),
        };
        if !(1..=MOST_KEYS).contains(&items.len()) {
            return Err(wrong());
        }
        let mut keys: Vec<(LockKey, Self)> = Vec::new();
        for item in items {
            let fields = match item {
                Value::String(_) => vec![(KEY.to_owned(), item.clone())],
                Value::Object(fields) => fields.clone().into_iter().collect(),
                _ => return Err(wrong()),
            };
            refuse_others(&fields, known)?;
            let key = find(&fields, KEY).and_then(Value::as_str).ok_or_else(wrong)?;
            let key = LockKey::parse(key)?;
            if keys.iter().any(|(other, _)| *other == key) {
                let detail = format!("the request names the key '{}' twice", shown(key.as_str()));
                return Err(ApiError::invalid(KEYS, detail));
            }
            keys.push((key, Self { fields, header_token: None }));
        }
        Ok(keys)
    }

    /// The fencing token of the lease, if the request names one.
    pub(super) fn fencing_token(&self) -> Result<Option<FencingToken>, ApiError> {
        const NAME: &str = "fencing_token";
        let bad =
            || ApiError::invalid(NAME, "a fencing token is a whole number from 1 to 2^53 - 1");
        let number = |value| whole(value).and_then(FencingToken::from_number).ok_or_else(bad);
        self.find(NAME).map(number).transpose()
    }

    /// The reason of a forced release: a text like an owner.
    pub(super) fn reason(&self) -> Result<Option<String>, ApiError> {
        const NAME: &str = "reason";
        let bad =
            || ApiError::invalid(NAME, "a reason has at most 256 bytes and no control characters");
        let text = self.find(NAME).map_or(Some(""), Value::as_str).ok_or_else(bad)?;
        let reason = Owner::parse(text).map_err(|_| bad())?;
        Ok(reason.map(|reason| reason.as_str().to_owned()))
    }

    /// The TTL, if the request names one.
    pub(super) fn ttl(&self, bounds: &TtlBounds) -> Result<Option<Ttl>, ApiError> {
        let Some((name, wish)) = self.millis("ttl_ms", "ttl")? else { return Ok(None) };
        bounds.admit(wish).map(Some).ok_or_else(|| ApiError::ttl(name, bounds))
    }

    /// The wait in line, cut to `longest`, and whether it was cut.
    pub(super) fn wait(&self, longest: Duration) -> Result<(Duration, bool), ApiError> {
        let wish = self.millis("wait_ms", "wait")?;
        let wish = wish.map_or(Duration::ZERO, |(_, wish)| Duration::from_millis(wish));
        Ok((wish.min(longest), wish > longest))
    }

    /// The wait in line without a limit; `None` means forever.
    pub(super) fn endless_wait(&self) -> Result<Option<Duration>, ApiError> {
        let forever = match self.find("wait_ms") {
            Some(wish) => *wish == -1 || *wish == "-1",
            None => self.find("wait").is_some_and(|wish| wish == "forever"),
        };
        if forever { Ok(None) } else { self.wait(Duration::MAX).map(|(wait, _)| Some(wait)) }
    }

    /// The time that the lease outlives its connection.
    pub(super) fn linger(&self) -> Result<Option<Ttl>, ApiError> {
        let Some((name, wish)) = self.millis("linger_ms", "linger")? else { return Ok(None) };
        if wish > MAX_LINGER_MS {
            let detail = format!("`{name}` is at most {MAX_LINGER_MS} milliseconds");
            return Err(ApiError::invalid(name, detail));
        }
        Ok((wish > 0).then(|| Ttl::from_millis(wish)))
    }

    /// The claim that the request makes.
    pub(super) fn claim(&self, app: &App, call: &KeyCall) -> Result<Claim, ApiError> {
        let (token, origin) = match self.token()? {
            Some(token) => (token, Origin::Client),
            None => (app.tokens.make(), Origin::Service),
        };
        let ttl = self.ttl(&app.ttl)?.unwrap_or(app.ttl.default);
        let slots = self.slots(app.locks.guarantees().most_slots)?;
        Ok(Claim {
            key: call.key.clone(),
            token,
            origin,
            ttl,
            owner: self.owner()?.or_else(|| call.default_owner(app)),
            slots,
            units: self.units(slots)?,
            kept: false,
            named: self.fencing_token()?,
            permit: None,
        })
    }

    /// The slots, if the request names some.
    pub(super) fn slots(&self, most: Slots) -> Result<Option<Slots>, ApiError> {
        let shared = match self.find("shared").map(truth) {
            None => false,
            Some(Some(shared)) => shared,
            Some(None) => return Err(ApiError::invalid("shared", "`shared` is true or false")),
        };
        let (name, slots) = match self.find("slots") {
            Some(_) if shared => {
                let detail = "`shared` is for any number of holders: name it or `slots`, not both";
                return Err(ApiError::invalid("shared", detail));
            }
            Some(number) => {
                let slots = whole(number).and_then(Slots::from_number);
                let slots = slots.filter(|slots| *slots <= Slots::MOST);
                let bad = || ApiError::invalid("slots", "`slots` is a whole number from 1 to 1000");
                ("slots", slots.ok_or_else(bad)?)
            }
            None if shared => ("shared", Slots::SHARED),
            None => return Ok(None),
        };
        if most.is_alone() && !slots.is_alone() {
            let detail = "this store has exclusive leases only: claim one of KEY/1 to KEY/N";
            return Err(ApiError::invalid(name, detail));
        }
        Ok(Some(slots))
    }

    /// The units of these slots, if the request names some.
    pub(super) fn units(&self, slots: Option<Slots>) -> Result<Option<u16>, ApiError> {
        let Some(units) = self.find("units") else { return Ok(None) };
        let Some(slots) = slots.filter(|_| self.find("slots").is_some()) else {
            return Err(ApiError::invalid(
                "units",
                "`units` are a part of `slots`: name both, and not `shared`",
            ));
        };
        let units = whole(units).and_then(|units| units.try_into().ok());
        units.filter(|units| slots.has(*units)).map(Some).ok_or_else(|| {
            let most = slots.limit();
            let detail = format!("`units` is a whole number from 1 to the `slots`, {most}");
            ApiError::invalid("units", detail)
        })
    }

    /// The owner, if the request names one.
    fn owner(&self) -> Result<Option<Owner>, ApiError> {
        match self.find("owner") {
            Some(Value::String(text)) => {
                Owner::parse(text).map_err(|error| ApiError::invalid("owner", error.to_string()))
            }
            Some(_) => Err(ApiError::invalid("owner", "an owner has to be a string")),
            None => Ok(None),
        }
    }

    /// Milliseconds from the body, or a duration from the query, with the option's name.
    fn millis(
        &self,
        body: &'static str,
        query: &'static str,
    ) -> Result<Option<(&'static str, u64)>, ApiError> {
        if let Some(value) = self.find(body) {
            let bad = || ApiError::invalid(body, format!("`{body}` has to be whole milliseconds"));
            return whole(value).map(|ms| Some((body, ms))).ok_or_else(bad);
        }
        let Some(Value::String(text)) = self.find(query) else { return Ok(None) };
        let bad = || {
            let detail = format!(
                "`{query}` is a number and ms, s, m, h or d: `{query}=30s`, `{query}=1h30m`"
            );
            ApiError::invalid(query, detail)
        };
        let duration = parse_duration(text).ok_or_else(bad)?;
        Ok(Some((query, millis_down(duration))))
    }

    fn find(&self, name: &str) -> Option<&Value> {
        find(&self.fields, name)
    }
}

/// The query as names and texts, each name once and in `known`. Keys become one list.
pub(super) fn query(
    query: Option<&str>,
    known: &'static [&'static str],
) -> Result<Vec<(String, Value)>, ApiError> {
    let pairs = form(query.unwrap_or_default().as_bytes())?;
    let (keys, query): (Vec<_>, _) =
        pairs.into_iter().partition(|(name, _)| name == KEY && known.contains(&KEY));
    if find(&query, "token").is_some() {
        let detail = "a token must not be in a URL, because logs keep URLs: send `Lock-Token`";
        return Err(ApiError::invalid("token", detail));
    }
    refuse_others(&query, known)?;
    let mut query = once(query)?;
    if !keys.is_empty() {
        query.push((KEYS.to_owned(), keys.into_iter().map(|(_, key)| key).collect()));
    }
    Ok(query)
}

/// The members of a body, whatever their names; `None` without a body. The request has no other
/// options.
pub(super) async fn members(
    request: Request,
    limits: &ApiLimits,
) -> Result<Option<Vec<(String, Value)>>, ApiError> {
    let (parts, body) = request.into_parts();
    query(parts.uri.query(), &[])?;
    let body = collect(body, limits).await?;
    if body.is_empty() {
        return Ok(None);
    }
    fields(&parts.headers, &body).and_then(once).map(Some)
}

/// The value of a name; `null` counts as absent.
pub(super) fn find<'a>(fields: &'a [(String, Value)], name: &str) -> Option<&'a Value> {
    fields.iter().find(|(known, value)| known == name && !value.is_null()).map(|(_, value)| value)
}

/// A truth value of JSON or of a form.
fn truth(value: &Value) -> Option<bool> {
    match value {
        Value::Bool(truth) => Some(*truth),
        Value::String(text) => match text.as_str() {
            "true" | "1" => Some(true),
            "false" | "0" => Some(false),
            _ => None,
        },
        _ => None,
    }
}

fn refuse_others(
    fields: &[(String, Value)],
    known: &'static [&'static str],
) -> Result<(), ApiError> {
    match fields.iter().find(|(name, _)| !known.contains(&name.as_str())) {
        Some((name, _)) => Err(ApiError::unknown_field(name, known)),
        None => Ok(()),
    }
}

async fn collect(body: Body, limits: &ApiLimits) -> Result<Vec<u8>, ApiError> {
    let whole =
        tokio::time::timeout(limits.body_time, Limited::new(body, limits.body_bytes).collect());
    match whole.await {
        Ok(Ok(whole)) => Ok(whole.to_bytes().to_vec()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            let detail = format!("the body is larger than {} bytes", limits.body_bytes);
            Err(ApiError::new(Code::BodyTooLarge, detail))
        }
        Ok(Err(_)) => Err(ApiError::new(Code::InvalidRequest, "the body is incomplete")),
        Err(_) => Err(ApiError::new(Code::InvalidRequest, "the body did not arrive in time")),
    }
}

/// A whole number; numeric strings and integral floats count.
fn whole(value: &Value) -> Option<u64> {
    match value {
        Value::Number(number) => number.as_u64().or_else(|| integral(number.as_f64()?)),
        Value::String(text) if text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') => {
            text.parse().ok().or_else(|| integral(text.parse().ok()?))
        }
        _ => None,
    }
}

/// The integer that equals this float exactly.
fn integral(float: f64) -> Option<u64> {
    const EXACT: f64 = (1_u64 << 53) as f64;
    ((0.0..EXACT).contains(&float) && float.fract() == 0.0).then_some(float as u64)
}
