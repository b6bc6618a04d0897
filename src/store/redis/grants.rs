//! Grants: the TTL that their holder is told, and the undo of grants that were not received or not
//! replicated enough.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::lock::error::{Effect, StoreError, Verb};
use crate::lock::lease::{Claim, Lease, Origin, Receipt, Replaced};
use crate::lock::store::{Condition, Ended, Target, Win};
use crate::lock::time::{Ttl, Uptime, millis_down};
use crate::lock::token::FencingToken;
use crate::store::redis::RedisStore;
use crate::store::redis::claims::Answered;
use crate::store::redis::node::{Node, failure};
use crate::store::redis::replies::{ended, fencing_token, malformed, share, ttl};
use crate::store::redis::script::{Reply, Script};

/// The item of a grant that tells the number of the lease that it replaces, or 0.
const REPLACED: usize = 4;

/// The attempts of [`RedisStore::undo_all`] before its caller has to retry later.
const UNDO_TRIES: u32 = 3;

/// The lease as its holder is told: what the question took is taken off the time left. If this
/// process or Redis was suspended in between, nothing may be left.
pub(super) fn told(lease: Lease, asked: Uptime) -> Lease {
    let spent = millis_down(asked.elapsed());
    Lease { ttl: Ttl::from_millis(lease.ttl.as_millis().saturating_sub(spent)), ..lease }
}

impl RedisStore {
    /// The grant in an answer.
    pub(super) fn win(
        &self,
        verb: Verb,
        claim: &Claim,
        Answered { mut reply, node, asked }: Answered,
    ) -> Result<Win, StoreError> {
        let fresh = reply.word() == "granted";
        let number = self.fencing_token(verb, &mut reply)?;
        let ttl = ttl(&mut reply).ok_or_else(|| malformed(verb))?;
        let lease = Lease {
            key: claim.key.clone(),
            owner: claim.owner.clone(),
            fencing_token: number,
            ttl,
            capped: ttl < claim.ttl,
            share: share(&mut reply),
        };
        let replaced = fencing_token(&mut reply);
        let mut number = || reply.number().and_then(|number| u64::try_from(number).ok());
        let (ends_at, place) = (number().unwrap_or_default(), number().filter(|place| *place > 0));
        let replaces = replaced.map(|number| Replaced { number, ends_at });
        let lease = told(lease, asked);
        if lease.came_late() {
            return Err(StoreError::late(verb));
        }
        Ok(Win { lease, fresh, replaces, place, by: node })
    }

    /// Waits until a grant has reached the replicas, if the settings require it.
    ///
    /// A new grant that has not is undone, unless its token has asked again and was told of the
    /// lease: then it is not this call's to end.
    pub(super) async fn replicated(
        &self,
        script: &'static Script,
        claim: &Claim,
        (reply, node): (&Reply, &Arc<Node>),
        since: Instant,
    ) -> Result<(), StoreError> {
        let granted = match reply.word() {
            // The lease that another one has replaced does not come back.
            "granted" if reply.item(REPLACED).is_none_or(|number| number == 0) => {
                reply.item(0).and_then(FencingToken::from_number)
            }
            "granted" | "again" => None,
            _ => return Ok(()),
        };
        let Some(replicas) = node.replicas() else { return Ok(()) };
        let mark = self.keys(&claim.key).mark();
        let Err(reason) = replicas.confirm(mark, since).await else { return Ok(()) };
        self.metrics.redis_error("unreplicated");
        let mut effect = Effect::Unknown;
        if granted.is_some() && self.end_unused(claim, granted, Some(node)).await {
            effect = Effect::None;
        }
        Err(failure(script.verb(), effect, reason))
    }

    /// Ends a new lease, unless its token has asked again or refreshed it. Returns true if it did.
    pub(super) async fn end_unused(
        &self,
        claim: &Claim,
        granted: Option<FencingToken>,
        node: Option<&Node>,
    ) -> bool {
        let (origin, place, replaced, by) = (Origin::Service, None, None, 0);
        let only = Condition::Unheard(Receipt { origin, place, replaced, by });
        let grant = Target::of(&claim.key, &claim.token, granted).only(only);
        let ended = self.run_release(&grant, node).await;
        ended.is_ok_and(|reply| reply.word() == "lease")
    }

    /// Ends a lease whose grant reached no client, on the node that granted it: another one may have
    /// given its number to a lease that was told.
    pub(super) async fn end_unheard(
        &self,
        of: &Target,
        Receipt { by, .. }: Receipt,
    ) -> Result<Ended, StoreError> {
        let (until, keys) = (Instant::now() + self.patience, self.keys(&of.key));
        let granted_by = self.topology.node_of(of.verb(Verb::Release), &keys.lock, until).await?;
        if granted_by.number() != by {
            return Ok(Ended::Nothing(None));
        }
        self.run_release(of, Some(&granted_by)).await.map(|mut reply| ended(&mut reply))
    }

    /// Ends whatever a token has of a key, and whatever earlier calls may still grant it.
    pub(super) async fn undo_all(&self, of: &Target) -> Result<Ended, StoreError> {
        // An earlier call may still be on its way, on a lost connection or in a suspended Redis.
        // None acts later than this, on that node's clock.
        let (verb, keys) = (of.verb(Verb::Release), self.keys(&of.key));
        let node =
            async || self.topology.node_of(verb, &keys.lock, Instant::now() + self.patience).await;
        let asked = node().await?;
        let acts_until = asked.clock().now() + millis_down(self.patience);
        for _ in 0..UNDO_TRIES {
            let mut reply = self.run_release(of, None).await?;
            if !Arc::ptr_eq(&asked, &node().await?) {
                return Err(failure(verb, Effect::Unknown, "another node has the key by now"));
            }
            if reply.now > acts_until {
                return Ok(ended(&mut reply));
            }
            let left = Duration::from_millis(acts_until - reply.now + 1);
            sleep(left.min(self.patience * 2)).await;
        }
        Err(failure(verb, Effect::Unknown, "the clock of Redis stepped back"))
    }
}
