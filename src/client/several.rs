//! A claim of several keys, and its answer.

use std::time::Duration;

use hyper::Method;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::client::{ANSWER_TIME, Client, ClientError, Granted, HttpCall, Wish};
use crate::lock::key::LockKey;
use crate::lock::lease::Owner;
use crate::lock::slots::{Share, Slots};
use crate::lock::time::{Ttl, millis_down};
use crate::lock::token::{FencingToken, LeaseToken};

/// A key, and the share of it; an exclusive lease if absent.
pub(crate) type KeyWish = (LockKey, Option<Share>);

impl Client {
    /// Acquires a lease of each key, or none, and waits for at most `wait` in all. The first key's
    /// fencing token is told, and the least TTL; the body has all.
    pub(crate) async fn acquire_all(
        &self,
        keys: &[KeyWish],
        token: &LeaseToken,
        wish: &Wish,
        wait: Duration,
    ) -> Result<Granted, ClientError> {
        let claimed = |(key, share): &KeyWish| {
            let mut claim = json!({ "key": key.as_str() });
            add_share(&mut claim, *share);
            claim
        };
        let body = json!({
            "keys": keys.iter().map(claimed).collect::<Vec<Value>>(),
            "ttl_ms": wish.ttl.map(Ttl::as_millis),
            "wait_ms": millis_down(wait),
            "owner": wish.owner.as_ref().map(Owner::as_str),
        });
        let call = HttpCall {
            token: Some(token),
            body: body.to_string(),
            within: wait.saturating_add(ANSWER_TIME),
            ..HttpCall::new(Method::POST, "/locks".to_owned())
        };
        granted(self.call(call).await?.1, keys, token)
    }
}

impl Granted {
    /// The keys of the grant, each with its fencing token and its slot; `first` if it was asked for
    /// alone.
    pub(crate) fn each(&self, first: &LockKey) -> Vec<(LockKey, FencingToken, Option<u16>)> {
        let of_several = serde_json::from_str::<Body>(&self.body).ok().map(|body| body.leases);
        let lease = |lease: Lease| {
            let number = FencingToken::from_number(lease.fencing_token)?;
            Some((LockKey::parse(&lease.key).ok()?, number, lease.slot))
        };
        let alone = || vec![(first.clone(), self.fencing_token, self.slot)];
        of_several.map_or_else(alone, |leases| leases.into_iter().filter_map(lease).collect())
    }
}

#[derive(Deserialize)]
struct Body {
    token: String,
    leases: Vec<Lease>,
    ttl_ms: u64,
    waited_ms: u64,
}

#[derive(Deserialize)]
struct Lease {
    key: String,
    fencing_token: u64,
    #[serde(default)]
    capped: bool,
    slot: Option<u16>,
}

/// Parses a grant, which has to be for these keys.
fn granted(body: String, keys: &[KeyWish], token: &LeaseToken) -> Result<Granted, ClientError> {
    let read: Body = serde_json::from_str(&body).map_err(|_| ClientError::strange())?;
    let asked = keys.iter().map(|(key, _)| key.as_str());
    let is_ours = read.leases.iter().map(|lease| &*lease.key).eq(asked);
    if !is_ours || LeaseToken::parse(&read.token).as_ref() != Ok(token) {
        let why = "the answer is for another claim".to_owned();
        return Err(ClientError::NoAnswer { why, sent: true });
    }
    let first = read.leases.first().ok_or_else(ClientError::strange)?.fencing_token;
    Ok(Granted {
        fencing_token: FencingToken::from_number(first).ok_or_else(ClientError::strange)?,
        ttl: Duration::from_millis(read.ttl_ms),
        waited: Duration::from_millis(read.waited_ms),
        capped: read.leases.iter().any(|lease| lease.capped),
        slot: None,
        body,
    })
}

/// Adds the share to a claim.
pub(super) fn add_share(claim: &mut Value, share: Option<Share>) {
    let Some(Share { slots, units, .. }) = share else { return };
    match slots {
        Slots::SHARED => claim["shared"] = true.into(),
        slots => claim["slots"] = slots.number().into(),
    }
    if units > 1 {
        claim["units"] = units.into();
    }
}
