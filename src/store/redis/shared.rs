//! Refresh and release. Each has two scripts: one for an exclusive lease, which needs few keys, and
//! its twin for a lease that shares its lock. One of them acts; the other tells that it is not for
//! it.

use uuid::Uuid;

use crate::lock::error::{Effect, StoreError, Verb};
use crate::lock::key::LockKey;
use crate::lock::store::Kept;
use crate::lock::time::{Ttl, Uptime};
use crate::store::redis::clock::latest_believable_micros;
use crate::store::redis::deadline::When;
use crate::store::redis::grants::told;
use crate::store::redis::node::{Node, ScriptCall, Way, failure};
use crate::store::redis::replies::{malformed, refreshed};
use crate::store::redis::script::{
    REFRESH, REFRESH_SHARE, RELEASE, RELEASE_SHARE, Reply, Script, or_empty,
};
use crate::store::redis::target::{By, Target};
use crate::store::redis::{RETENTION_MS, RedisStore};

/// The rounds of [`RedisStore::either`]: a holder may share its lock, or be alone again, between two
/// calls.
const ROUNDS: usize = 3;

/// The item of a refresh that is 1 if the lease is in doubt.
const IN_DOUBT: usize = 7;

/// A name for a request, by which it can give up what it gets.
pub(super) fn request_name() -> String {
    Uuid::new_v4().simple().to_string()
}

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
        verb: Verb,
        target: &Target<'_>,
        ttl: Option<Ttl>,
    ) -> Result<Kept, StoreError> {
        let when = self.in_time(2); // One finds that leases share the key.
        let name = request_name();
        let args = [
            target.token.expose(),
            &or_empty(ttl.map(Ttl::as_millis)),
            &self.default_ttl.as_millis().to_string(),
            &RETENTION_MS.to_string(),
            &self.floor.least().to_string(),
            &latest_believable_micros().to_string(),
            &or_empty(target.fencing_token),
            &target.by.renewals(),
            target.by.last_word(),
            &or_empty(self.prefixes.max_hold(target.key).map(Ttl::as_millis)),
            &name,
        ];
        let asked = Uptime::now();
        let call = Either { scripts: [&REFRESH, &REFRESH_SHARE], args: &args, when };
        let answered = self.either(target.key, &call, None).await;
        if matches!(target.by, By::Client) {
            let in_doubt = answered.as_ref().map(|reply| reply.item(IN_DOUBT) == Some(1));
            let request = Target { by: By::Request(&name), ..*target };
            if self.give_up(&request, in_doubt.map_err(|error| error.effect)).await {
                return Ok(Kept::Lost);
            }
        }
        let mut reply = answered?;
        match reply.word() {
            "taken_over" => return Ok(Kept::TakenOver),
            "lost" => return Ok(Kept::Lost),
            _ => (),
        }
        let fencing_token = self.fencing_token(verb, &mut reply)?;
        let lease =
            refreshed(target.key, fencing_token, &mut reply).ok_or_else(|| malformed(verb))?;
        told(verb, lease, asked).map(Kept::Lease)
    }

    /// Ends the lease of a target, or gives up its place, on `node`, or on the node of the key.
    pub(super) async fn run_release(
        &self,
        target: &Target<'_>,
        node: Option<&Node>,
    ) -> Result<Reply, StoreError> {
        let args = [
            target.token.expose(),
            &self.position_kept,
            &or_empty(target.fencing_token),
            &target.by.renewals(),
            &self.instance,
        ];
        let call = Either { scripts: [&RELEASE, &RELEASE_SHARE], args: &args, when: When::AnyTime };
        self.either(target.key, &call, node).await
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
