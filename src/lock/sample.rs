//! Keys, claims and leases for unit tests.

use crate::lock::key::LockKey;
use crate::lock::lease::{Claim, Lease, Origin};
use crate::lock::slots::Share;
use crate::lock::store::Win;
use crate::lock::time::Ttl;
use crate::lock::token::{FencingToken, LeaseToken};

pub(crate) fn key(text: &str) -> LockKey {
    LockKey::parse(text).unwrap()
}

pub(crate) fn token(name: &str) -> LeaseToken {
    LeaseToken::parse(&format!("{name:-<16}")).unwrap()
}

pub(crate) fn number(number: u64) -> FencingToken {
    FencingToken::from_number(number).unwrap()
}

pub(crate) fn claim(on: &str, name: &str, ttl_ms: u64) -> Claim {
    Claim {
        key: key(on),
        token: token(name),
        origin: Origin::Client,
        ttl: Ttl::from_millis(ttl_ms),
        owner: None,
        slots: None,
        units: None,
        kept: false,
        named: None,
        permit: None,
    }
}

/// A new lease of 10 s.
pub(crate) fn win(on: &str, fencing_token: u64) -> Win {
    let lease = Lease {
        key: key(on),
        owner: None,
        fencing_token: number(fencing_token),
        ttl: Ttl::from_millis(10_000),
        capped: false,
        share: Share::ALONE,
    };
    Win { lease, fresh: true, replaces: None, place: None, by: 0 }
}
