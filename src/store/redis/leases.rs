//! Refresh and release.

use crate::lock::error::{StoreError, Verb};
use crate::lock::lease::{Origin, Receipt};
use crate::lock::store::{Condition, Renewed, Target};
use crate::lock::time::{Ttl, Uptime};
use crate::store::redis::RedisStore;
use crate::store::redis::arguments::{RefreshArguments, ReleaseArguments};
use crate::store::redis::clock::latest_believable_micros;
use crate::store::redis::deadline::When;
use crate::store::redis::grants::told;
use crate::store::redis::node::{Node, ScriptCall, Way};
use crate::store::redis::replies::{fencing_token, malformed, refreshed};
use crate::store::redis::script::{REFRESH, REFRESH_SHARE, RELEASE, Reply, or_empty};

impl RedisStore {
    /// Renews the lease of a target.
    pub(super) async fn run_refresh(
        &self,
        of: &Target,
        ttl: Option<Ttl>,
    ) -> Result<Renewed, StoreError> {
        let verb = of.verb(Verb::Refresh);
        let (asked, when) = (Uptime::now(), self.in_time(2)); // One call finds that there is more.
        let arguments = RefreshArguments {
            token: of.token.expose().into(),
            ttl: or_empty(ttl.map(Ttl::as_millis)).into(),
            max_hold: self.max_hold(&of.key).to_string().into(),
            named: or_empty(of.number).into(),
            asks: match of.only {
                Condition::Kept => "keeper",
                Condition::LetGo => "last",
                Condition::Any | Condition::Unheard(_) | Condition::Ever => "",
            }
            .into(),
            default_ttl: self.default_ttl.as_millis().to_string().into(),
            floor: self.floor.least().to_string().into(),
            believable: latest_believable_micros().to_string().into(),
        };
        let (all, plain) = (arguments.all(), RefreshArguments::PLAIN);
        let (mut reply, _) = self.run(&REFRESH, &of.key, &all[..plain], when).await?;
        if reply.word() == "rest" {
            (reply, _) = self.run(&REFRESH_SHARE, &of.key, &all, when).await?;
        }
        match reply.word() {
            "lost" => return Ok(Renewed::Lost(fencing_token(&mut reply))),
            "kept" => return self.fencing_token(verb, &mut reply).map(Renewed::Kept),
            _ => (),
        }
        let fencing_token = self.fencing_token(verb, &mut reply)?;
        let lease = refreshed(&of.key, fencing_token, &mut reply).ok_or_else(|| malformed(verb))?;
        Ok(Renewed::Lease(told(lease, asked)))
    }

    /// Ends the lease of a target, or gives up its place, on `node`, or on the node of the key.
    pub(super) async fn run_release(
        &self,
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
            instance: (&*self.instance).into(),
            returned: or_empty(unheard.and_then(place)).into(),
            would_end: or_empty(unheard.and_then(would_end)).into(),
            keep: (&*self.position_kept).into(),
        };
        let (keys, args, when) = (self.keys(&of.key), arguments.all(), When::AnyTime);
        let call = ScriptCall { script: &RELEASE, keys: &keys.all(), args: &args, when };
        let Some(node) = node else {
            return self.topology.call(&call, self.patience).await.map(|(reply, _)| reply);
        };
        let reply = node.call(&call, Way::Straight, self.patience).await;
        reply.map_err(|error| error.of(Verb::Release))
    }
}
