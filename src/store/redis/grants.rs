//! Grants: the TTL that their holder is told, and the undo of grants that were not received or not
//! replicated enough.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::lock::error::{Effect, StoreError, Verb};
use crate::lock::heard_out::caller_is_gone;
use crate::lock::lease::{Claim, Lease, Renewals};
use crate::lock::store::Win;
use crate::lock::time::{Ttl, Uptime, millis_down};
use crate::lock::token::FencingToken;
use crate::store::redis::RedisStore;
use crate::store::redis::claims::Request;
use crate::store::redis::node::{Node, failure};
use crate::store::redis::replies::{fencing_token, malformed, renewals, share, ttl};
use crate::store::redis::script::{Reply, Script};
use crate::store::redis::target::{By, Target};

/// The item of a grant that tells the number of the lease that it replaces, or 0.
const REPLACED: usize = 5;

/// The item of a grant that is 1 if the lease is in doubt.
const IN_DOUBT: usize = 6;

/// The attempts of [`RedisStore::take_back`] before its caller has to retry later.
const UNDO_TRIES: u32 = 3;

/// How long, and how often, [`RedisStore::give_up_unheard`] asks a store that does not answer.
const GIVES_UP_FOR: Duration = Duration::from_secs(30);
const GIVES_UP_EVERY: Duration = Duration::from_millis(500);

/// The lease for its holder. If the answer took more than half of the TTL, the TTL is shortened to
/// the time left, counted from the question. The client counts a shorter delay itself, as it does
/// the network's.
///
/// If this process or Redis was suspended in between, the lease may have expired by now.
pub(super) fn told(verb: Verb, mut lease: Lease, asked: Uptime) -> Result<Lease, StoreError> {
    let spent = asked.elapsed();
    if spent > lease.ttl.as_duration() / 2 {
        lease.ttl = Ttl::from_millis(lease.ttl.as_millis().saturating_sub(millis_down(spent)));
    }
    if lease.ttl.as_millis() == 0 {
        let reason = "Redis answered only after the lease had expired";
        return Err(failure(verb, Effect::Unknown, reason));
    }
    Ok(lease)
}

impl RedisStore {
    /// The grant in the reply to a request.
    pub(super) fn win(
        &self,
        verb: Verb,
        claim: &Claim,
        request: Request,
        reply: &mut Reply,
    ) -> Result<Win, StoreError> {
        let Request { name, asked, .. } = request;
        let in_doubt = (reply.item(IN_DOUBT) == Some(1)).then_some(name);
        let fresh = reply.word() == "granted";
        let number = self.fencing_token(verb, reply)?;
        let renewals = renewals(reply).ok_or_else(|| malformed(verb))?;
        let ttl = ttl(reply).ok_or_else(|| malformed(verb))?;
        let lease = Lease {
            key: claim.key.clone(),
            owner: claim.owner.clone(),
            fencing_token: number,
            ttl,
            renewals,
            capped: ttl < claim.ttl,
            share: share(reply),
        };
        let replaces = fencing_token(reply);
        told(verb, lease, asked).map(|lease| Win { lease, fresh, replaces, in_doubt })
    }

    /// Waits until a grant has reached the replicas, if the settings require it.
    ///
    /// A new grant that has not is undone, unless its token has asked again and was told of the
    /// lease: then it is not this call's to end.
    pub(super) async fn replicated(
        &self,
        script: &'static Script,
        claim: &Claim,
        (reply, node): &(Reply, Arc<Node>),
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
        let (key, token) = (&claim.key, &claim.token);
        // A new grant has no renewals.
        let by = By::LastWord(Renewals::default());
        let grant = Target { key, token, fencing_token: granted, by };
        let ended = self.run_release(&grant, node).await;
        ended.is_ok_and(|reply| reply.word() == "lease")
    }

    /// Gives up what a request without an answer may have got in doubt, if its client is gone.
    pub(super) async fn give_up_unheard(
        &self,
        target: &Target<'_>,
        request: &Request,
        effect: Effect,
    ) {
        if !caller_is_gone() || effect == Effect::None {
            return;
        }
        let target = Target { by: By::Request(&request.name), ..*target };
        let over_at = Instant::now() + GIVES_UP_FOR;
        while self.take_back(&target).await.is_err() && Instant::now() < over_at {
            sleep(GIVES_UP_EVERY).await;
        }
    }

    /// Ends whatever a target has of a key, and whatever earlier calls may still grant it.
    pub(super) async fn take_back(&self, target: &Target<'_>) -> Result<(), StoreError> {
        // An earlier call may still be on its way, on a lost connection or in a suspended Redis.
        // None acts later than this, on that node's clock.
        let (verb, keys) = (Verb::Release, self.keys(target.key));
        let node =
            async || self.topology.node_of(verb, &keys.lock, Instant::now() + self.patience).await;
        let asked = node().await?;
        let acts_until = asked.clock().now() + millis_down(self.patience);
        for _ in 0..UNDO_TRIES {
            let reply = self.run_release(target, None).await?;
            if !Arc::ptr_eq(&asked, &node().await?) {
                return Err(failure(verb, Effect::Unknown, "another node has the key by now"));
            }
            if reply.now > acts_until {
                return Ok(());
            }
            let left = Duration::from_millis(acts_until - reply.now + 1);
            sleep(left.min(self.patience * 2)).await;
        }
        Err(failure(verb, Effect::Unknown, "the clock of Redis stepped back"))
    }
}
