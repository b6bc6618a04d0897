//! R1 to R5, R8 and R9: an attempt for a key on all nodes, and what it leaves.

use std::time::Duration;

use tokio::time::sleep;

use crate::lock::error::{Effect, StoreError, Verb};
use crate::lock::lease::{Claim, Lease, Origin, Owner, Replaced, State};
use crate::lock::slots::Share;
use crate::lock::store::{Answer, Target, Win};
use crate::lock::time::Ttl;
use crate::lock::token::FencingToken;
use crate::store::redis::script::or_empty;
use crate::store::redlock::context::{Context, failure};
use crate::store::redlock::nodes::{TRY_ACQUIRE, UNDO};
use crate::store::redlock::poll::{Outcome, Poll, Says};
use crate::store::redlock::refresh::Found;
use crate::store::redlock::tally::{remaining, validity};
use crate::store::redlock::{by_chance, inspect, refresh, release};

/// The attempts of one call while votes are split.
const TRIES: u32 = 5;

/// The longest pause before the second attempt; doubled for each further one.
const FIRST_PAUSE: Duration = Duration::from_millis(8);

/// The position of a claim in its instance's line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Position {
    /// It does not wait.
    NotInLine,
    /// It waits, with this many others behind it.
    First { behind: u64 },
}

/// The outcome of a claim's attempts.
#[derive(Debug)]
pub(super) enum Attempted {
    /// A majority has voted for the claim, or the lease of its token decides.
    Answered(Answer),
    /// Other tokens have votes, and the answers name them.
    Lost(Poll),
}

/// One attempt: its number, its name, and the nodes' answers.
struct Attempt {
    number: u64,
    name: u64,
    /// When it was asked for.
    began: Duration,
    patience: Duration,
    poll: Poll,
}

/// Attempts to win the key, again while votes are split and no claim has won.
pub(super) async fn contend(
    at: &Context,
    claim: &Claim,
    position: Position,
) -> Result<Attempted, StoreError> {
    let counted = at.may_count(Verb::TryAcquire, Effect::None);
    counted.map_err(|error| error.of_claim(claim.origin))?;
    let claim = &Claim { ttl: claim.ttl.min(at.rules.longest_lease), ..claim.clone() };
    let (mut heard, mut may_hold, mut pause) = (0, 0, FIRST_PAUSE);
    let (mut last, mut it_took) = (Err(in_vain(at, 0)), false);
    for _ in 0..TRIES {
        let attempt = vote(at, claim, position, heard).await;
        heard = attempt.poll.highest();
        let outcome = attempt.poll.outcome();
        if outcome == Outcome::Granted
            && let Some(lease) = granted(at, claim, &attempt)
        {
            at.metrics.redlock_attempt("granted");
            // If it is taken back, it ends at once, and not when the replaced lease would have.
            let replaces = claim.named.map(|number| Replaced { number, ends_at: 0 });
            let (fresh, by) = (true, attempt.name);
            let win = Win { lease, fresh, replaces, place: None, by };
            return Ok(Attempted::Answered(Answer::Won(win)));
        }
        let left = undo(at, claim, &attempt).await;
        may_hold = may_hold.max(left);
        it_took |= attempt.poll.yes() > 0;
        at.metrics.redlock_attempt(outcome.name());
        match outcome {
            Outcome::Granted | Outcome::Failed => {
                return Err(too_few(at, &attempt.poll, may_hold));
            }
            Outcome::Held => return refused(at, attempt.poll, left),
            Outcome::Again => match found_again(at, claim, it_took).await {
                Ok(Some(answer)) => return Ok(Attempted::Answered(answer)),
                Ok(None) => last = Err(in_vain(at, may_hold)),
                Err(error) if attempt.poll.answered() < at.quorum().needed() => {
                    return Err(error);
                }
                Err(error) => last = Err(error),
            },
            Outcome::Behind => {
                last = Err(in_vain(at, may_hold));
                continue;
            }
            Outcome::Split => last = refused(at, attempt.poll, left),
        }
        sleep(by_chance(pause)).await;
        pause *= 2;
    }
    last
}

/// The refusal of a claim, unless a majority may have its votes.
fn refused(at: &Context, poll: Poll, left: usize) -> Result<Attempted, StoreError> {
    if left >= at.quorum().needed() {
        let reason = "a rival has votes, but nodes did not confirm the undo of the claim's own";
        return Err(failure(Verb::TryAcquire, Effect::Unknown, reason));
    }
    Ok(Attempted::Lost(poll))
}

/// The failure of a claim whose attempts were all refused by no rival.
fn in_vain(at: &Context, may_hold: usize) -> StoreError {
    let reason = "other requests of this token, or greater numbers, came first every time";
    failure(Verb::TryAcquire, effect(at, may_hold), reason)
}

/// R1 and R2: asks all nodes for their votes once.
async fn vote(at: &Context, claim: &Claim, position: Position, heard: u64) -> Attempt {
    let (began, patience) = (at.time.monotonic(), at.patience(claim.ttl));
    let deadline = at.deadline(patience);
    let (number, name) = (at.propose(heard), fastrand::u64(1..));
    let word = |is: bool| if is { "1" } else { "" }.to_owned();
    let args = vec![
        claim.token.expose().to_owned(),
        claim.ttl.as_millis().to_string(),
        claim.owner.as_ref().map_or("", Owner::as_str).to_owned(),
        number.to_string(),
        name.to_string(),
        word(matches!(position, Position::First { .. })),
        word(matches!(position, Position::First { behind: 1.. })),
        State::of_new(claim.kept).number().to_string(),
        or_empty(claim.named),
        or_empty(at.prefixes.max_hold(&claim.key).map(Ttl::as_millis)),
    ];
    let question = at.nodes.question(&TRY_ACQUIRE, &claim.key, args, patience).until(deadline);
    let poll = at.nodes.poll(&question, Poll::decided).await;
    at.hear(&poll);
    Attempt { number, name, began, patience, poll }
}

/// R3: the lease of an attempt with a majority of fresh votes, unless the nodes were too
/// slow.
fn granted(at: &Context, claim: &Claim, attempt: &Attempt) -> Option<Lease> {
    let ttls = attempt.poll.said().filter_map(|said| match said {
        Says::Yes(left) => Some(*left),
        _ => None,
    });
    let ttl = ttls.min()?; // `max_hold` may be shorter than what was asked for.
    let capped = ttl < claim.ttl.as_duration()
        || at.prefixes.max_hold(&claim.key).is_some_and(|most| most <= claim.ttl);
    // The clock is read last, so that every earlier delay counts.
    let elapsed = at.time.monotonic().saturating_sub(attempt.began);
    let left = match claim.named {
        Some(_) if capped => remaining(ttl, elapsed)?,
        _ => validity(ttl, elapsed)?,
    };
    let fencing_token = FencingToken::from_number(attempt.number)?;
    at.numbers.raise(fencing_token);
    Some(Lease {
        key: claim.key.clone(),
        owner: claim.owner.clone(),
        fencing_token,
        ttl: Ttl::lasting(left),
        capped,
        share: Share::ALONE,
    })
}

/// R4: takes back the votes of an attempt that failed, before this returns, or later where
/// a node does not answer. Returns the number of nodes where the token may have something.
async fn undo(at: &Context, claim: &Claim, attempt: &Attempt) -> usize {
    let its = (&claim.key, &claim.token);
    let question = at.nodes.of_attempt(&UNDO, its, attempt.name, attempt.patience);
    let (mut left, mut denied) = (Vec::new(), 0);
    for (node, heard) in attempt.poll.heard() {
        match heard.map(|heard| (&heard.said, heard.votes)) {
            None | Some((Says::Silent(Effect::Unknown), _)) => {
                left.push(at.cleanup.unheard(node, &question, attempt.patience));
            }
            Some((Says::Yes(_), votes)) => {
                left.push(at.cleanup.heard(node, &question));
                denied += usize::from(votes);
            }
            Some((Says::Held(_) | Says::Behind, true)) => denied += 1,
            Some(_) => (),
        }
    }
    let left = at.cleanup.once(left).await;
    let may_hold = match claim.origin {
        _ if claim.named.is_some() => at.quorum().nodes(),
        Origin::Service => left.len(),
        // An earlier call may have left a lease on each node that did not deny it.
        Origin::Client => left.len().max(at.quorum().nodes() - denied),
    };
    at.cleanup.owe(left, claim.ttl.as_duration() + attempt.patience * 2);
    may_hold
}

/// R5, R8 and R9: the answer to a claim whose token has votes. `None` if it can try again,
/// for what was in the way is given up, or its token has the lease that it names. What `it_took`
/// the place of is ended: that may have been a lease until then.
async fn found_again(
    at: &Context,
    claim: &Claim,
    it_took: bool,
) -> Result<Option<Answer>, StoreError> {
    let poll = match refresh::refresh_for(at, claim).await? {
        Found::Lease(lease) => {
            let (fresh, replaces) = (false, None);
            let win = Win { lease, fresh, replaces, place: None, by: 0 };
            return Ok(Some(Answer::Won(win)));
        }
        Found::Mine(own) if claim.named.is_none() => {
            return Ok(Some(inspect::mine(at, &claim.key, own)));
        }
        Found::Mine(own) if own.fencing_token == claim.named => return Ok(None),
        Found::Mine(own) => return Ok(Some(Answer::Lost(own.fencing_token))),
        Found::Gone(poll) => poll,
    };
    let of = Target::of(&claim.key, &claim.token, None);
    let mut left = refresh::leftovers(at, &of, &poll);
    if let Some(number) = claim.named {
        left.extend(release::ends_of(at, &of, number.number(), &Poll::new(at.quorum())));
    }
    let left = at.cleanup.once(left).await;
    at.cleanup.owe(left, at.rules.longest_lease.as_duration());
    match claim.named {
        Some(_) if it_took => {
            let reason = "too few nodes had the lease to replace, and it has ended there";
            Err(failure(Verb::TryAcquire, Effect::Unknown, reason))
        }
        named => Ok(named.map(|_| Answer::Lost(None))),
    }
}

/// The effect of a claim whose token may have something on so many nodes.
fn effect(at: &Context, may_hold: usize) -> Effect {
    if may_hold > at.quorum().spare() { Effect::Unknown } else { Effect::None }
}

/// The failure of an attempt without a majority of answers, for people.
fn too_few(at: &Context, poll: &Poll, may_hold: usize) -> StoreError {
    let names = |so: fn(bool, &Says) -> bool| {
        let those = poll
            .heard()
            .filter(|(_, heard)| heard.is_some_and(|heard| so(heard.votes, &heard.said)));
        those.map(|(node, _)| at.nodes.peer(node).name()).collect::<Vec<_>>().join(", ")
    };
    let silent = names(|_, said| matches!(said, Says::Silent(_)));
    let foreign = names(|_, said| *said == Says::Foreign);
    let blank = names(|votes, said| !votes && !matches!(said, Says::Silent(_) | Says::Foreign));
    let mut why = vec!["too few nodes, or too slow".to_owned()];
    why.extend((!silent.is_empty()).then(|| format!("no answer from {silent}")));
    why.extend((!blank.is_empty()).then(|| format!("not yet voting: {blank}")));
    let refusals = at.view.refusals();
    why.extend(refusals.as_ref().map(|refusals| refusals.text(&at.nodes)));
    let is_strange = !foreign.is_empty() && refusals.is_none();
    why.extend(is_strange.then(|| format!("serving other settings: {foreign}")));
    failure(Verb::TryAcquire, effect(at, may_hold), why.join("; "))
}

impl Outcome {
    /// Its name in the metrics.
    const fn name(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Split | Self::Behind | Self::Again => "split",
            Self::Granted | Self::Failed => "failed",
        }
    }
}
