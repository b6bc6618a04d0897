//! R10: releases on several nodes. All are asked; of a lease that has ended, those that
//! did not know it are told.

use crate::lock::error::{Effect, StoreError, Verb};
use crate::lock::key::LockKey;
use crate::lock::lease::{Holder, Owner, Receipt};
use crate::lock::slots::Share;
use crate::lock::store::{Ended, Target};
use crate::lock::token::{FencingToken, LeaseToken};
use crate::store::redis::script::or_empty;
use crate::store::redlock::cleanup::Leftover;
use crate::store::redlock::context::{Context, failure};
use crate::store::redlock::nodes::{Question, RELEASE, UNDO};
use crate::store::redlock::poll::{Holding, Poll, Says};
use crate::store::redlock::tally::Majority;

/// The time limits of a node after which the caller of an undo has to retry later.
const UNDO_TIMES: u32 = 6;

/// R10: gives up what the target's token has of the key, on all nodes.
///
/// Returns when all nodes have answered, or are too late to act.
pub(super) async fn release_all(at: &Context, of: &Target) -> Result<Ended, StoreError> {
    let poll = release_once(at, of).await;
    let unknown = |reason| Err(failure(Verb::Release, Effect::Unknown, reason));
    match (poll.ended_lease(), poll.ended().max()) {
        (Majority::Says(number), _) => {
            let owner = poll.ended().find(|(it, _)| *it == number).map(|(_, owner)| owner);
            tell_ended(at, of, number, &poll);
            Ok(Ended::Lease(Holder {
                fencing_token: FencingToken::from_number(number),
                owner: owner.and_then(|owner| Owner::parse(owner).ok().flatten()),
                ..Holder::default()
            }))
        }
        (Majority::Unclear, ended) => {
            // Its client cannot know whether there was a lease; there is none any more.
            if let Some((number, _)) = ended.filter(|_| poll.unheard() < at.quorum().needed()) {
                tell_ended(at, of, number, &poll);
            }
            unknown("too few nodes answered")
        }
        // It may be of a claim under way, or what another release has left.
        (Majority::None, Some(_)) if poll.lease(None).says().is_none() => {
            unknown("a part of a claim was given up: ask again")
        }
        (Majority::None, _) => {
            tell_silent(at, of, &poll);
            let other = of.number.and_then(|_| poll.lease(None).says());
            Ok(Ended::Nothing(other.and_then(FencingToken::from_number)))
        }
    }
}

async fn release_once(at: &Context, of: &Target) -> Poll {
    let (patience, number) = (at.rules.node_timeout, of.number.map(FencingToken::number));
    let until = at.deadline(patience);
    let args = release_args(of.token.expose(), number, "");
    let question = at.nodes.question(&RELEASE, &of.key, args, patience).until(until);
    at.nodes.poll(&question, Poll::complete).await
}

/// Tells the nodes that did not end a lease that it has ended, and all of its token before: one
/// may have missed the lease, or get a late vote for it. No later lease has so small a number.
fn tell_ended(at: &Context, of: &Target, number: u64, poll: &Poll) {
    if number == 0 {
        return; // A direct client's lock: no vote for it can come late.
    }
    let rest = ends_of(at, of, number, poll);
    at.cleanup.owe(rest, at.rules.longest_lease.as_duration());
}

/// The end of a lease, on all nodes that have not ended it by these answers.
pub(super) fn ends_of(at: &Context, of: &Target, number: u64, poll: &Poll) -> Vec<Leftover> {
    let question = ended(at, of, number);
    let has_ended = |said: &Says| matches!(said, Says::Ended(it, _) if *it == number);
    let rest = poll.heard().filter(|(_, heard)| heard.is_none_or(|heard| !has_ended(&heard.said)));
    rest.map(|(node, _)| at.cleanup.heard(node, &question)).collect()
}

/// Ends what an earlier release may have left on silent nodes, now that the token has no lease.
/// Any later one has a number above the least that the other nodes know.
fn tell_silent(at: &Context, of: &Target, poll: &Poll) {
    let heard = || poll.heard().filter_map(|(_, heard)| heard);
    let known = heard().filter(|heard| heard.votes).map(|heard| heard.highest).min();
    let (number, has_ended) = match (of.number.map(FencingToken::number), known) {
        (Some(named), _) => (named, ""),
        (None, Some(known)) if known > 0 => (known, "all"),
        _ => return,
    };
    let args = release_args(of.token.expose(), Some(number), has_ended);
    let question = at_any_time(at, &of.key, args);
    let silent = poll.silent().map(|node| at.cleanup.heard(node, &question)).collect();
    at.cleanup.owe(silent, at.rules.longest_lease.as_duration());
}

/// The question that ends all that a token has up to the number of a lease that has ended.
pub(super) fn ended(at: &Context, of: &Target, number: u64) -> Question {
    let args = release_args(of.token.expose(), Some(number), "lease");
    at_any_time(at, &of.key, args)
}

fn at_any_time(at: &Context, key: &LockKey, mut args: Vec<String>) -> Question {
    args.insert(0, String::new());
    at.nodes.question(&RELEASE, key, args, at.rules.node_timeout)
}

/// Ends what earlier calls with a token of the service did or may still do.
pub(super) async fn undo_all(
    at: &Context,
    key: &LockKey,
    token: &LeaseToken,
) -> Result<Ended, StoreError> {
    let args = release_args(token.expose(), None, "");
    until_it_cannot_act(at, &at_any_time(at, key, args)).await
}

/// Takes back a grant that reached nobody: its votes are open, unless another request of the
/// token was told of them. The lease that it has replaced ends where it was not replaced.
pub(super) async fn take_back(
    at: &Context,
    of: &Target,
    receipt: &Receipt,
) -> Result<Ended, StoreError> {
    let (its, patience) = ((&of.key, &of.token), at.rules.node_timeout);
    let question = at.nodes.of_attempt(&UNDO, its, receipt.by, patience);
    let taken = until_it_cannot_act(at, &question).await;
    if let Some(replaced) = receipt.replaced {
        tell_ended(at, of, replaced.number.number(), &Poll::new(at.quorum()));
    }
    taken
}

/// Asks all nodes until so many have answered, after the deadline of earlier calls, that the
/// others cannot form a majority.
async fn until_it_cannot_act(at: &Context, question: &Question) -> Result<Ended, StoreError> {
    let (patience, nodes) = (at.rules.node_timeout, 0..at.quorum().nodes());
    let left = nodes.map(|node| at.cleanup.unheard(node, question, patience)).collect();
    let left = at.cleanup.within(left, patience * UNDO_TIMES).await;
    if left.len() > at.quorum().spare() {
        return Err(failure(Verb::Release, Effect::Unknown, "too few nodes answered"));
    }
    at.cleanup.owe(left, at.rules.longest_lease.as_duration());
    Ok(Ended::Nothing(None))
}

/// R10: ends the lease of this number on all nodes, for the holder that has it on most.
pub(super) async fn force_release_all(
    at: &Context,
    key: &LockKey,
    named: Option<FencingToken>,
) -> Result<Vec<Holder>, StoreError> {
    let (patience, verb) = (at.rules.node_timeout, Verb::ForceRelease);
    let Some(number) = named.map(FencingToken::number) else {
        return Err(failure(verb, Effect::None, "a forced release names a lease here"));
    };
    let looks = answered(at, verb, &at.nodes.look(key, patience)).await?;
    let whose = looks.holder_of(number).and_then(|holder| str::from_utf8(holder).ok());
    let Some(token) = whose.and_then(|text| LeaseToken::parse(text).ok()) else {
        return Ok(Vec::new());
    };
    let args = release_args(token.expose(), Some(number), "");
    let ends = at.nodes.question(&RELEASE, key, args, patience).until(at.deadline(patience));
    let ended = answered(at, verb, &ends).await?;
    if ended.ended().next().is_some() {
        tell_ended(at, &Target::of(key, &token, None), number, &ended);
    }
    if ended.ended_lease() != Majority::Says(number) {
        let reason = "most nodes have not ended this lease: ask again";
        return Err(failure(verb, Effect::Unknown, reason));
    }
    let lease = looks.lease_of(token.expose().as_bytes());
    Ok(lease.map(|lease| holder(&Holding { number, ..lease })).into_iter().collect())
}

/// The answers of all nodes, of which a majority has to answer.
async fn answered(at: &Context, verb: Verb, question: &Question) -> Result<Poll, StoreError> {
    let poll = at.nodes.poll(question, Poll::complete).await;
    if poll.answered() < at.quorum().needed() {
        return Err(failure(verb, Effect::Unknown, "too few nodes answered"));
    }
    Ok(poll)
}

/// What the script is told: with "lease" or "all" it ends what has ended elsewhere.
fn release_args(token: &str, number: Option<u64>, has_ended: &str) -> Vec<String> {
    vec![token.to_owned(), or_empty(number), has_ended.to_owned()]
}

pub(super) fn holder(lease: &Holding) -> Holder {
    Holder {
        owner: Owner::parse(&lease.owner).ok().flatten(),
        fencing_token: FencingToken::from_number(lease.number),
        left: lease.left,
        held: lease.held,
        share: Share::ALONE,
    }
}
