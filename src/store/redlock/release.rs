//! Rule 10: releases on several nodes. All are asked; of a lease that has ended, those that
//! did not know it are told.

use std::collections::BTreeMap;

use tokio::time::sleep;

use crate::lock::error::{Effect, StoreError, Verb};
use crate::lock::key::LockKey;
use crate::lock::lease::{Holder, Owner, Receipt};
use crate::lock::slots::Share;
use crate::lock::store::{Ended, Target};
use crate::lock::token::{FencingToken, LeaseToken};
use crate::store::redis::node::failure;
use crate::store::redis::script::or_empty;
use crate::store::redlock::RedlockStore;
use crate::store::redlock::cleanup::Leftover;
use crate::store::redlock::nodes::{Question, RELEASE, UNDO};
use crate::store::redlock::poll::{Holding, LONGEST_ATTEMPT, Poll, Quorum, Says};

/// The attempts of [`RedlockStore::undo_all`] before its caller has to retry later.
const UNDO_TRIES: u32 = 3;

/// The outcome of a release.
#[derive(Debug, PartialEq, Eq)]
enum Given {
    /// A lease: its number, 0 if unknown, and its owner.
    Lease(u64, String),
    /// The token had none.
    Nothing,
    /// A minority gave something up. Another instance may be about to grant the claim.
    Part,
    /// Too few nodes answered.
    Unclear,
}

impl Poll {
    /// The outcome of a release. A node that may have forgotten, or is silent, may have been part of
    /// a majority.
    fn given(&self, quorum: Quorum) -> Given {
        let (mut up, mut silent, mut waits, mut others) = (0, 0, 0, 0);
        for (_, heard) in self.heard() {
            match heard.map(|heard| (&heard.said, heard.votes)) {
                Some((Says::Ended(..), _)) => up += 1,
                None | Some((Says::Silent(_), _)) => silent += 1,
                Some((_, false)) => waits += 1,
                Some((Says::Has(_), true)) => others += 1,
                Some(_) => (),
            }
        }
        let (needed, may_be) = (quorum.needed(), up + silent + waits >= quorum.needed());
        match self.most_ended() {
            _ if may_be && up < needed && silent > 0 => Given::Unclear,
            Some((number, owner)) if may_be => Given::Lease(number, owner.to_owned()),
            Some(_) if others < needed => Given::Part,
            _ => Given::Nothing,
        }
    }

    /// What nodes have ended: numbers and owners.
    fn ended(&self) -> impl Iterator<Item = (u64, &str)> {
        self.heard().filter_map(|(_, heard)| match &heard?.said {
            Says::Ended(number, owner) => Some((*number, owner.as_str())),
            _ => None,
        })
    }

    /// What most nodes have ended.
    fn most_ended(&self) -> Option<(u64, &str)> {
        let mut ended: BTreeMap<u64, (usize, &str)> = BTreeMap::new();
        for (number, owner) in self.ended() {
            ended.entry(number).or_insert((0, owner)).0 += 1;
        }
        let most = ended.into_iter().max_by_key(|(number, (nodes, _))| (*nodes, *number));
        most.map(|(number, (_, owner))| (number, owner))
    }

    /// The holder that has a majority.
    fn majority_holder(&self, quorum: Quorum) -> Option<(&[u8], u64)> {
        let (rival, nodes) = self.rival()?;
        (nodes >= quorum.needed()).then_some((&rival.holder, rival.number))
    }
}

impl RedlockStore {
    /// Rule 10: gives up what the target's token has of the key, on all nodes.
    ///
    /// Returns when all nodes have answered, or are too late to act.
    pub(super) async fn release_all(&self, of: &Target) -> Result<Ended, StoreError> {
        let quorum = self.quorum();
        let mut poll = self.release_once(of).await;
        let mut given = poll.given(quorum);
        if given == Given::Part {
            // A claim may be under way whose vote this was. All of its votes are there by then.
            sleep(LONGEST_ATTEMPT).await;
            let rest = self.release_once(of).await;
            let rival = poll.majority_holder(quorum);
            given = match rest.given(quorum) {
                // Another release may have given up the rest of a lease, unless there was none.
                Given::Nothing if rival.is_none() || rival != rest.majority_holder(quorum) => {
                    Given::Part
                }
                given => given,
            };
            poll = rest;
        }
        match given {
            Given::Lease(number, owner) => {
                self.tell_ended(of, number, &poll);
                Ok(Ended::Lease(Holder {
                    fencing_token: FencingToken::from_number(number),
                    owner: Owner::parse(&owner).ok().flatten(),
                    ..Holder::default()
                }))
            }
            Given::Nothing => {
                self.tell_silent(of, &poll);
                Ok(Ended::Nothing(of.number.and_then(|_| poll.has())))
            }
            Given::Part => {
                let reason = "a part of a claim was given up: ask again";
                Err(failure(Verb::Release, Effect::Unknown, reason))
            }
            Given::Unclear => {
                // Its client cannot know whether there was a lease; there is none any more.
                if poll.unheard() < quorum.needed()
                    && let Some((number, _)) = poll.ended().max()
                {
                    self.tell_ended(of, number, &poll);
                }
                Err(failure(Verb::Release, Effect::Unknown, "too few nodes answered"))
            }
        }
    }

    async fn release_once(&self, of: &Target) -> Poll {
        let (patience, number) = (self.rules.node_timeout, of.number.map(FencingToken::number));
        let until = self.deadline(patience);
        let args = release_args(of.token.expose(), number, "");
        let question = self.nodes.question(&RELEASE, &of.key, args, patience).until(until);
        self.nodes.poll(&question, Poll::complete).await
    }

    /// Tells the nodes that did not end a lease that it has ended, and all of its token before: one
    /// may have missed the lease, or get a late vote for it. No later lease has so small a number.
    fn tell_ended(&self, of: &Target, number: u64, poll: &Poll) {
        if number == 0 {
            return; // A direct client's lock: no vote for it can come late.
        }
        let rest = self.ends_of(of, number, poll);
        self.cleanup.owe(rest, self.rules.longest_lease.as_duration());
    }

    /// The end of a lease, on all nodes that have not ended it by these answers.
    pub(super) fn ends_of(&self, of: &Target, number: u64, poll: &Poll) -> Vec<Leftover> {
        let question = self.ended(of, number);
        let has_ended = |said: &Says| matches!(said, Says::Ended(it, _) if *it == number);
        let rest =
            poll.heard().filter(|(_, heard)| heard.is_none_or(|heard| !has_ended(&heard.said)));
        rest.map(|(node, _)| self.cleanup.heard(node, &question)).collect()
    }

    /// Ends what an earlier release may have left on silent nodes, now that the token has no lease.
    /// Any later one has a number above the least that the other nodes know.
    fn tell_silent(&self, of: &Target, poll: &Poll) {
        let heard = || poll.heard().filter_map(|(_, heard)| heard);
        let known = heard().filter(|heard| heard.votes).map(|heard| heard.highest).min();
        let (number, has_ended) = match (of.number.map(FencingToken::number), known) {
            (Some(named), _) => (named, ""),
            (None, Some(known)) if known > 0 => (known, "all"),
            _ => return,
        };
        let args = release_args(of.token.expose(), Some(number), has_ended);
        let question = self.at_any_time(&of.key, args);
        let silent = poll.silent().map(|node| self.cleanup.heard(node, &question)).collect();
        self.cleanup.owe(silent, self.rules.longest_lease.as_duration());
    }

    /// The question that ends all that a token has up to the number of a lease that has ended.
    pub(super) fn ended(&self, of: &Target, number: u64) -> Question {
        let args = release_args(of.token.expose(), Some(number), "lease");
        self.at_any_time(&of.key, args)
    }

    fn at_any_time(&self, key: &LockKey, mut args: Vec<String>) -> Question {
        args.insert(0, String::new());
        self.nodes.question(&RELEASE, key, args, self.rules.node_timeout)
    }

    /// Ends what earlier calls with a token of the service did or may still do.
    pub(super) async fn undo_all(
        &self,
        key: &LockKey,
        token: &LeaseToken,
    ) -> Result<Ended, StoreError> {
        let args = release_args(token.expose(), None, "");
        self.until_it_cannot_act(&self.at_any_time(key, args)).await
    }

    /// Takes back a grant that reached nobody: its votes are open, unless another request of the
    /// token was told of them. The lease that it has replaced ends where it was not replaced.
    pub(super) async fn take_back(
        &self,
        of: &Target,
        receipt: &Receipt,
    ) -> Result<Ended, StoreError> {
        let (its, patience) = ((&of.key, &of.token), self.rules.node_timeout);
        let question = self.nodes.of_attempt(&UNDO, its, receipt.by, patience);
        let taken = self.until_it_cannot_act(&question).await;
        if let Some(replaced) = receipt.replaced {
            self.tell_ended(of, replaced.number.number(), &Poll::new(self.quorum()));
        }
        taken
    }

    /// Asks all nodes until so many have answered, after the deadline of earlier calls, that the
    /// others cannot form a majority.
    async fn until_it_cannot_act(&self, question: &Question) -> Result<Ended, StoreError> {
        let (patience, nodes) = (self.rules.node_timeout, 0..self.quorum().nodes());
        let mut left: Vec<_> =
            nodes.map(|node| self.cleanup.unheard(node, question, patience)).collect();
        for _ in 0..UNDO_TRIES {
            left = self.cleanup.once(left).await;
            if left.is_empty() {
                return Ok(Ended::Nothing(None));
            }
            sleep(patience * 2).await;
        }
        if left.len() > self.quorum().spare() {
            return Err(failure(Verb::Release, Effect::Unknown, "too few nodes answered"));
        }
        self.cleanup.owe(left, self.rules.longest_lease.as_duration());
        Ok(Ended::Nothing(None))
    }

    /// Rule 10: ends the lease of the key, only the one `named`, if given, on all nodes: what the
    /// holder with most votes has there. Another token's vote stays: its claim may be granted with
    /// it, once the key is free.
    pub(super) async fn force_release_all(
        &self,
        key: &LockKey,
        named: Option<FencingToken>,
    ) -> Result<Vec<Holder>, StoreError> {
        let (patience, verb) = (self.rules.node_timeout, Verb::ForceRelease);
        let looks = self.answered(verb, &self.nodes.look(key, patience)).await?;
        let named = named.map(FencingToken::number);
        let Some(lease) = looks.most_held(named) else { return Ok(Vec::new()) };
        // A value that is no text is that of a direct Redis client.
        let whose = String::from_utf8(lease.holder.clone()).unwrap_or_default();
        let number = named.or_else(|| looks.number_of(&lease));
        let args = release_args(&whose, number, "");
        let ends =
            self.nodes.question(&RELEASE, key, args, patience).until(self.deadline(patience));
        let ended = self.answered(verb, &ends).await?;
        if let (Ok(token), Some((number, _))) = (LeaseToken::parse(&whose), ended.most_ended()) {
            self.tell_ended(&Target::of(key, &token, None), number, &ended);
        }
        let Some(lease) = lease.told_by(&ended, self.quorum()) else {
            let reason = "most nodes have not ended the same lease: ask again";
            return Err(failure(verb, Effect::Unknown, reason));
        };
        Ok(vec![holder(&lease)])
    }

    /// The answers of all nodes, of which a majority has to answer.
    async fn answered(&self, verb: Verb, question: &Question) -> Result<Poll, StoreError> {
        let poll = self.nodes.poll(question, Poll::complete).await;
        if poll.answered() < self.quorum().needed() {
            return Err(failure(verb, Effect::Unknown, "too few nodes answered"));
        }
        Ok(poll)
    }
}

/// What the script is told: with "lease" or "all" it ends what has ended elsewhere.
fn release_args(token: &str, number: Option<u64>, has_ended: &str) -> Vec<String> {
    vec![token.to_owned(), or_empty(number), has_ended.to_owned()]
}

impl Poll {
    /// The lease of the holder with most votes, only that with this number on a node, if given.
    fn most_held(&self, named: Option<u64>) -> Option<Holding> {
        let one = match named {
            None => self.rival()?.0,
            // Two claims may have had the same number; one of them has the lease.
            Some(number) => {
                let named = self.holdings().filter(|one| one.number == number);
                named.max_by_key(|one| self.of_holder(&one.holder).count())?
            }
        };
        self.lease_of(&one.holder).map(|(lease, _)| lease)
    }

    /// The number of a lease, if a majority has it.
    fn number_of(&self, lease: &Holding) -> Option<u64> {
        (self.has_majority(lease) && lease.number > 0).then_some(lease.number)
    }
}

impl Holding {
    /// The lease as a majority has ended it. Where the look met an attempt under way, its token may
    /// have a later number by then.
    fn told_by(self, ended: &Poll, quorum: Quorum) -> Option<Self> {
        let (number, owner) = ended.most_ended()?;
        let nodes = ended.ended().filter(|(it, _)| *it == number).count();
        (nodes >= quorum.needed()).then(|| Self { number, owner: owner.to_owned(), ..self })
    }
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Given;
    use crate::lock::error::Effect;
    use crate::lock::lease::State;
    use crate::store::redlock::poll::{Heard, Holding, Poll, Quorum, Says, Vote};

    fn holding(holder: &str, number: u64) -> Holding {
        let (holder, owner) = (holder.as_bytes().to_vec(), String::new());
        Holding { holder, left: None, number, owner, held: None }
    }

    #[test]
    fn of_two_claims_with_one_number_that_with_most_nodes_is_the_lease() {
        for order in [["lost", "won", "won"], ["won", "lost", "won"], ["won", "won", "lost"]] {
            let mut looks = Poll::new(Quorum::of(3));
            for (node, holder) in order.into_iter().enumerate() {
                let said = Says::Held(holding(holder, 7));
                looks.count(node, Heard { votes: true, highest: 7, said });
            }
            let lease = looks.most_held(Some(7)).map(|lease| lease.holder);
            assert_eq!(lease, Some(b"won".to_vec()), "{order:?}");
        }
    }

    #[test]
    fn a_forced_release_tells_what_a_majority_ended_and_not_what_its_look_met() {
        let quorum = Quorum::of(3);
        let told = |numbers: &[u64]| {
            let mut ended = Poll::new(quorum);
            for (node, number) in numbers.iter().enumerate() {
                let said = Says::Ended(*number, "me".to_owned());
                ended.count(node, Heard { votes: true, highest: 9, said });
            }
            let told = holding("token", 7).told_by(&ended, quorum);
            told.map(|lease| (lease.number, lease.owner))
        };
        assert_eq!(told(&[9, 9, 8]), Some((9, "me".to_owned())));
        assert_eq!([told(&[]), told(&[9]), told(&[7, 8, 9])], [None, None, None]);
    }

    #[test]
    fn a_lease_that_a_minority_gave_up_is_neither_a_lease_nor_nothing() {
        let (by, owner, left) = ("-".to_owned(), String::new(), Duration::ZERO);
        let (number, ttl, state, held) = (9, left, State::New, None);
        let later = Vote { number, by, left, ttl, state, owner, held };
        let given = |ended: &[u64], waits: usize, silent: usize, others: usize| {
            let mut poll = Poll::new(Quorum::of(5));
            let ended = ended.iter().map(|number| (true, Says::Ended(*number, String::new())));
            let waits = std::iter::repeat_n((false, Says::Free), waits);
            let silent = std::iter::repeat_n((false, Says::Silent(Effect::Unknown)), silent);
            let others = std::iter::repeat_n((true, Says::Has(later.clone())), others);
            let free = std::iter::repeat((true, Says::Free));
            let all = ended.chain(waits).chain(silent).chain(others).chain(free).take(5);
            for (node, (votes, said)) in all.enumerate() {
                poll.count(node, Heard { votes, highest: 9, said });
            }
            poll.given(Quorum::of(5))
        };
        let lease = Given::Lease(7, String::new());
        assert_eq!(given(&[], 0, 2, 0), Given::Nothing);
        assert_eq!(given(&[7], 0, 0, 0), Given::Part, "a grant may be under way elsewhere");
        assert_eq!(given(&[7, 7], 0, 0, 0), Given::Part);
        assert_eq!(given(&[7, 7], 1, 0, 0), lease, "a node has forgotten");
        assert_eq!(given(&[7, 7, 5], 0, 2, 0), lease);
        assert_eq!(given(&[7, 7], 0, 1, 0), Given::Unclear);
        assert_eq!(given(&[7], 0, 0, 3), Given::Nothing, "a later lease");
    }
}
