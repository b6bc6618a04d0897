//! R5 to R7 and R9: a lease exists while a majority has its number, and is never revived.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::lock::error::{Effect, StoreError, Verb};
use crate::lock::lease::{Claim, Holder, Lease, Owner, State};
use crate::lock::slots::Share;
use crate::lock::store::{Condition, Renewed, Target};
use crate::lock::time::Ttl;
use crate::lock::token::FencingToken;
use crate::store::redis::script::or_empty;
use crate::store::redlock::cleanup::Leftover;
use crate::store::redlock::context::{Context, failure};
use crate::store::redlock::nodes::{REFRESH, SETTLE};
use crate::store::redlock::poll::{Poll, Vote};
use crate::store::redlock::release;
use crate::store::redlock::tally::{Majority, majority_left, remaining, validity};

/// The outcome of a refresh.
pub(super) enum Found {
    Lease(Lease),
    /// The token has this lease, which the request does not change.
    Mine(Holder),
    /// The token has no such lease, but maybe the votes in these answers.
    Gone(Poll),
}

/// The effect of a request on a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Does {
    /// It extends a lease that is not kept, for its client.
    Extends,
    /// It extends a lease that is kept, for its stream.
    Keeps,
    /// It makes a kept lease plain.
    LetsGo,
    Nothing,
}

/// A request to renew a lease.
struct Request<'a> {
    verb: Verb,
    of: &'a Target,
    does: Does,
    ttl: Option<Ttl>,
    /// The owner that an acquire sets; empty for none.
    owner: Option<&'a str>,
    began: Duration,
}

/// A lease that was found, and what it shall be on all nodes.
struct Parts {
    number: u64,
    /// The votes of the nodes that were told of it.
    told: BTreeMap<usize, Vote>,
    /// The time for which it lasts from now on.
    ttl: Ttl,
    /// The TTL that was asked for last, if this request asks for none.
    last: Duration,
    owner: String,
    held: Duration,
}

impl Does {
    /// The state of the leases that it changes, for the script.
    const fn changes(self) -> &'static str {
        match self {
            Self::Extends => "plain",
            Self::Keeps | Self::LetsGo => "kept",
            Self::Nothing => "",
        }
    }

    /// The state of these leases from then on.
    const fn makes(self) -> State {
        match self {
            Self::Keeps => State::Kept,
            Self::Extends | Self::LetsGo | Self::Nothing => State::Heard,
        }
    }
}

/// R5: extends the lease that the token of a claim has, if the claim repeats it.
pub(super) async fn refresh_for(at: &Context, claim: &Claim) -> Result<Found, StoreError> {
    let repeats = !claim.kept && claim.named.is_none();
    let request = Request {
        verb: Verb::TryAcquire,
        of: &Target::of(&claim.key, &claim.token, None),
        does: if repeats { Does::Extends } else { Does::Nothing },
        ttl: Some(claim.ttl),
        owner: Some(claim.owner.as_ref().map_or("", Owner::as_str)),
        began: at.time.monotonic(),
    };
    refresh(at, &request).await
}

/// Renews a lease for its client or its keeper.
pub(super) async fn refresh_all(
    at: &Context,
    of: &Target,
    ttl: Option<Ttl>,
) -> Result<Renewed, StoreError> {
    let request = Request {
        verb: of.verb(Verb::Refresh),
        of,
        does: match of.only {
            Condition::Kept => Does::Keeps,
            Condition::LetGo { .. } => Does::LetsGo,
            _ => Does::Extends,
        },
        ttl: ttl.map(|ttl| ttl.min(at.rules.longest_lease)),
        owner: None,
        began: at.time.monotonic(),
    };
    Ok(match refresh(at, &request).await? {
        Found::Lease(lease) => Renewed::Lease(lease),
        Found::Mine(own) => own.fencing_token.map_or(Renewed::Lost(None), Renewed::Kept),
        Found::Gone(poll) => {
            let left = leftovers(at, of, &poll);
            at.cleanup.owe(left, at.rules.longest_lease.as_duration());
            let other = poll.lease(None).says().and_then(FencingToken::from_number);
            Renewed::Lost(other.filter(|other| of.number != Some(*other)))
        }
    })
}

/// R6: renews what is told on all nodes, and settles what is not.
async fn refresh(at: &Context, request: &Request<'_>) -> Result<Found, StoreError> {
    at.may_count(request.verb, Effect::Unknown)?;
    let named = request.of.number.map(FencingToken::number);
    let poll = refresh_once(at, request).await;
    let number = match poll.lease(named) {
        Majority::Says(number) => number,
        Majority::None => return Ok(Found::Gone(poll)),
        Majority::Unclear => {
            return Err(failure(request.verb, Effect::Unknown, "too few nodes answered"));
        }
    };
    let state = poll.votes(number).map(|(_, vote)| vote.state).max();
    let parts = Parts::of(&poll, number, request);
    match (request.does, state == Some(State::Kept)) {
        (Does::Nothing, _) | (Does::Extends, true) => {
            let left = poll.votes(number).map(|(_, vote)| vote.left).collect();
            Ok(Found::Mine(Holder {
                owner: Owner::parse(&parts.owner).ok().flatten(),
                fencing_token: FencingToken::from_number(number),
                left: majority_left(left, at.quorum()),
                held: Some(parts.held),
                share: Share::ALONE,
            }))
        }
        (Does::Keeps, false) => Ok(Found::Gone(poll)),
        (Does::LetsGo, _) => renewed(at, request, &parts),
        (Does::Keeps | Does::Extends, _) => {
            renewed(at, request, &settle(at, request, &poll, parts).await)
        }
    }
}

/// Asks all nodes, so that those that miss the lease can be told.
async fn refresh_once(at: &Context, request: &Request<'_>) -> Poll {
    let Request { of, does, ttl, owner, .. } = request;
    let patience = at.patience(ttl.unwrap_or(at.default_ttl));
    let deadline = at.deadline(patience);
    let lets_go = *does == Does::LetsGo;
    let args = vec![
        of.token.expose().to_owned(),
        // Its end stays if it is let go without a TTL.
        or_empty(ttl.map(Ttl::as_millis).or_else(|| lets_go.then_some(0))),
        or_empty(of.number),
        does.changes().to_owned(),
        does.makes().number().to_string(),
        or_empty((lets_go && ttl.is_some()).then_some(1)),
        or_empty(at.prefixes.max_hold(&of.key).map(Ttl::as_millis)),
        or_empty(owner.map(|owner| format!("={owner}"))),
    ];
    let question = at.nodes.question(&REFRESH, &of.key, args, patience).until(deadline);
    let poll = at.nodes.poll(&question, Poll::complete).await;
    at.hear(&poll);
    poll
}

/// R7: makes the votes of a lease told, and brings it to the nodes that miss it: otherwise it
/// would be lost node by node. Returns when they have answered, or are too late to act.
async fn settle(at: &Context, request: &Request<'_>, poll: &Poll, mut parts: Parts) -> Parts {
    let (key, number, state) = (&request.of.key, parts.number, request.does.makes());
    let patience = at.patience(parts.ttl);
    let until = at.deadline(patience);
    let questions = poll.heard().filter_map(|(node, heard)| {
        let said = heard?.unsettled(number, (state, parts.last))?;
        let args = vec![
            request.of.token.expose().to_owned(),
            number.to_string(),
            said,
            parts.ttl.as_millis().to_string(),
            parts.owner.clone(),
            state.number().to_string(),
            parts.held.as_millis().to_string(),
            or_empty(at.prefixes.max_hold(key).map(Ttl::as_millis)),
        ];
        Some((node, at.nodes.question(&SETTLE, key, args, patience).until(until)))
    });
    let questions: Vec<_> = questions.collect();
    if !questions.is_empty() {
        at.metrics.redlock_settled();
        let settled = at.nodes.poll_each(questions, |_| false).await;
        parts.told.extend(settled.votes(number).map(|(node, vote)| (node, vote.clone())));
    }
    parts
}

/// The lease of these parts, if a majority was told of it in time.
fn renewed(at: &Context, request: &Request<'_>, parts: &Parts) -> Result<Found, StoreError> {
    let unknown = |reason| Err(failure(request.verb, Effect::Unknown, reason));
    let left = parts.told.values().map(|told| told.left).collect();
    let Some(ttl) = majority_left(left, at.quorum()) else {
        return unknown("too few nodes answered");
    };
    let max_hold = at.prefixes.max_hold(&request.of.key);
    let held = parts.told.values().filter_map(|told| told.held).max().unwrap_or_default();
    let capped = max_hold.is_some_and(|most| most.as_duration() <= held + ttl);
    let may_be_short = capped || request.does == Does::LetsGo;
    // The clock is read last, so that every earlier delay counts.
    let elapsed = at.time.monotonic().saturating_sub(request.began);
    let left = if may_be_short { remaining(ttl, elapsed) } else { validity(ttl, elapsed) };
    let (Some(left), Some(number)) = (left, FencingToken::from_number(parts.number)) else {
        let over = Found::Gone(Poll::new(at.quorum()));
        return if may_be_short { Ok(over) } else { unknown("the nodes were too slow") };
    };
    at.numbers.raise(number);
    Ok(Found::Lease(Lease {
        key: request.of.key.clone(),
        owner: Owner::parse(&parts.owner).ok().flatten(),
        fencing_token: number,
        ttl: Ttl::lasting(left),
        capped,
        share: Share::ALONE,
    }))
}

/// R9: what a token without a lease has, as these answers tell. A request that names another
/// number may have met a lease.
pub(super) fn leftovers(at: &Context, of: &Target, poll: &Poll) -> Vec<Leftover> {
    if poll.lease(None) != Majority::None {
        return Vec::new();
    }
    let left = poll.heard().filter_map(|(node, heard)| {
        let number = heard?.leftover()?;
        Some(at.cleanup.heard(node, &release::ended(at, of, number)))
    });
    left.collect()
}

impl Parts {
    fn of(poll: &Poll, number: u64, request: &Request<'_>) -> Self {
        let votes = || poll.votes(number).map(|(_, vote)| vote);
        let last = votes().map(|vote| vote.ttl).max().unwrap_or_default();
        let left = votes().map(|vote| vote.left).max().unwrap_or_default();
        let owner = votes().map(|vote| &*vote.owner).find(|owner| !owner.is_empty());
        let is_told = |vote: &Vote| vote.is_told() && vote.state == request.does.makes();
        let told = poll.votes(number).filter(|(_, vote)| is_told(vote));
        Self {
            number,
            told: told.map(|(node, vote)| (node, vote.clone())).collect(),
            ttl: request.ttl.unwrap_or_else(|| Ttl::lasting(last)).max(Ttl::lasting(left)),
            last: if request.ttl.is_some() { Duration::ZERO } else { last },
            owner: request.owner.or(owner).unwrap_or_default().to_owned(),
            held: votes().filter_map(|vote| vote.held).max().unwrap_or_default(),
        }
    }
}
