//! One attempt for a key on all nodes, and its outcome.

use std::time::Duration;

use crate::lock::error::{Effect, StoreError, Verb};
use crate::lock::key::LockKey;
use crate::lock::lease::{Claim, Lease, Origin, Owner, Renewals};
use crate::lock::slots::Share;
use crate::lock::store::{Target, Win};
use crate::lock::time::Ttl;
use crate::lock::token::FencingToken;
use crate::store::redis::RETENTION_MS;
use crate::store::redis::deadline::When;
use crate::store::redis::node::failure;
use crate::store::redis::script::or_empty;
use crate::store::redlock::nodes::{CONFIRM, Part, Question, TRY_ACQUIRE, UNCONFIRM};
use crate::store::redlock::vote::{Ballot, Number, Poll, Since, remaining, validity};
use crate::store::redlock::{RedlockStore, attempt_name};

/// The position of a claim in its instance's line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Position {
    /// It does not wait.
    NotInLine,
    /// It waits, with this many others behind it.
    First { behind: u64 },
}

/// The outcome of an attempt.
#[derive(Debug)]
pub(super) enum Attempted {
    /// A majority has voted for the claim.
    Won(Win),
    /// Other tokens have votes, and the ballots name them. Or no rival has one, and votes were
    /// refused because a lease of this token ended after the attempt had begun.
    Lost(Poll),
}

impl RedlockStore {
    /// Asks all nodes for their votes once. The votes of a failed attempt are given up before this
    /// returns, or later where a node does not answer.
    pub(super) async fn attempt(
        &self,
        claim: &Claim,
        position: Position,
    ) -> Result<Attempted, StoreError> {
        let (began, name) = (self.time.monotonic(), attempt_name());
        let patience = self.patience(claim.ttl);
        let deadline = self.deadline(patience);
        let args = self.claim_args(claim, &name, position);
        let question = self.nodes.question(&TRY_ACQUIRE, &claim.key, args, patience);
        let question = question.in_order(deadline);
        let (poll, late) = self.nodes.poll_open(&question, Poll::decided).await;
        if poll.won()
            && let Some(lease) = self.confirm(claim, &poll, began).await
        {
            self.level(claim, &name, &lease, (&poll, late));
            self.metrics.redlock_attempt("granted");
            return Ok(Attempted::Won(Win {
                lease,
                fresh: !poll.was_held(),
                replaces: None,
                place: None,
                node: 0,
            }));
        }
        let may_hold = self.give_up(claim, &poll, &name, patience).await;
        // Only a rival makes this a loss: without one, the nodes themselves failed. And nodes that
        // did not answer may hold the key for this very token.
        let others = poll.rival().is_some() && !poll.may_have_been_held();
        if !poll.won() && others && poll.answered() >= self.quorum().needed() {
            self.metrics.redlock_attempt(if poll.held() { "held" } else { "split" });
            return Ok(Attempted::Lost(poll));
        }
        self.metrics.redlock_attempt("failed");
        // A node that refuses what was asked for too early names no holder.
        let refused = poll.how_many(|ballot| *ballot == Ballot::No(None));
        if refused > 0 && poll.votes().len() + refused >= self.quorum().needed() {
            return Ok(Attempted::Lost(poll));
        }
        let effect = if may_hold > self.quorum().spare() { Effect::Unknown } else { Effect::None };
        Err(failure(Verb::TryAcquire, effect, self.complaint(&poll)))
    }

    /// The lease that a claim has by its votes, once a majority has confirmed its fencing token.
    /// `None` if the nodes were too slow, or too few still hold the token.
    async fn confirm(&self, claim: &Claim, poll: &Poll, began: Duration) -> Option<Lease> {
        let number = match poll.number() {
            Number::Agreed(number) => number,
            Number::Disputed(number) => {
                self.metrics.redlock_write_back();
                let until = self.deadline(self.patience(claim.ttl));
                let name = attempt_name();
                let question = self.confirmation(claim, (number, &name), poll, None).until(until);
                let confirmed = self.nodes.poll(&question, Poll::decided).await;
                if !confirmed.won() {
                    self.unconfirm(claim, &name, &confirmed);
                    return None;
                }
                number
            }
        };
        self.lease(claim, poll, number, began)
    }

    /// The question to confirm the fencing token of a lease that has these votes; it lacks its
    /// deadline. With the renewals of a `refreshed` lease, the nodes also take the lease if they
    /// miss it.
    pub(super) fn confirmation(
        &self,
        claim: &Claim,
        (number, name): (u64, &str),
        poll: &Poll,
        refreshed: Option<Renewals>,
    ) -> Question {
        let max_hold = self.prefixes.max_hold(&claim.key);
        let oldest = max_hold.and_then(|_| poll.oldest());
        let args = vec![
            claim.token.expose().to_owned(),
            number.to_string(),
            RETENTION_MS.to_string(),
            claim.ttl.as_millis().to_string(),
            or_empty(refreshed.map(Renewals::number)),
            claim.owner.as_ref().map_or("", Owner::as_str).to_owned(),
            or_empty(oldest.or_else(|| poll.age())),
            or_empty(oldest),
            poll.free_at(),
            or_empty(max_hold.map(Ttl::as_millis)),
            name.to_owned(),
        ];
        self.nodes.question(&CONFIRM, &claim.key, args, self.patience(claim.ttl))
    }

    /// Takes a confirmation back that no majority has given, in the background. A node that drew its
    /// number would otherwise keep that beside a lease with a smaller one.
    pub(super) fn unconfirm(&self, claim: &Claim, name: &str, poll: &Poll) {
        let patience = self.patience(claim.ttl);
        let args = vec![claim.token.expose().to_owned(), name.to_owned()];
        let question = self.nodes.question(&UNCONFIRM, &claim.key, args, patience);
        let confirmed = poll.ballots().filter_map(|(node, ballot)| match ballot {
            Some(Ballot::Yes(_) | Ballot::Blank) => Some(self.cleanup.leftover_now(node)),
            None | Some(Ballot::Silent(Effect::Unknown)) => {
                Some(self.cleanup.leftover(node, patience))
            }
            Some(_) => None,
        });
        let lasts = claim.ttl.as_duration() + patience * 2;
        self.cleanup.owe(confirmed.collect(), &question, lasts);
    }

    /// The lease of a claim that was requested at `began`, with the time left now.
    pub(super) fn lease(
        &self,
        claim: &Claim,
        poll: &Poll,
        number: u64,
        began: Duration,
    ) -> Option<Lease> {
        let asked = poll.votes().into_iter().filter_map(|yes| yes.asked.as_ref());
        let ttls = asked.map(|(ttl, _)| Duration::from_millis(*ttl));
        let ttl = ttls.fold(claim.ttl.as_duration(), Duration::min);
        let capped = self.is_capped(&claim.key, poll, ttl);
        // The clock is read last, so that every earlier delay counts.
        let elapsed = self.time.monotonic().saturating_sub(began);
        let left = if capped { remaining(ttl, elapsed) } else { validity(ttl, elapsed) }?;
        let fencing_token = FencingToken::from_number(number)?;
        self.floor.raise(fencing_token);
        Some(Lease {
            key: claim.key.clone(),
            owner: claim.owner.clone(),
            fencing_token,
            ttl: Ttl::lasting(left),
            renewals: Renewals::from_number(poll.renewals()),
            capped,
            share: Share::ALONE,
        })
    }

    /// Returns true if `max_hold` ends a lease with these votes when its TTL is over, by its
    /// earliest start on any node.
    pub(super) fn is_capped(&self, key: &LockKey, poll: &Poll, ttl: Duration) -> bool {
        let age = Duration::from_millis(poll.oldest().unwrap_or_default());
        self.prefixes.max_hold(key).is_some_and(|most| most.as_duration() <= age + ttl)
    }

    /// Gives up what a failed attempt may have got. Returns the number of nodes where the token may
    /// still have something.
    async fn give_up(
        &self,
        claim: &Claim,
        poll: &Poll,
        attempt: &str,
        patience: Duration,
    ) -> usize {
        let target = Target::of(&claim.key, &claim.token, None);
        let question = self.nodes.release(&target, Part::Of(attempt), When::AnyTime, patience);
        let (mut left, mut reached) = (Vec::new(), 0);
        for (node, ballot) in poll.ballots() {
            match ballot {
                // The node has answered, so no call is on its way to it any more.
                Some(Ballot::Yes(yes))
                    if yes.since == Since::Now || claim.origin == Origin::Service =>
                {
                    left.push(self.cleanup.leftover_now(node));
                    reached += 1;
                }
                Some(Ballot::Yes(_) | Ballot::Blank) => left.push(self.cleanup.leftover_now(node)),
                None | Some(Ballot::Silent(Effect::Unknown)) => {
                    left.push(self.cleanup.leftover(node, patience));
                }
                Some(Ballot::No(_)) => reached += 1,
                Some(_) => (),
            }
        }
        let left = self.cleanup.once(left, &question).await;
        let may_hold = match claim.origin {
            Origin::Service => left.len(),
            // The clean-up takes this attempt's votes. An earlier call may have left a lease on
            // each node that did not deny it.
            Origin::Client => left.len().max(self.quorum().nodes() - reached),
        };
        self.cleanup.owe(left, &question, claim.ttl.as_duration() + patience * 2);
        may_hold
    }

    /// The arguments of a vote, after those that tell when it was asked and expires.
    fn claim_args(&self, claim: &Claim, attempt: &str, position: Position) -> Vec<String> {
        let word = |is: bool| if is { "1" } else { "" }.to_owned();
        let ttl = claim.ttl.as_millis();
        vec![
            claim.token.expose().to_owned(),
            ttl.to_string(),
            claim.owner.as_ref().map_or("", Owner::as_str).to_owned(),
            (ttl + RETENTION_MS).to_string(),
            self.time.wall_micros().to_string(),
            self.floor.least().to_string(),
            attempt.to_owned(),
            word(matches!(position, Position::First { behind: 1.. })),
            word(matches!(position, Position::First { .. })),
            or_empty(self.prefixes.max_hold(&claim.key).map(Ttl::as_millis)),
        ]
    }

    /// The reason why there is no majority, for people.
    fn complaint(&self, poll: &Poll) -> String {
        let names = |so: fn(&Ballot) -> bool| {
            let those = poll.ballots().filter(|(_, ballot)| ballot.is_some_and(so));
            those.map(|(node, _)| self.nodes.peer(node).name()).collect::<Vec<_>>().join(", ")
        };
        let silent = names(|ballot| matches!(ballot, Ballot::Silent(_)));
        let blank = names(|ballot| *ballot == Ballot::Blank);
        let foreign = names(|ballot| *ballot == Ballot::Foreign);
        let mut why = vec!["too few nodes, or too slow".to_owned()];
        why.extend((!silent.is_empty()).then(|| format!("no answer from {silent}")));
        why.extend((!blank.is_empty()).then(|| format!("not yet voting: {blank}")));
        why.extend((!foreign.is_empty()).then(|| format!("serving other settings: {foreign}")));
        why.join("; ")
    }
}
