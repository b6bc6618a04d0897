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
use crate::store::redlock::poll::{Holding, Poll, Quorum, Says};
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
        let needed = self.quorum().needed();
        let known = |poll: &Poll| {
            let free = poll.how_many(|said| *said == Says::Free);
            free >= needed || poll.holdings().any(|one| poll.has_majority(one))
        };
        let poll = self.nodes.poll(&question, known).await;
        if poll.answered() < needed {
            return Err(failure(Verb::Inspect, Effect::None, "too few nodes answered"));
        }
        let mine = match token {
            None => None,
            Some(token) => Some(poll.has_lease(token, self.quorum()).ok_or_else(|| {
                let reason = "nodes that may have the lease did not answer";
                failure(Verb::Inspect, Effect::None, reason)
            })?),
        };
        let rival = poll.rival().filter(|_| poll.held());
        let lease = rival.and_then(|(rival, _)| poll.lease_of(&rival.holder));
        Ok(LockStatus { mine, ..self.status(key, lease.map(|(lease, _)| holder(&lease))) })
    }

    /// The status of a key with the rival of a poll as its holder.
    pub(super) fn rival(&self, key: &LockKey, poll: &Poll) -> LockStatus {
        let lease = poll.rival().and_then(|(rival, _)| poll.lease_of(&rival.holder));
        // The rival is over when a majority of nodes is free again.
        let lease = lease.map(|(lease, _)| Holding { left: poll.left(), ..lease });
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

impl Poll {
    /// Returns true if this token has a lease, and `None` if the nodes that did not answer decide.
    /// The lock of a direct client is no lease, also if its value is the token.
    fn has_lease(&self, token: &LeaseToken, quorum: Quorum) -> Option<bool> {
        let all = || self.of_holder(token.expose().as_bytes());
        let votes = || all().filter(|one| one.number > 0);
        let with_number_of = |one: &Holding| votes().filter(|it| it.number == one.number).count();
        match votes().map(with_number_of).max() {
            Some(nodes) if nodes >= quorum.needed() => Some(true),
            Some(nodes) if self.may_be_majority(nodes) => None,
            _ => Some(false),
        }
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
