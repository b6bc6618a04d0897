//! Refreshes on several nodes: a lease exists while a majority holds it, and is never revived.

use std::time::Duration;

use crate::lock::error::{Effect, StoreError, Verb};
use crate::lock::lease::{Claim, Lease, Origin, Owner, Renewals};
use crate::lock::store::{Answer, Renewed, Target, Win};
use crate::lock::time::Ttl;
use crate::lock::token::FencingToken;
use crate::store::redis::RETENTION_MS;
use crate::store::redis::deadline::When;
use crate::store::redis::node::failure;
use crate::store::redis::script::or_empty;
use crate::store::redlock::nodes::{Part, REFRESH};
use crate::store::redlock::vote::{Ballot, Number, Poll, remaining};
use crate::store::redlock::{RedlockStore, attempt_name};

/// The time after its question in which a refresh may bring a lease to nodes that miss it: the marks
/// of a release, and the lock of a lease that another request shortens, last for as long.
const BRING_WITHIN: Duration = Duration::from_secs(1);

impl RedlockStore {
    /// Acquires the lease again that a claim names: a refresh, because it begins no other.
    pub(super) async fn acquire_again(&self, claim: &Claim) -> Result<Answer, StoreError> {
        let Claim { key, token, named, .. } = claim;
        let target = Target::of(key, token, *named);
        let lease = self.refresh_all(Verb::TryAcquire, &target, Some(claim.ttl)).await?.lease();
        let again = |lease| Win { lease, fresh: false, replaces: None, place: None, node: 0 };
        Ok(lease.map_or(Answer::Gone, |lease| Answer::Won(again(lease))))
    }

    /// Refreshes a lease on all nodes.
    pub(super) async fn refresh_all(
        &self,
        verb: Verb,
        target: &Target,
        ttl: Option<Ttl>,
    ) -> Result<Renewed, StoreError> {
        let began = self.time.monotonic();
        let patience = self.patience(ttl.unwrap_or(self.default_ttl));
        let deadline = self.deadline(patience);
        // A lease that is named, or kept, was told.
        let name = target.number.is_none().then(attempt_name);
        let args = self.refresh_args(target, ttl, name.as_deref());
        let question = self.nodes.question(&REFRESH, &target.key, args, patience);
        let question = question.in_order(deadline);
        // Waits for all nodes, so that those that miss the lease can be told.
        let poll = self.nodes.poll(&question, Poll::complete).await;
        if poll.won() {
            // Any majority with the lease has its number on a node.
            let named = target.number.map(FencingToken::number);
            if named.is_some_and(|named| poll.votes().iter().all(|yes| yes.number < named)) {
                return Ok(Renewed::Lost);
            }
            let claim = self.refreshed(target, &poll);
            return match self.confirm_refreshed(&claim, &poll, began).await {
                Some(lease) => Ok(Renewed::Lease(lease)),
                None if self.is_over(&claim, &poll, began) => Ok(Renewed::Lost),
                None => Err(failure(verb, Effect::Unknown, "the nodes were too slow")),
            };
        }
        if let Some(name) = name {
            self.give_up_renewed(target, &poll, &name, patience);
        }
        let blocks = |so: fn(&Ballot) -> bool| poll.how_many(so) >= self.quorum().peers();
        // A repeat that failed may have left fewer such answers.
        if blocks(|ballot| *ballot == Ballot::TakenOver) {
            return Ok(Renewed::TakenOver);
        }
        if blocks(|ballot| matches!(ballot, Ballot::No(_) | Ballot::Missing(_))) {
            return Ok(Renewed::Lost);
        }
        // Nodes that did not answer may complete a majority; nodes that do not vote may have
        // forgotten.
        Err(failure(verb, Effect::Unknown, "too few nodes answered"))
    }

    /// Gives up what a refresh without a majority has renewed: it may be a vote for a claim that is
    /// refused, and whose own clean-up leaves it then. Not on silent nodes: in an outage the
    /// refreshes of all leases would fill the queue.
    fn give_up_renewed(&self, target: &Target, poll: &Poll, name: &str, patience: Duration) {
        let question = self.nodes.release(target, Part::Of(name), When::AnyTime, patience);
        let renewed = poll.ballots().filter_map(|(node, ballot)| match ballot {
            Some(Ballot::Yes(_) | Ballot::Blank) => Some(self.cleanup.leftover_now(node)),
            _ => None,
        });
        self.cleanup.owe(renewed.collect(), &question, self.rules.longest_lease.as_duration());
    }

    /// Returns true if a refreshed lease has lasted for its `max_hold` by now.
    fn is_over(&self, claim: &Claim, poll: &Poll, began: Duration) -> bool {
        let (elapsed, ttl) = (self.time.monotonic().saturating_sub(began), claim.ttl.as_duration());
        self.is_capped(&claim.key, poll, ttl) && remaining(ttl, elapsed).is_none()
    }

    /// The claim that a refreshed lease had, as far as the votes tell.
    fn refreshed(&self, target: &Target, poll: &Poll) -> Claim {
        let votes = poll.votes();
        let asked = || votes.iter().filter_map(|yes| yes.asked.as_ref());
        Claim {
            key: target.key.clone(),
            token: target.token.clone(),
            origin: Origin::Client,
            ttl: asked().map(|(ttl, _)| *ttl).min().map_or(self.default_ttl, Ttl::from_millis),
            owner: asked().next().and_then(|(_, owner)| Owner::parse(owner).ok()?),
            slots: None,
            named: None,
            permit: None,
        }
    }

    /// Confirms the fencing token of a refreshed lease, and brings the lease to the nodes that miss
    /// it: otherwise it would be lost node by node. Returns when all nodes have answered, or are
    /// too late to act: a release may follow.
    async fn confirm_refreshed(
        &self,
        claim: &Claim,
        poll: &Poll,
        began: Duration,
    ) -> Option<Lease> {
        let (number, agreed) = match poll.number() {
            Number::Agreed(number) => (number, true),
            Number::Disputed(number) => {
                self.metrics.redlock_write_back();
                (number, false)
            }
        };
        let misses =
            |ballot: &Ballot| matches!(ballot, Ballot::No(_) | Ballot::Missing(_) | Ballot::Blank);
        let until = self.deadline(self.patience(claim.ttl));
        let brings = lasts(claim.ttl.as_duration(), until.moment().saturating_sub(began));
        // It voted for an attempt that did not get its number confirmed, or has that of an earlier
        // lease of the token, whose release may still be on its way.
        let differs = |ballot: &Ballot| matches!(ballot, Ballot::Yes(yes) if yes.number != number);
        let uneven = agreed && poll.how_many(differs) > 0;
        let missed = (uneven || poll.how_many(misses) > 0) && brings;
        if !agreed || missed {
            let refreshed = missed.then(|| Renewals::from_number(poll.renewals()));
            let name = attempt_name();
            let question = self.confirmation(claim, (number, &name), poll, refreshed).until(until);
            let confirmed = self.nodes.poll(&question, Poll::complete).await;
            if !agreed && !confirmed.won() {
                self.unconfirm(claim, &name, &confirmed);
                return None;
            }
        }
        self.lease(claim, poll, number, began)
    }

    /// The arguments of a refresh, after those that tell when it was asked and expires.
    fn refresh_args(&self, target: &Target, ttl: Option<Ttl>, name: Option<&str>) -> Vec<String> {
        vec![
            target.token.expose().to_owned(),
            or_empty(ttl.map(Ttl::as_millis)),
            self.default_ttl.as_millis().to_string(),
            RETENTION_MS.to_string(),
            self.time.wall_micros().to_string(),
            self.floor.least().to_string(),
            or_empty(target.number),
            target.only.renewals(),
            target.only.last_word().to_owned(),
            or_empty(self.prefixes.max_hold(&target.key).map(Ttl::as_millis)),
            or_empty(name),
        ]
    }
}

/// Returns true if a lease still lasts on all nodes that refreshed it, so long after the refresh,
/// also if another request has shortened it: nobody else can have had the key since.
fn lasts(ttl: Duration, elapsed: Duration) -> bool {
    remaining(ttl.min(BRING_WITHIN), elapsed).is_some()
}
