//! Refresh and release. Each has two scripts: one for an exclusive lease, which needs few keys, and
//! its twin for a lease that shares its lock. One of them acts; the other tells that it is not for
//! it.

use crate::lock::error::{Effect, StoreError};
use crate::lock::key::LockKey;
use crate::lock::store::{Renewed, Target};
use crate::lock::time::{Ttl, Uptime};
use crate::store::redis::RedisStore;
use crate::store::redis::clock::latest_believable_micros;
use crate::store::redis::deadline::When;
use crate::store::redis::grants::told;
use crate::store::redis::node::{Node, ScriptCall, Way, failure};
use crate::store::redis::replies::{malformed, refreshed};
use crate::store::redis::script::{
    REFRESH, REFRESH_SHARE, RELEASE, RELEASE_SHARE, Reply, Script, or_empty,
};

/// The rounds of [`RedisStore::either`]: a holder may share its lock, or be alone again, between two
/// calls.
const ROUNDS: usize = 3;

/// A call of a script or of its twin.
struct Either<'a> {
    scripts: [&'static Script; 2],
    args: &'a [&'a str],
    when: When,
}

impl RedisStore {
    /// Renews the lease of a target.
    pub(super) async fn run_refresh(
        &self,
        of: &Target,
        ttl: Option<Ttl>,
    ) -> Result<Renewed, StoreError> {
        let (verb, asked) = (of.renewal(), Uptime::now());
        let args = [
            of.token.expose(),
            &or_empty(ttl.map(Ttl::as_millis)),
            &self.default_ttl.as_millis().to_string(),
            &self.floor.least().to_string(),
            &latest_believable_micros().to_string(),
            &or_empty(of.number),
            &of.only.renewals(),
            of.only.last_word(),
            &or_empty(self.prefixes.max_hold(&of.key).map(Ttl::as_millis)),
        ];
        let when = self.in_time(2); // One call finds that leases share the key.
        let call = Either { scripts: [&REFRESH, &REFRESH_SHARE], args: &args, when };
        let mut reply = self.either(&of.key, &call, None).await?;
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
        let args = [
            of.token.expose(),
            &self.position_kept,
            &or_empty(of.number),
            &of.only.renewals(),
            &self.instance,
            &or_empty(place),
        ];
        let call = Either { scripts: [&RELEASE, &RELEASE_SHARE], args: &args, when: When::AnyTime };
        self.either(&of.key, &call, node).await
    }

    /// Runs the script of exclusive leases; if leases share the key its twin, and so on.
    async fn either(
        &self,
        key: &LockKey,
        Either { scripts, args, when }: &Either<'_>,
        node: Option<&Node>,
    ) -> Result<Reply, StoreError> {
        let (keys, verb) = (self.keys(key), scripts[0].verb());
        for script in scripts.iter().cycle().take(ROUNDS * scripts.len()) {
            let call = ScriptCall { script, keys: &keys.all(), args, when: *when };
            let reply = match node {
                Some(node) => node
                    .call(&call, Way::Straight, self.patience)
                    .await
                    .map_err(|error| error.of(verb))?,
                None => self.topology.call(&call, self.patience).await?.0,
            };
            if !matches!(reply.word(), "shared" | "exclusive") {
                return Ok(reply);
            }
        }
        let reason = "the key was shared and exclusive by turns between the calls";
        Err(failure(verb, Effect::None, reason))
    }
}
