//! The status of keys on several nodes, by majority.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use crate::lock::error::{Effect, StoreError, Verb};
use crate::lock::key::LockKey;
use crate::lock::lease::{Holder, LockStatus};
use crate::lock::store::{Answer, Page};
use crate::lock::token::LeaseToken;
use crate::store::redlock::by_chance;
use crate::store::redlock::context::{Context, failure};
use crate::store::redlock::poll::{Holding, Poll};
use crate::store::redlock::release::holder;

/// The longest sleep of a waiter: a direct Redis client releases without a hint, and a hint may be
/// lost.
const ASK_EVERY: Duration = Duration::from_millis(400);

/// The random delay that separates the questions of instances that wait for the end of a lease.
const SPREAD: Duration = Duration::from_millis(20);

/// The status of a key, and whether a token has it.
pub(super) async fn look(
    at: &Context,
    key: &LockKey,
    token: Option<&LeaseToken>,
) -> Result<LockStatus, StoreError> {
    let question = at.nodes.look(key, at.rules.node_timeout);
    let poll = at.nodes.poll(&question, Poll::is_known).await;
    if poll.answered() < at.quorum().needed() {
        return Err(failure(Verb::Inspect, Effect::None, "too few nodes answered"));
    }
    let lease = poll.held_lease().filter(|_| poll.held());
    let mine = token.and_then(|token| poll.is_of(token));
    Ok(LockStatus { mine, ..status(at, key, lease.as_ref().map(holder)) })
}

/// The status of a key with the rival of a poll as its holder.
pub(super) fn rival(at: &Context, key: &LockKey, poll: &Poll) -> LockStatus {
    // The rival is over when a majority of nodes is free again.
    let lease = poll.held_lease().map(|lease| Holding { left: poll.left(), ..lease });
    status(at, key, lease.as_ref().map(holder))
}

/// The refusal of a claim by the lease of its own token.
pub(super) fn mine(at: &Context, key: &LockKey, own: Holder) -> Answer {
    Answer::Held(LockStatus { mine: Some(true), ..status(at, key, Some(own)) })
}

fn status(at: &Context, key: &LockKey, holder: Option<Holder>) -> LockStatus {
    LockStatus {
        key: key.clone(),
        holder,
        sharers: None,
        waiters: at.queues.len(key),
        line: Vec::new(),
        mine: None,
    }
}

/// The time until the first in line asks again.
pub(super) fn recheck_after(poll: &Poll) -> Duration {
    if !poll.held() {
        return by_chance(SPREAD);
    }
    let left = poll.left().unwrap_or(ASK_EVERY);
    by_chance(SPREAD) + left.min(ASK_EVERY)
}

/// The first `wanted` keys of a page that any node has.
pub(super) async fn names(
    at: &Context,
    page: &Page,
    wanted: usize,
) -> Result<BTreeSet<LockKey>, StoreError> {
    let scans = (0..at.quorum().nodes())
        .map(|node| at.nodes.peer(node).scan(at.nodes.key_prefix(), page, wanted));
    let mut scans: FuturesUnordered<_> = scans.collect();
    let mut found = BTreeSet::new();
    for _ in 0..at.quorum().needed() {
        // A majority meets every lease.
        let keys = loop {
            match scans.next().await {
                Some(Ok(keys)) => break keys,
                Some(Err(_)) => (),
                None => return Err(failure(Verb::List, Effect::None, "too few nodes answered")),
            }
        };
        found.extend(keys);
    }
    Ok(found.into_iter().take(wanted).collect())
}
