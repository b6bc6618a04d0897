//! Rules 6 and 7: a lease exists while a majority has its number, and is never revived.

use std::time::Duration;

use tokio::time::sleep;

use crate::lock::error::{Effect, StoreError, Verb};
use crate::lock::lease::{Claim, Lease, Owner, Renewals};
use crate::lock::slots::Share;
use crate::lock::store::{Answer, If, Renewed, Target, Win};
use crate::lock::time::Ttl;
use crate::lock::token::FencingToken;
use crate::store::redis::node::failure;
use crate::store::redis::script::or_empty;
use crate::store::redlock::cleanup::Leftover;
use crate::store::redlock::nodes::{REFRESH, SETTLE};
use crate::store::redlock::poll::{
    Finding, Poll, Quorum, Vote, majority_left, remaining, validity,
};
use crate::store::redlock::{RedlockStore, by_chance};

/// The rounds of a refresh whose votes are open, or have different renewals.
const TRIES: u32 = 4;

/// The outcome of a refresh.
pub(super) enum Found {
    Lease(Lease),
    TakenOver,
    /// The token has no lease, but maybe the votes in these answers.
    Gone(Poll),
}

/// A request to renew a lease.
struct Request<'a> {
    verb: Verb,
    of: &'a Target,
    ttl: Option<Ttl>,
    /// The owner that an acquire sets; empty for none.
    owner: Option<&'a str>,
    /// What it adds to the renewals.
    adds: Renewals,
    /// True if it sets the end of the lease, earlier too.
    sets_end: bool,
    began: Duration,
}

/// A lease that was found, and what it shall be on all nodes.
struct Parts {
    number: u64,
    /// What nodes have told of it.
    told: Vec<Vote>,
    /// The time for which it lasts from now on.
    ttl: Ttl,
    owner: String,
    renewals: u64,
    held: Duration,
}

impl RedlockStore {
    /// Acquires the lease again that a claim names: it begins no other.
    pub(super) async fn acquire_again(&self, claim: &Claim) -> Result<Answer, StoreError> {
        Ok(match self.refresh_for(claim).await? {
            Found::Lease(lease) => Answer::Won(again(lease)),
            Found::TakenOver | Found::Gone(_) => Answer::Gone,
        })
    }

    /// Renews the lease that the token of a claim has.
    pub(super) async fn refresh_for(&self, claim: &Claim) -> Result<Found, StoreError> {
        let request = Request {
            verb: Verb::TryAcquire,
            of: &Target::of(&claim.key, &claim.token, claim.named),
            ttl: Some(claim.ttl),
            owner: Some(claim.owner.as_ref().map_or("", Owner::as_str)),
            adds: Renewals::default().taken_over(),
            sets_end: false,
            began: self.time.monotonic(),
        };
        self.refresh(&request).await
    }

    /// Renews a lease for its client or its keeper.
    pub(super) async fn refresh_all(
        &self,
        of: &Target,
        ttl: Option<Ttl>,
    ) -> Result<Renewed, StoreError> {
        let (none, is_client) = (Renewals::default(), of.only == If::Any);
        let request = Request {
            verb: of.verb(Verb::Refresh),
            of,
            ttl: ttl.map(|ttl| ttl.min(self.rules.longest_lease)),
            owner: None,
            adds: if is_client { none.refreshed() } else { none },
            sets_end: of.only.is_last_word() || is_client && of.number.is_some(),
            began: self.time.monotonic(),
        };
        Ok(match self.refresh(&request).await? {
            Found::Lease(lease) => Renewed::Lease(lease),
            Found::TakenOver => Renewed::TakenOver,
            Found::Gone(poll) => {
                let left = self.leftovers(of, &poll);
                self.cleanup.owe(left, self.rules.longest_lease.as_duration());
                Renewed::Lost
            }
        })
    }

    /// Rule 6: renews what is told on all nodes, and settles what is not, until a majority tells the
    /// same renewals at once: two such answers share a node, which told the later one more.
    async fn refresh(&self, request: &Request<'_>) -> Result<Found, StoreError> {
        self.may_count(request.verb, Effect::Unknown)?;
        let unknown = |reason| Err(failure(request.verb, Effect::Unknown, reason));
        let mut named = request.of.number.map(FencingToken::number);
        for attempt in 1..=TRIES {
            let asked = self.time.monotonic();
            let poll = self.refresh_once(request, named).await;
            let number = match poll.finding(named) {
                Finding::Lease(number) => number,
                Finding::TakenOver => return Ok(Found::TakenOver),
                Finding::Gone => return Ok(Found::Gone(poll)),
                Finding::Unclear => return unknown("too few nodes answered"),
            };
            named = Some(number);
            let parts = Parts::of(&poll, number, request);
            if parts.told.is_empty() {
                continue; // Its votes are open: they are renewed by their number.
            }
            let agreed = parts.agreed(self.quorum());
            let renewals = agreed.unwrap_or(parts.renewals);
            let parts = self.settle(request, &poll, Parts { renewals, ..parts }).await;
            if agreed.is_some() {
                return self.renewed(request, parts);
            }
            // Requests that cross do so again, until one of them pauses for longer than a round.
            let round = self.time.monotonic().saturating_sub(asked);
            if attempt < TRIES {
                sleep(by_chance((round * 2_u32.pow(attempt)).min(self.rules.node_timeout))).await;
            }
        }
        unknown("other requests of this token crossed it every time")
    }

    /// Asks all nodes, so that those that miss the lease can be told.
    async fn refresh_once(&self, request: &Request<'_>, named: Option<u64>) -> Poll {
        let patience = self.patience(request.ttl.unwrap_or(self.default_ttl));
        let deadline = self.deadline(patience);
        let (key, args) = (&request.of.key, self.refresh_args(request, named));
        let question = self.nodes.question(&REFRESH, key, args, patience).until(deadline);
        let poll = self.nodes.poll(&question, Poll::complete).await;
        self.hear(&poll);
        poll
    }

    /// The arguments of a refresh, after its deadline.
    fn refresh_args(&self, request: &Request<'_>, named: Option<u64>) -> Vec<String> {
        let Request { of, ttl, owner, adds, sets_end, .. } = request;
        let take_over = Renewals::default().taken_over().number();
        vec![
            of.token.expose().to_owned(),
            or_empty(ttl.map(Ttl::as_millis)),
            or_empty(named),
            of.only.renewals(),
            if of.only.is_last_word() { 1 } else { take_over }.to_string(),
            adds.number().to_string(),
            or_empty(sets_end.then_some(1)),
            or_empty(self.prefixes.max_hold(&of.key).map(Ttl::as_millis)),
            or_empty(owner.map(|owner| format!("={owner}"))),
        ]
    }

    /// Rule 7: makes the votes of a lease told, and brings it to the nodes that miss it or a renewal:
    /// otherwise it would be lost node by node. Returns when they have answered, or are too late to act.
    async fn settle(&self, request: &Request<'_>, poll: &Poll, mut parts: Parts) -> Parts {
        let (key, number) = (&request.of.key, parts.number);
        let patience = self.patience(parts.ttl);
        let until = self.deadline(patience);
        let questions = poll.heard().filter_map(|(node, heard)| {
            let args =
                self.settle_args(request.of, &parts, heard?.unsettled(number, parts.renewals)?);
            Some((node, self.nodes.question(&SETTLE, key, args, patience).until(until)))
        });
        let questions: Vec<_> = questions.collect();
        if !questions.is_empty() {
            self.metrics.redlock_settled();
            let settled = self.nodes.poll_each(questions, |_| false).await;
            parts.told.extend(settled.votes(number).map(|(_, vote)| vote.clone()));
        }
        parts
    }

    /// The arguments of the question that tells a node of a lease, after its deadline.
    fn settle_args(&self, of: &Target, parts: &Parts, said: String) -> Vec<String> {
        vec![
            of.token.expose().to_owned(),
            parts.number.to_string(),
            said,
            parts.ttl.as_millis().to_string(),
            parts.owner.clone(),
            parts.renewals.to_string(),
            parts.held.as_millis().to_string(),
            or_empty(self.prefixes.max_hold(&of.key).map(Ttl::as_millis)),
        ]
    }

    /// The lease of these parts, if a majority was told of it and its renewals in time.
    fn renewed(&self, request: &Request<'_>, mut parts: Parts) -> Result<Found, StoreError> {
        let unknown = |reason| Err(failure(request.verb, Effect::Unknown, reason));
        parts.told.retain(|told| told.renewals >= parts.renewals);
        let left = parts.told.iter().map(|told| told.left).collect();
        let Some(ttl) = majority_left(left, self.quorum()) else {
            return unknown("too few nodes answered");
        };
        let oldest = parts.told.iter().filter_map(|told| told.held).max().unwrap_or_default();
        let max_hold = self.prefixes.max_hold(&request.of.key);
        let capped = max_hold.is_some_and(|most| most.as_duration() <= oldest + ttl);
        // The clock is read last, so that every earlier delay counts.
        let elapsed = self.time.monotonic().saturating_sub(request.began);
        let left = if capped { remaining(ttl, elapsed) } else { validity(ttl, elapsed) };
        let (Some(left), Some(number)) = (left, FencingToken::from_number(parts.number)) else {
            let over = Found::Gone(Poll::new(self.quorum()));
            return if capped { Ok(over) } else { unknown("the nodes were too slow") };
        };
        self.numbers.raise(number);
        Ok(Found::Lease(Lease {
            key: request.of.key.clone(),
            owner: Owner::parse(&parts.owner).ok().flatten(),
            fencing_token: number,
            ttl: Ttl::lasting(left),
            renewals: Renewals::from_number(parts.renewals),
            capped,
            share: Share::ALONE,
        }))
    }

    /// Rule 8: what a token without a lease has, as these answers tell. A request that names another
    /// number may have met a lease.
    pub(super) fn leftovers(&self, of: &Target, poll: &Poll) -> Vec<Leftover> {
        if poll.finding(None) != Finding::Gone {
            return Vec::new();
        }
        let of = &Target::of(&of.key, &of.token, None);
        let left = poll.heard().filter_map(|(node, heard)| {
            let number = heard?.leftover()?;
            Some(self.cleanup.heard(node, &self.ended(of, number)))
        });
        left.collect()
    }
}

impl Parts {
    fn of(poll: &Poll, number: u64, request: &Request<'_>) -> Self {
        let votes = || poll.votes(number).map(|(_, vote)| vote);
        let told = poll.votes(number).filter(|(is_told, _)| *is_told);
        let told: Vec<_> = told.map(|(_, vote)| vote.clone()).collect();
        let renewals = votes().map(|vote| vote.renewals).max().unwrap_or_default();
        // The others have missed how it was renewed last.
        let newest = || votes().filter(|vote| vote.renewals == renewals);
        let last = Ttl::lasting(newest().map(|vote| vote.ttl).max().unwrap_or_default());
        let left = newest().map(|vote| vote.left).max().unwrap_or_default();
        let owner = newest().map(|vote| &*vote.owner).find(|owner| !owner.is_empty());
        Self {
            number,
            ttl: request.ttl.unwrap_or(last).max(Ttl::lasting(left)),
            owner: request.owner.or(owner).unwrap_or_default().to_owned(),
            renewals,
            held: votes().filter_map(|vote| vote.held).max().unwrap_or_default(),
            told,
        }
    }

    /// The renewals that a majority has told.
    fn agreed(&self, quorum: Quorum) -> Option<u64> {
        let mut all = self.told.iter().map(|told| told.renewals);
        all.find(|one| {
            let same = self.told.iter().filter(|told| told.renewals == *one);
            same.count() >= quorum.needed()
        })
    }
}

/// The lease that a token had before its claim.
pub(super) fn again(lease: Lease) -> Win {
    Win { lease, fresh: false, replaces: None, place: None, by: 0 }
}
