//! The bodies of looks: the state of a key, its line, and the list of held keys. `openapi.yaml` says
//! what each member is.

use serde::{Deserialize, Serialize};

use crate::lock::lease::{Holder, LockStatus, Sharers, Waiter};
use crate::lock::store::Listing;
use crate::lock::time::{millis_down, millis_up};
use crate::wire::{owner_text, several};

/// The state of a key.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct StatusBody {
    pub(crate) key: String,
    pub(crate) held: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) owner: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fencing_token: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ttl_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) held_ms: Option<u64>,
    pub(crate) waiters: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) queue: Option<Vec<WaiterBody>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) mine: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) holders: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) slots: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) units: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) leases: Option<Vec<LeaseBody>>,
}

/// A lease of a shared key, as others see it.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct LeaseBody {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) owner: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) fencing_token: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) ttl_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) held_ms: Option<u64>,
    pub(crate) slots: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) units: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) slot: Option<u16>,
}

/// A waiting request, as others see it.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct WaiterBody {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) owner: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) waited_ms: Option<u64>,
}

impl From<&Holder> for LeaseBody {
    fn from(holder: &Holder) -> Self {
        Self {
            owner: owner_text(holder),
            fencing_token: holder.fencing_token.map(|token| token.number()),
            ttl_ms: holder.left.map(millis_up),
            held_ms: holder.held.map(millis_down),
            slots: holder.share.slots.limit(),
            units: several(holder.share),
            slot: holder.share.slot,
        }
    }
}

impl StatusBody {
    /// The state of a key with its line.
    pub(crate) fn with_queue(mut status: LockStatus) -> Self {
        let line = std::mem::take(&mut status.line);
        let queue = line.into_iter().map(WaiterBody::from).collect();
        Self { queue: Some(queue), ..status.into() }
    }
}

impl From<Waiter> for WaiterBody {
    fn from(Waiter { owner, waited }: Waiter) -> Self {
        let owner = owner.map(|owner| owner.as_str().to_owned());
        Self { owner, waited_ms: waited.map(millis_down) }
    }
}

impl From<LockStatus> for StatusBody {
    fn from(status: LockStatus) -> Self {
        let held = status.holder.is_some();
        let holder = status.holder.unwrap_or_default();
        let sharers = status.sharers.as_ref();
        let leases = sharers.map(|all| &all.leases).filter(|leases| !leases.is_empty());
        Self {
            key: status.key.to_string(),
            held,
            owner: owner_text(&holder),
            fencing_token: holder.fencing_token.map(|token| token.number()),
            ttl_ms: holder.left.map(millis_up),
            held_ms: holder.held.map(millis_down),
            waiters: status.waiters,
            queue: None,
            mine: status.mine,
            holders: sharers.map(|all| all.holders),
            slots: sharers.map(|all| all.slots.limit()),
            units: sharers.and_then(Sharers::several),
            leases: leases.map(|leases| leases.iter().map(LeaseBody::from).collect()),
        }
    }
}

/// A page of the list of held keys.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct ListBody {
    pub(crate) locks: Vec<StatusBody>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cursor: Option<String>,
    /// True if keys are left out; absent otherwise.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) incomplete: bool,
}

impl ListBody {
    /// A page of at most `most_bytes`, unless its first key has more.
    pub(crate) fn of(listing: Listing, most_bytes: usize) -> Vec<u8> {
        let (mut locks, mut bytes, mut cursor) = (Vec::new(), 0, listing.cursor);
        let incomplete = listing.incomplete;
        for status in listing.locks {
            let last = locks.last().map(|lock: &StatusBody| lock.key.clone());
            let lock = StatusBody::from(status);
            bytes += serde_json::to_vec(&lock).expect("only texts and numbers").len() + 1;
            if bytes > most_bytes && last.is_some() {
                cursor = last;
                break;
            }
            locks.push(lock);
        }
        serde_json::to_vec(&Self { locks, cursor, incomplete }).expect("only texts and numbers")
    }
}
