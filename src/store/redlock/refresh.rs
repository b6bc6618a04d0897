//! Refreshes on several nodes: a lease is what a majority still holds, and is never revived.

use std::time::Duration;

use crate::lock::error::Effect;
use crate::lock::error::StoreError;
use crate::lock::error::Verb;
use crate::lock::key::LockKey;
use crate::lock::lease::Claim;
use crate::lock::lease::Lease;
use crate::lock::lease::Origin;
use crate::lock::lease::Owner;
use crate::lock::lease::Renewals;
use crate::lock::store::Kept;
use crate::lock::time::Ttl;
use crate::lock::token::LeaseToken;
use crate::store::redis::RETENTION;
use crate::store::redis::node::When;
use crate::store::redis::node::failure;
use crate::store::redis::node::millis;
use crate::store::redlock::Redlock;
use crate::store::redlock::nodes::REFRESH;
use crate::store::redlock::vote::Ballot;
use crate::store::redlock::vote::Poll;

impl Redlock {
    /// Refreshes a lease; `meant` is its fencing token, the renewals that a keeper knows, and
    /// whether this is its last word, or empty.
    pub(super) async fn refresh_all(
        &self,
        verb: Verb,
        (key, token): (&LockKey, &LeaseToken),
        ttl: Option<Ttl>,
        meant: [&str; 3],
    ) -> Result<Kept, StoreError> {
        let began = self.time.monotonic();
        let patience = self.patience(ttl.unwrap_or(self.default_ttl));
        let args = self.refresh_args(token, ttl, meant);
        let question = self.nodes.question(&REFRESH, key, args, (When::InTime, patience));
        let poll = self.nodes.poll(&question, Poll::decided).await;
        if poll.how_many(|ballot| *ballot == Ballot::TakenOver) > 0 {
            return Ok(Kept::TakenOver);
        }
        if poll.won() {
            return self.refreshed(verb, (key, token), &poll, began).await;
        }
        if poll.how_many(|ballot| matches!(ballot, Ballot::No(_))) >= self.quorum().peers() {
            return Ok(Kept::Lost);
        }
        // Those who did not answer may make it a majority; who does not vote may have forgotten.
        Err(failure(verb, Effect::Unknown, "too few nodes answered"))
    }

    async fn refreshed(
        &self,
        verb: Verb,
        (key, token): (&LockKey, &LeaseToken),
        poll: &Poll,
        began: Duration,
    ) -> Result<Kept, StoreError> {
        let votes = poll.votes();
        let asked = || votes.iter().filter_map(|yes| yes.asked.as_ref());
        let ttl = asked().map(|(ttl, _)| *ttl).min().map_or(self.default_ttl, Ttl::from_millis);
        let owner = asked().next().and_then(|(_, owner)| Owner::parse(owner).ok()?);
        let claim = Claim {
            key: key.clone(),
            token: token.clone(),
            origin: Origin::Client,
            ttl,
            owner: owner.clone(),
        };
        let Some(won) = self.settle(&claim, poll, began, ttl).await else {
            return Err(failure(verb, Effect::Unknown, "the nodes were too slow"));
        };
        let renewals = votes.iter().map(|yes| yes.renewals).max().unwrap_or_default();
        Ok(Kept::Lease(Lease {
            key: key.clone(),
            owner,
            fencing_token: won.fencing_token,
            ttl: won.left,
            renewals: Renewals::from_number(renewals),
        }))
    }

    /// The arguments of a refresh, behind the moment after which it must not happen.
    fn refresh_args(&self, token: &LeaseToken, ttl: Option<Ttl>, meant: [&str; 3]) -> Vec<String> {
        let args = vec![
            self.nodes.restarted().word().to_owned(),
            token.expose().to_owned(),
            ttl.map_or_else(String::new, |ttl| ttl.as_millis().to_string()),
            self.default_ttl.as_millis().to_string(),
            millis(RETENTION).to_string(),
            self.time.wall_micros().to_string(),
            self.floor.least().to_string(),
        ];
        args.into_iter().chain(meant.map(str::to_owned)).collect()
    }
}
