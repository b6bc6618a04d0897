//! The undo of grants that were not received or not replicated enough.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::time::sleep;

use crate::lock::error::{Effect, StoreError, Verb};
use crate::lock::lease::{Claim, Origin, Receipt};
use crate::lock::store::{Condition, Ended, Target};
use crate::lock::time::millis_down;
use crate::lock::token::FencingToken;
use crate::store::redis::calls::Calls;
use crate::store::redis::leases::release;
use crate::store::redis::node::{Node, failure};
use crate::store::redis::replies::ended;
use crate::store::redis::script::Reply;

/// The item of a grant that tells the number of the lease that it replaces, or 0.
const REPLACED: usize = 5;

/// The attempts of [`undo_all`] before its caller has to retry later.
const UNDO_TRIES: u32 = 3;

/// Waits until a grant has reached the replicas, if the settings require it.
///
/// A new grant that has not is undone, unless its token has asked again and was told of the
/// lease: then it is not this call's to end.
pub(super) async fn replicated(
    calls: &Calls,
    verb: Verb,
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
    let Err(reason) = calls.confirmed(&claim.key, node, since).await else { return Ok(()) };
    let mut effect = Effect::Unknown;
    if let Some(number) = granted
        && end_unused(calls, claim, number, node).await
    {
        effect = Effect::None;
    }
    Err(failure(verb, effect, reason))
}

/// Ends a new lease, unless its token has asked again or refreshed it. Returns true if it did.
async fn end_unused(calls: &Calls, claim: &Claim, number: FencingToken, node: &Node) -> bool {
    let receipt = Receipt { origin: Origin::Service, place: None, replaced: None, by: 0 };
    let only = Condition::Unheard(receipt);
    let grant = Target::of(&claim.key, &claim.token, Some(number)).only(only);
    let ended = release(calls, &grant, Some(node)).await;
    ended.is_ok_and(|reply| reply.word() == "lease")
}

/// Ends a lease whose grant reached no client, on the node that granted it: another one may have
/// given its number to a lease that was told.
pub(super) async fn end_unheard(
    calls: &Calls,
    of: &Target,
    Receipt { by, .. }: Receipt,
) -> Result<Ended, StoreError> {
    let until = Instant::now() + calls.patience;
    let keys = calls.keys(&of.key);
    let granted_by = calls.topology.node_of(of.verb(Verb::Release), &keys.lock, until).await?;
    if granted_by.number() != by {
        return Ok(Ended::Nothing(None));
    }
    release(calls, of, Some(&granted_by)).await.map(|mut reply| ended(&mut reply))
}

/// Ends whatever a token has of a key, and whatever earlier calls may still grant it.
pub(super) async fn undo_all(calls: &Calls, of: &Target) -> Result<Ended, StoreError> {
    // An earlier call may still be on its way, on a lost connection or in a suspended Redis.
    // None acts later than this, on that node's clock.
    let verb = of.verb(Verb::Release);
    let keys = calls.keys(&of.key);
    let node =
        async || calls.topology.node_of(verb, &keys.lock, Instant::now() + calls.patience).await;
    let asked = node().await?;
    let acts_until = asked.clock().now() + millis_down(calls.patience);
    let mut undone = Ended::Nothing(None);
    for _ in 0..UNDO_TRIES {
        let mut reply = release(calls, of, None).await?;
        if let lease @ Ended::Lease(_) = ended(&mut reply) {
            undone = lease;
        }
        if !Arc::ptr_eq(&asked, &node().await?) {
            return Err(failure(verb, Effect::Unknown, "another node has the key by now"));
        }
        if reply.now > acts_until {
            return Ok(undone);
        }
        let left = Duration::from_millis(acts_until - reply.now + 1);
        sleep(left.min(calls.patience * 2)).await;
    }
    Err(failure(verb, Effect::Unknown, "the clock of Redis stepped back"))
}
