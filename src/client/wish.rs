//! The wishes for a lease.

use std::time::Duration;

use serde_json::json;

use crate::lock::lease::Owner;
use crate::lock::slots::Slots;
use crate::lock::time::{Ttl, millis_down};

#[derive(Clone, Debug)]
pub(crate) struct Wish {
    /// The TTL; the service's default if absent.
    pub(crate) ttl: Option<Ttl>,
    /// The longest wait in line. The service may cut it.
    pub(crate) wait: Duration,
    /// The name of the holder, shown to others.
    pub(crate) owner: Option<Owner>,
    /// With how many it shares the key at most; an exclusive lease if absent.
    pub(crate) slots: Option<Slots>,
}

impl Wish {
    pub(super) fn body(&self) -> String {
        let mut body = json!({
            "ttl_ms": self.ttl.map(Ttl::as_millis),
            "wait_ms": millis_down(self.wait),
            "owner": self.owner.as_ref().map(Owner::as_str),
        });
        match self.slots {
            None => (),
            Some(Slots::SHARED) => body["shared"] = true.into(),
            Some(slots) => body["slots"] = slots.number().into(),
        }
        body.to_string()
    }
}
