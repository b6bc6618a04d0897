//! Rules 1 to 5, 8, 9 and 11: an attempt for a key on all nodes, and what it leaves.

use std::time::Duration;

use tokio::time::sleep;

use crate::lock::error::{Effect, StoreError, Verb};
use crate::lock::lease::{Claim, Lease, Origin, Owner, Replaced, State};
use crate::lock::slots::Share;
use crate::lock::store::{Answer, Target, Win};
use crate::lock::time::Ttl;
use crate::lock::token::FencingToken;
use crate::store::redis::node::failure;
use crate::store::redis::script::or_empty;
use crate::store::redlock::nodes::{TRY_ACQUIRE, UNDO};
use crate::store::redlock::poll::{Outcome, Poll, Says, remaining, validity};
use crate::store::redlock::refresh::Found;
use crate::store::redlock::{RedlockStore, by_chance};

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

impl RedlockStore {
    /// Attempts to win the key, again while votes are split and no claim has won.
    pub(super) async fn contend(
        &self,
        claim: &Claim,
        position: Position,
    ) -> Result<Attempted, StoreError> {
        let counted = self.may_count(Verb::TryAcquire, Effect::None);
        counted.map_err(|error| error.of_claim(claim.origin))?;
        let claim = &Claim { ttl: claim.ttl.min(self.rules.longest_lease), ..claim.clone() };
        let (mut heard, mut may_hold, mut pause) = (0, 0, FIRST_PAUSE);
        let (mut last, mut it_took) = (Err(self.in_vain(0)), false);
        for _ in 0..TRIES {
            let attempt = self.vote(claim, position, heard).await;
            heard = attempt.poll.highest();
            let outcome = attempt.poll.outcome();
            if outcome == Outcome::Granted
                && let Some(lease) = self.granted(claim, &attempt)
            {
                self.metrics.redlock_attempt("granted");
                // If it is taken back, it ends at once, and not when the replaced lease would have.
                let replaces = claim.named.map(|number| Replaced { number, ends_at: 0 });
                let (fresh, by) = (true, attempt.name);
                let win = Win { lease, fresh, replaces, place: None, by };
                return Ok(Attempted::Answered(Answer::Won(win)));
            }
            let left = self.undo(claim, &attempt).await;
            may_hold = may_hold.max(left);
            it_took |= attempt.poll.yes() > 0;
            self.metrics.redlock_attempt(outcome.name());
            match outcome {
                Outcome::Granted | Outcome::Failed => {
                    return Err(self.too_few(&attempt.poll, may_hold));
                }
                Outcome::Held => return self.refused(attempt.poll, left),
                Outcome::Again => match self.found_again(claim, it_took).await {
                    Ok(Some(answer)) => return Ok(Attempted::Answered(answer)),
                    Ok(None) => last = Err(self.in_vain(may_hold)),
                    Err(error) if attempt.poll.answered() < self.quorum().needed() => {
                        return Err(error);
                    }
                    Err(error) => last = Err(error),
                },
                Outcome::Behind => {
                    last = Err(self.in_vain(may_hold));
                    continue;
                }
                Outcome::Split => last = self.refused(attempt.poll, left),
            }
            sleep(by_chance(pause)).await;
            pause *= 2;
        }
        last
    }

    /// The refusal of a claim, unless a majority may have its votes.
    fn refused(&self, poll: Poll, left: usize) -> Result<Attempted, StoreError> {
        if left >= self.quorum().needed() {
            let reason = "a rival has votes, but nodes did not confirm the undo of the claim's own";
            return Err(failure(Verb::TryAcquire, Effect::Unknown, reason));
        }
        Ok(Attempted::Lost(poll))
    }

    /// The failure of a claim whose attempts were all refused by no rival.
    fn in_vain(&self, may_hold: usize) -> StoreError {
        let reason = "other requests of this token, or greater numbers, came first every time";
        failure(Verb::TryAcquire, self.effect(may_hold), reason)
    }

    /// Rules 1 and 2: asks all nodes for their votes once.
    async fn vote(&self, claim: &Claim, position: Position, heard: u64) -> Attempt {
        let (began, patience) = (self.time.monotonic(), self.patience(claim.ttl));
        let deadline = self.deadline(patience);
        let (number, name) = (self.propose(heard), fastrand::u64(1..));
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
            or_empty(self.prefixes.max_hold(&claim.key).map(Ttl::as_millis)),
        ];
        let question =
            self.nodes.question(&TRY_ACQUIRE, &claim.key, args, patience).until(deadline);
        let poll = self.nodes.poll(&question, Poll::decided).await;
        self.hear(&poll);
        Attempt { number, name, began, patience, poll }
    }

    /// Rule 3: the lease of an attempt with a majority of fresh votes, unless the nodes were too
    /// slow.
    fn granted(&self, claim: &Claim, attempt: &Attempt) -> Option<Lease> {
        let ttls = attempt.poll.said().filter_map(|said| match said {
            Says::Yes(left) => Some(*left),
            _ => None,
        });
        let ttl = ttls.min()?; // `max_hold` may be shorter than what was asked for.
        let capped = ttl < claim.ttl.as_duration()
            || self.prefixes.max_hold(&claim.key).is_some_and(|most| most <= claim.ttl);
        // The clock is read last, so that every earlier delay counts.
        let elapsed = self.time.monotonic().saturating_sub(attempt.began);
        let left = match claim.named {
            Some(_) if capped => remaining(ttl, elapsed)?,
            _ => validity(ttl, elapsed)?,
        };
        let fencing_token = FencingToken::from_number(attempt.number)?;
        self.numbers.raise(fencing_token);
        Some(Lease {
            key: claim.key.clone(),
            owner: claim.owner.clone(),
            fencing_token,
            ttl: Ttl::lasting(left),
            capped,
            share: Share::ALONE,
        })
    }

    /// Rule 4: takes back the votes of an attempt that failed, before this returns, or later where
    /// a node does not answer. Returns the number of nodes where the token may have something.
    async fn undo(&self, claim: &Claim, attempt: &Attempt) -> usize {
        let its = (&claim.key, &claim.token);
        let question = self.nodes.of_attempt(&UNDO, its, attempt.name, attempt.patience);
        let (mut left, mut denied) = (Vec::new(), 0);
        for (node, heard) in attempt.poll.heard() {
            match heard.map(|heard| (&heard.said, heard.votes)) {
                None | Some((Says::Silent(Effect::Unknown), _)) => {
                    left.push(self.cleanup.unheard(node, &question, attempt.patience));
                }
                Some((Says::Yes(_), votes)) => {
                    left.push(self.cleanup.heard(node, &question));
                    denied += usize::from(votes);
                }
                Some((Says::Held(_) | Says::Behind, true)) => denied += 1,
                Some(_) => (),
            }
        }
        let left = self.cleanup.once(left).await;
        let may_hold = match claim.origin {
            _ if claim.named.is_some() => self.quorum().nodes(),
            Origin::Service => left.len(),
            // An earlier call may have left a lease on each node that did not deny it.
            Origin::Client => left.len().max(self.quorum().nodes() - denied),
        };
        self.cleanup.owe(left, claim.ttl.as_duration() + attempt.patience * 2);
        may_hold
    }

    /// Rules 5, 8 and 9: the answer to a claim whose token has votes. `None` if it can try again,
    /// for what was in the way is given up, or its token has the lease that it names. What `it_took`
    /// the place of is ended: that may have been a lease until then.
    async fn found_again(
        &self,
        claim: &Claim,
        it_took: bool,
    ) -> Result<Option<Answer>, StoreError> {
        let poll = match self.refresh_for(claim).await? {
            Found::Lease(lease) => {
                let (fresh, replaces) = (false, None);
                let win = Win { lease, fresh, replaces, place: None, by: 0 };
                return Ok(Some(Answer::Won(win)));
            }
            Found::Mine(own) if claim.named.is_none() => {
                return Ok(Some(self.mine(&claim.key, own)));
            }
            Found::Mine(own) if own.fencing_token == claim.named => return Ok(None),
            Found::Mine(own) => return Ok(Some(Answer::Lost(own.fencing_token))),
            Found::Gone(poll) => poll,
        };
        let of = Target::of(&claim.key, &claim.token, None);
        let mut left = self.leftovers(&of, &poll);
        if let Some(number) = claim.named {
            left.extend(self.ends_of(&of, number.number(), &Poll::new(self.quorum())));
        }
        let left = self.cleanup.once(left).await;
        self.cleanup.owe(left, self.rules.longest_lease.as_duration());
        match claim.named {
            Some(_) if it_took => {
                let reason = "too few nodes had the lease to replace, and it has ended there";
                Err(failure(Verb::TryAcquire, Effect::Unknown, reason))
            }
            named => Ok(named.map(|_| Answer::Lost(None))),
        }
    }

    /// The effect of a claim whose token may have something on so many nodes.
    fn effect(&self, may_hold: usize) -> Effect {
        if may_hold > self.quorum().spare() { Effect::Unknown } else { Effect::None }
    }

    /// The failure of an attempt without a majority of answers, for people.
    fn too_few(&self, poll: &Poll, may_hold: usize) -> StoreError {
        let names = |so: fn(bool, &Says) -> bool| {
            let those = poll
                .heard()
                .filter(|(_, heard)| heard.is_some_and(|heard| so(heard.votes, &heard.said)));
            those.map(|(node, _)| self.nodes.peer(node).name()).collect::<Vec<_>>().join(", ")
        };
        let silent = names(|_, said| matches!(said, Says::Silent(_)));
        let foreign = names(|_, said| *said == Says::Foreign);
        let blank = names(|votes, said| !votes && !matches!(said, Says::Silent(_) | Says::Foreign));
        let mut why = vec!["too few nodes, or too slow".to_owned()];
        why.extend((!silent.is_empty()).then(|| format!("no answer from {silent}")));
        why.extend((!blank.is_empty()).then(|| format!("not yet voting: {blank}")));
        let refusals = self.view.refusals();
        why.extend(refusals.as_ref().map(|refusals| refusals.text(&self.nodes)));
        let is_strange = !foreign.is_empty() && refusals.is_none();
        why.extend(is_strange.then(|| format!("serving other settings: {foreign}")));
        failure(Verb::TryAcquire, self.effect(may_hold), why.join("; "))
    }
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
