//! The status of keys on several nodes, by majority.

use std::collections::BTreeSet;
use std::time::Duration;

use async_trait::async_trait;
use futures_util::future::join_all;

use crate::lock::error::{Effect, StoreError, Verb};
use crate::lock::key::LockKey;
use crate::lock::lease::{Holder, LockStatus};
use crate::lock::store::{Answer, Page};
use crate::lock::token::LeaseToken;
use crate::store::redis::list::Listed;
use crate::store::redis::node::failure;
use crate::store::redlock::poll::{Holding, Poll};
use crate::store::redlock::release::holder;
use crate::store::redlock::{RedlockStore, by_chance};

/// The longest sleep of a waiter: a direct Redis client releases without a hint, and a hint may be
/// lost.
const ASK_EVERY: Duration = Duration::from_millis(400);

/// The random delay that separates the questions of instances that wait for the end of a lease.
const SPREAD: Duration = Duration::from_millis(20);

impl RedlockStore {
    /// The status of a key, and whether a token has it.
    pub(super) async fn inspect_all(
        &self,
        key: &LockKey,
        token: Option<&LeaseToken>,
    ) -> Result<LockStatus, StoreError> {
        let question = self.nodes.look(key, self.rules.node_timeout);
        let poll = self.nodes.poll(&question, Poll::is_known).await;
        if poll.answered() < self.quorum().needed() {
            return Err(failure(Verb::Inspect, Effect::None, "too few nodes answered"));
        }
        let lease = poll.held_lease().filter(|_| poll.held());
        let mine = token.and_then(|token| poll.is_of(token));
        Ok(LockStatus { mine, ..self.status(key, lease.as_ref().map(holder)) })
    }

    /// The status of a key with the rival of a poll as its holder.
    pub(super) fn rival(&self, key: &LockKey, poll: &Poll) -> LockStatus {
        // The rival is over when a majority of nodes is free again.
        let lease = poll.held_lease().map(|lease| Holding { left: poll.left(), ..lease });
        self.status(key, lease.as_ref().map(holder))
    }

    /// The refusal of a claim by the lease of its own token.
    pub(super) fn mine(&self, key: &LockKey, own: Holder) -> Answer {
        Answer::Held(LockStatus { mine: Some(true), ..self.status(key, Some(own)) })
    }

    fn status(&self, key: &LockKey, holder: Option<Holder>) -> LockStatus {
        LockStatus {
            key: key.clone(),
            holder,
            sharers: None,
            waiters: self.queues.len(key),
            line: Vec::new(),
            mine: None,
        }
    }

    /// The time until the first in line asks again.
    pub(super) fn recheck_after(&self, poll: &Poll) -> Duration {
        if !poll.held() {
            return by_chance(SPREAD);
        }
        let left = poll.left().unwrap_or(ASK_EVERY);
        by_chance(SPREAD) + left.min(ASK_EVERY)
    }
}

#[async_trait]
impl Listed for RedlockStore {
    async fn names(&self, page: &Page, wanted: usize) -> Result<BTreeSet<LockKey>, StoreError> {
        let scans = (0..self.quorum().nodes())
            .map(|node| self.nodes.peer(node).scan(self.nodes.key_prefix(), page, wanted));
        let found: Vec<_> = join_all(scans).await.into_iter().flatten().collect();
        if found.len() < self.quorum().needed() {
            return Err(failure(Verb::List, Effect::None, "too few nodes answered"));
        }
        Ok(found.into_iter().flatten().collect::<BTreeSet<_>>().into_iter().take(wanted).collect())
    }

    async fn status_of(&self, key: &LockKey) -> Result<LockStatus, StoreError> {
        self.inspect_all(key, None).await
    }
}
