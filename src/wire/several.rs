//! The bodies of several leases: granted, refreshed or lost.

use serde::Serialize;

use crate::lock::lease::Grant;
use crate::lock::time::millis_down;
use crate::wire::{several, shared_by};

/// The body of leases of several keys: their token, and the least TTL.
#[derive(Debug, Serialize)]
pub(crate) struct LeasesBody<'a> {
    token: &'a str,
    leases: Vec<KeyGrantBody<'a>>,
    ttl_ms: u64,
    waited_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    owner: Option<&'a str>,
}

/// A lease among several.
#[derive(Debug, Serialize)]
struct KeyGrantBody<'a> {
    key: &'a str,
    fencing_token: u64,
    ttl_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    capped: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    slots: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    units: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    slot: Option<u16>,
}

impl<'a> LeasesBody<'a> {
    /// The body of grants of one token, of which there is one at least.
    pub(crate) fn of(grants: &'a [Grant]) -> Self {
        let first = &grants[0];
        let lease = |Grant { lease, .. }: &'a Grant| KeyGrantBody {
            key: lease.key.as_str(),
            fencing_token: lease.fencing_token.number(),
            ttl_ms: lease.ttl.as_millis(),
            capped: lease.capped.then_some(true),
            slots: shared_by(lease.share.slots),
            units: several(lease.share),
            slot: lease.share.slot,
        };
        let leases: Vec<_> = grants.iter().map(lease).collect();
        Self {
            token: first.token.expose(),
            ttl_ms: leases.iter().map(|lease| lease.ttl_ms).min().unwrap_or_default(),
            leases,
            waited_ms: millis_down(first.waited),
            owner: first.lease.owner.as_ref().map(|owner| owner.as_str()),
        }
    }
}

/// A lease of several that is lost, and the number that its token has instead.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct LostBody {
    pub(crate) key: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fencing_token: Option<u64>,
}
