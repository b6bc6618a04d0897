//! A lease that this process keeps for its agent.

use crate::cli::clock::Moment;
use crate::lock::slots::Share;
use crate::lock::token::{FencingToken, LeaseToken};

/// A lease as this process knows it.
#[derive(Clone, Debug)]
pub(super) struct Lease {
    pub(super) token: LeaseToken,
    pub(super) number: FencingToken,
    pub(super) share: Option<Share>,
    pub(super) purpose: String,
    pub(super) since: Moment,
    /// The time of the next renewal.
    pub(super) renew: Moment,
    /// Without a renewal it ends then.
    pub(super) end: Moment,
}
