//! Refresh and release.

use crate::lock::error::{StoreError, Verb};
use crate::lock::store::{Renewed, Target};
use crate::lock::time::{Ttl, Uptime};
use crate::store::redis::RedisStore;
use crate::store::redis::arguments::{RefreshArguments, ReleaseArguments};
use crate::store::redis::clock::latest_believable_micros;
use crate::store::redis::deadline::When;
use crate::store::redis::grants::told;
use crate::store::redis::node::{Node, ScriptCall, Way};
use crate::store::redis::replies::{malformed, refreshed};
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
            kept: of.only.renewals().into(),
            last_word: of.only.last_word().into(),
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
            "taken_over" => return Ok(Renewed::TakenOver),
            "lost" => return Ok(Renewed::Lost),
            _ => (),
        }
        let fencing_token = self.fencing_token(verb, &mut reply)?;
        let lease = refreshed(&of.key, fencing_token, &mut reply).ok_or_else(|| malformed(verb))?;
        told(verb, lease, asked).map(Renewed::Lease)
    }

    /// Ends the lease of a target, or gives up its place, on `node`, or on the node of the key. The
    /// claim gets its `place` in line back, if given.
    pub(super) async fn run_release(
        &self,
        of: &Target,
        place: Option<u64>,
        node: Option<&Node>,
    ) -> Result<Reply, StoreError> {
        let arguments = ReleaseArguments {
            token: of.token.expose().into(),
            named: or_empty(of.number).into(),
            unrenewed: of.only.renewals().into(),
            instance: (&*self.instance).into(),
            returned: or_empty(place).into(),
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
