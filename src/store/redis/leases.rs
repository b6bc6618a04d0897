//! Refresh and release.

use std::time::Instant;

use crate::lock::error::{Effect, StoreError, Verb};
use crate::lock::lease::{Lease, Origin, Receipt};
use crate::lock::store::{Condition, Renewed, Target};
use crate::lock::time::{Ttl, Uptime, millis_down};
use crate::store::redis::arguments::{RefreshArguments, ReleaseArguments};
use crate::store::redis::calls::Calls;
use crate::store::redis::clock::latest_believable_micros;
use crate::store::redis::deadline::When;
use crate::store::redis::node::{Node, ScriptCall, Way, failure};
use crate::store::redis::replies::{fencing_token, malformed, refreshed};
use crate::store::redis::script::{REFRESH, REFRESH_SHARE, RELEASE, Reply, or_empty};

/// Renews the lease of a target.
pub(super) async fn refresh(
    calls: &Calls,
    of: &Target,
    ttl: Option<Ttl>,
) -> Result<Renewed, StoreError> {
    let verb = of.verb(Verb::Refresh);
    let asked = Uptime::now();
    let when = calls.in_time(2); // One call finds that there is more.
    let arguments = RefreshArguments {
        token: of.token.expose().into(),
        ttl: or_empty(ttl.map(Ttl::as_millis)).into(),
        max_hold: calls.max_hold(&of.key).to_string().into(),
        named: or_empty(of.number).into(),
        asks: match of.only {
            Condition::Kept => "keeper",
            Condition::LetGo { .. } => "last",
            Condition::Any | Condition::Unheard(_) | Condition::Ever => "",
        }
        .into(),
        default_ttl: calls.default_ttl.as_millis().to_string().into(),
        floor: calls.floor.least().to_string().into(),
        believable: latest_believable_micros().to_string().into(),
    };
    let all = arguments.all();
    let plain = &all[..RefreshArguments::PLAIN];
    let began = Instant::now();
    let (mut reply, mut node) = calls.run(&REFRESH, &of.key, plain, when).await?;
    if reply.word() == "rest" {
        (reply, node) = calls.run(&REFRESH_SHARE, &of.key, &all, when).await?;
    }
    match reply.word() {
        "lost" => return Ok(Renewed::Lost(fencing_token(&mut reply))),
        "kept" => return calls.fencing_token(verb, &mut reply).map(Renewed::Kept),
        _ => (),
    }
    if of.only == (Condition::LetGo { grants: true }) {
        let confirmed = calls.confirmed(&of.key, &node, began).await;
        confirmed.map_err(|reason| failure(verb, Effect::Unknown, reason))?;
    }
    let fencing_token = calls.fencing_token(verb, &mut reply)?;
    let lease = refreshed(&of.key, fencing_token, &mut reply).ok_or_else(|| malformed(verb))?;
    Ok(Renewed::Lease(told(lease, asked)))
}

/// Ends the lease of a target, or gives up its place, on `node`, or on the node of the key.
pub(super) async fn release(
    calls: &Calls,
    of: &Target,
    node: Option<&Node>,
) -> Result<Reply, StoreError> {
    let unheard = match of.only {
        Condition::Unheard(receipt) => Some(receipt),
        _ => None,
    };
    let place = |receipt: Receipt| receipt.place.filter(|_| receipt.origin == Origin::Client);
    let would_end = |receipt: Receipt| receipt.replaced.map(|before| before.ends_at);
    let arguments = ReleaseArguments {
        token: of.token.expose().into(),
        named: or_empty(of.number).into(),
        unheard: or_empty(unheard.map(|_| 1)).into(),
        instance: (&*calls.instance).into(),
        returned: or_empty(unheard.and_then(place)).into(),
        would_end: or_empty(unheard.and_then(would_end)).into(),
        keep: (&*calls.position_kept).into(),
    };
    let keys = calls.keys(&of.key);
    let args = arguments.all();
    let call = ScriptCall { script: &RELEASE, keys: &keys.all(), args: &args, when: When::AnyTime };
    let Some(node) = node else {
        return calls.topology.call(&call, calls.patience).await.map(|(reply, _)| reply);
    };
    let reply = node.call(&call, Way::Straight, calls.patience).await;
    reply.map_err(|error| error.of(Verb::Release))
}

/// The lease as its holder is told: what the question took is taken off the time left. If this
/// process or Redis was suspended in between, nothing may be left.
pub(super) fn told(lease: Lease, asked: Uptime) -> Lease {
    let spent = millis_down(asked.elapsed());
    Lease { ttl: Ttl::from_millis(lease.ttl.as_millis().saturating_sub(spent)), ..lease }
}
