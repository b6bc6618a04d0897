//! Releases on several nodes: all are asked, and silent nodes are asked again until they answer.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use tokio::time::sleep;

use crate::lock::error::{Effect, StoreError, Verb};
use crate::lock::key::LockKey;
use crate::lock::lease::{Holder, Owner, Renewals};
use crate::lock::slots::Share;
use crate::lock::store::{Ended, Target};
use crate::lock::token::{FencingToken, LeaseToken};
use crate::store::redis::deadline::{Deadline, When};
use crate::store::redis::node::failure;
use crate::store::redis::script::{Reply, or_empty};
use crate::store::redlock::RedlockStore;
use crate::store::redlock::nodes::{FORCE_RELEASE, Part, Question, natural, other};
use crate::store::redlock::vote::{Other, Quorum};

/// The attempts of [`RedlockStore::undo_all`] before its caller has to retry later.
const UNDO_TRIES: u32 = 3;

/// The nodes' answers to a release.
#[derive(Default)]
struct Given {
    /// The fencing token, 0 if unknown, and owner from each node that gave something up.
    up: Vec<(u64, String)>,
    /// The longest requested TTL of the lease, in milliseconds.
    ttl: u64,
    /// The number of nodes that may have forgotten.
    blank: usize,
    silent: Vec<usize>,
    /// The number of nodes with a smaller fencing token than the one that is named.
    smaller: usize,
    /// The number of nodes with a greater one.
    greater: usize,
    /// The tokens, with their fencing tokens, that have the other nodes.
    taken: Vec<(Vec<u8>, u64)>,
}

impl Given {
    fn count(&mut self, node: usize, answered: Result<Reply, StoreError>) {
        match answered {
            Ok(mut reply) => match reply.word() {
                "lease" => {
                    let number = natural(&mut reply).unwrap_or_default();
                    self.up.push((number, reply.text().unwrap_or_default()));
                    self.ttl = self.ttl.max(natural(&mut reply).unwrap_or_default());
                }
                "smaller" => self.smaller += 1,
                "greater" => self.greater += 1,
                "taken" => self.taken.extend(reply.bytes().zip(natural(&mut reply))),
                "blank" | "foreign" => self.blank += 1,
                _ => (),
            },
            Err(_) => self.silent.push(node),
        }
    }

    /// The greatest number below all that a later lease of the token may have: a majority knows it,
    /// where one gave up what it had. A late vote may have a greater one, which no majority ever
    /// confirmed, and a node that missed a write-back a smaller one.
    fn most(&self, quorum: Quorum) -> Option<u64> {
        let numbers = self.up.iter().map(|(number, _)| *number).filter(|number| *number > 0);
        let mut numbers: Vec<u64> = numbers.collect();
        numbers.sort_unstable_by_key(|number| std::cmp::Reverse(*number));
        numbers.get(quorum.needed() - 1).or_else(|| numbers.last()).copied()
    }

    /// Returns true if there may have been a majority.
    fn may_be_lease(&self, quorum: Quorum) -> bool {
        self.up.len() + self.silent.len() + self.blank >= quorum.needed()
    }

    /// Returns true if a minority gave something up, and none or another lease is on the others.
    fn is_part(&self, quorum: Quorum) -> bool {
        !self.up.is_empty() && !self.may_be_lease(quorum) && self.greater < quorum.needed()
    }

    /// The lease of another token that has a majority.
    fn rival(&self, quorum: Quorum) -> Option<&(Vec<u8>, u64)> {
        let nodes = |rival| self.taken.iter().filter(|other| *other == rival).count();
        self.taken.iter().find(|rival| nodes(*rival) >= quorum.needed())
    }

    /// The result of the release. A node that may have forgotten, or is silent, may have been part
    /// of a majority. A node that had nothing may still get a late vote. So with a silent node,
    /// only a majority that gave up proves that no lease is left; and where a minority gave up,
    /// another instance may be about to grant the claim, also where somebody else has the others:
    /// they may be free before it has asked all.
    fn outcome(self, quorum: Quorum) -> Result<Ended, StoreError> {
        let needed = quorum.needed();
        let may_be_lease = self.may_be_lease(quorum);
        if may_be_lease && self.up.len() < needed && !self.silent.is_empty() {
            return Err(failure(Verb::Release, Effect::Unknown, "too few nodes answered"));
        }
        if self.up.is_empty() || self.greater >= needed {
            return Ok(Ended::Nothing);
        }
        if !may_be_lease {
            return Err(a_part());
        }
        let (number, owner) = self.up.into_iter().max_by_key(|(number, _)| *number).unzip();
        Ok(Ended::Lease(Holder {
            fencing_token: number.and_then(FencingToken::from_number),
            owner: owner.and_then(|owner| Owner::parse(&owner).ok()?),
            ..Holder::default()
        }))
    }
}

fn a_part() -> StoreError {
    failure(Verb::Release, Effect::Unknown, "a part of a claim was given up: ask again")
}

impl RedlockStore {
    /// Gives up what the target's token has of the key, on all nodes.
    ///
    /// Returns when all nodes have answered, or are too late to act: the token may be used again
    /// then, and a late command would take its next lease.
    pub(super) async fn release_all(&self, target: &Target) -> Result<Ended, StoreError> {
        let (patience, quorum) = (self.rules.node_timeout, self.quorum());
        let asked = self.deadline(self.rules.longest_lease.as_duration());
        let given = self.given_with_rest(target).await?;
        let named = target.number.map(FencingToken::number);
        let most = named.or_else(|| given.most(quorum));
        let greatest = given.up.iter().map(|(number, _)| *number).max();
        let (silent, ttl) = (given.silent.clone(), Duration::from_millis(given.ttl));
        let another = given.smaller > 0;
        // If the outcome is unknown, the lease may be granted to its token again: then nothing may
        // be cleaned up later.
        let released = given.outcome(quorum)?;
        let up_to = |number| Target { number: FencingToken::from_number(number), ..target.clone() };
        if released == Ended::Nothing && !another {
            // An earlier release without an answer may have reached the others.
            self.owe_older(target, silent, asked);
        } else if let (Ended::Lease(_), Some(most)) = (&released, most) {
            // A later lease of the same token has a greater number, and is not this release's.
            let again = self.nodes.release(&up_to(most), Part::All, When::AnyTime, patience);
            let left = silent.iter().map(|&node| self.cleanup.leftover_now(node)).collect();
            self.cleanup.owe(left, &again, ttl);
            if let Some(greatest) = greatest.filter(|greatest| *greatest > most) {
                // Those that have answered may have missed the number of the lease.
                self.owe_older(&up_to(greatest), silent, asked);
            }
        }
        Ok(released)
    }

    /// Asks all nodes to give up what the target's token has, and once more if a minority does.
    async fn given_with_rest(&self, target: &Target) -> Result<Given, StoreError> {
        let given = self.given(target).await;
        if !given.is_part(self.quorum()) {
            return Ok(given);
        }
        // A claim may be under way whose vote this was. All of its votes are there by then.
        sleep(self.rules.node_timeout).await;
        let (quorum, rest) = (self.quorum(), self.given(target).await);
        let rival = given.rival(quorum);
        let others = rival.is_some() && rest.rival(quorum) == rival;
        // Another release may have given up the rest of a lease, unless there was none.
        if rest.up.is_empty() && !others { Err(a_part()) } else { Ok(rest) }
    }

    /// Asks all nodes to give up what the target's token has. A smaller number than the one that is
    /// named is given up with it only: a node may have missed that, but does not know.
    async fn given(&self, target: &Target) -> Given {
        let mut given = self.part_given(target, Part::Exact).await;
        if given.smaller > 0 && !given.up.is_empty() {
            let rest = self.part_given(target, Part::All).await;
            given.up.extend(rest.up);
            given = Given { up: given.up, ttl: given.ttl.max(rest.ttl), ..rest };
        }
        given
    }

    async fn part_given(&self, target: &Target, part: Part<'_>) -> Given {
        let patience = self.rules.node_timeout;
        let until = When::Until(self.deadline(patience));
        let question = self.nodes.release(target, part, until, patience);
        let mut given = Given::default();
        for (node, answered) in self.nodes.ask_each(&question).await.into_iter().enumerate() {
            given.count(node, answered);
        }
        given
    }

    /// Gives up what the target's token has had on these silent nodes since before `asked`, once
    /// they answer.
    fn owe_older(&self, target: &Target, silent: Vec<usize>, asked: Deadline) {
        let patience = self.rules.node_timeout;
        let question = self.nodes.release_older(target, asked, patience);
        let left = silent.into_iter().map(|node| self.cleanup.leftover_now(node)).collect();
        self.cleanup.owe(left, &question, self.rules.longest_lease.as_duration());
    }

    /// Undoes what earlier calls with a token of the service did or may still do.
    pub(super) async fn undo_all(
        &self,
        key: &LockKey,
        token: &LeaseToken,
    ) -> Result<Ended, StoreError> {
        let patience = self.rules.node_timeout;
        let target = Target::of(key, token, None);
        let question = self.nodes.release(&target, Part::All, When::AnyTime, patience);
        let nodes = 0..self.quorum().nodes();
        let mut left: Vec<_> = nodes.map(|node| self.cleanup.leftover(node, patience)).collect();
        for _ in 0..UNDO_TRIES {
            left = self.cleanup.once(left, &question).await;
            if left.is_empty() {
                return Ok(Ended::Nothing);
            }
            sleep(patience * 2).await;
        }
        if left.len() > self.quorum().spare() {
            return Err(failure(Verb::Release, Effect::Unknown, "too few nodes answered"));
        }
        // The remaining nodes cannot form a majority.
        self.cleanup.owe(left, &question, self.rules.longest_lease.as_duration());
        Ok(Ended::Nothing)
    }

    /// Ends the lease of the key, only the one `named`, if given, on all nodes: what the holder
    /// with most votes has there. Another token's vote stays: its claim may be granted with it,
    /// once the key is free.
    pub(super) async fn force_release_all(
        &self,
        key: &LockKey,
        named: Option<FencingToken>,
    ) -> Result<Vec<Holder>, StoreError> {
        let patience = self.rules.node_timeout;
        let question =
            |args: [String; 3]| self.nodes.question(&FORCE_RELEASE, key, args.to_vec(), patience);
        let needed = self.quorum().needed();
        let looks = question(Default::default());
        let (held, _) = self.holders(Verb::ForceRelease, &looks).await?;
        let Some(lease) = most_votes(with_number(held, named), needed) else {
            return Ok(Vec::new());
        };
        // A value that is no text is that of a direct Redis client.
        let whose = String::from_utf8(lease.holder).unwrap_or_default();
        let up_to = or_empty(named.map(FencingToken::number));
        let ends = question(["1".to_owned(), whose, up_to]);
        let asked = self.deadline(self.rules.longest_lease.as_duration());
        let (taken, silent) = self.holders(Verb::ForceRelease, &ends).await?;
        let most = most_votes(taken, needed);
        let token = |other: &Other| LeaseToken::parse(str::from_utf8(&other.holder).ok()?).ok();
        if let Some(token) = most.as_ref().and_then(token) {
            self.owe_older(&Target::of(key, &token, None), silent, asked);
        }
        Ok(most.iter().map(holder).collect())
    }

    /// The holders, present or ended, on each node that names one, and the nodes without an answer;
    /// a majority has to answer.
    async fn holders(
        &self,
        verb: Verb,
        question: &Question,
    ) -> Result<(Vec<Other>, Vec<usize>), StoreError> {
        let (mut held, mut silent) = (Vec::new(), Vec::new());
        for (node, answered) in self.nodes.ask_each(question).await.into_iter().enumerate() {
            match answered {
                Ok(mut reply) if reply.word() == "held" => held.extend(other(&mut reply)),
                Ok(_) => (),
                Err(_) => silent.push(node),
            }
        }
        if silent.len() > self.quorum().spare() {
            return Err(failure(verb, Effect::Unknown, "too few nodes answered"));
        }
        Ok((held, silent))
    }

    /// Returns true if the lease of a keeper was renewed, or is another one by now. A majority tells
    /// of a renewal; a single node that missed it must not give up the others' lease. A late vote
    /// has a greater number, but on fewer nodes than a later lease.
    pub(super) async fn was_renewed(
        &self,
        of: &Target,
        renewals: Renewals,
    ) -> Result<bool, StoreError> {
        let question = self.nodes.inspection(&of.key, self.rules.node_timeout);
        let (votes, _) = self.holders(Verb::LetGo, &question).await?;
        let mine = |other: &&Other| other.holder == of.token.expose().as_bytes();
        let number = of.number.map(FencingToken::number);
        let later =
            |other: &Other| other.renewals > renewals.number() || Some(other.number) > number;
        let unchanged = votes.iter().filter(mine).filter(|other| !later(other)).count();
        Ok(unchanged < self.quorum().needed() && votes.iter().filter(mine).any(later))
    }
}

/// The votes of the holders that have this number on a node, if one is named.
fn with_number(mut votes: Vec<Other>, named: Option<FencingToken>) -> Vec<Other> {
    if let Some(named) = named.map(FencingToken::number) {
        let named = votes.iter().filter(|vote| vote.number == named);
        let holders: HashSet<_> = named.map(|vote| vote.holder.clone()).collect();
        votes.retain(|vote| holders.contains(&vote.holder));
    }
    votes
}

/// The holder with most votes, with the number that `needed` of its nodes knew: a single node may
/// have drawn a greater one for a repeat, or for a rival without a majority.
fn most_votes(votes: Vec<Other>, needed: usize) -> Option<Other> {
    let mut by_holder: HashMap<Vec<u8>, Vec<Other>> = HashMap::new();
    for vote in votes {
        by_holder.entry(vote.holder.clone()).or_default().push(vote);
    }
    let mut most = by_holder.into_values().max_by_key(Vec::len)?;
    most.sort_unstable_by_key(|vote| std::cmp::Reverse(vote.number));
    let index = if most.len() < needed { 0 } else { needed - 1 };
    Some(most.swap_remove(index))
}

pub(super) fn holder(other: &Other) -> Holder {
    Holder {
        owner: Owner::parse(&other.owner).ok().flatten(),
        fencing_token: FencingToken::from_number(other.number),
        left: other.left,
        held: other.held.map(Duration::from_millis),
        share: Share::ALONE,
    }
}

#[cfg(test)]
mod tests {
    use super::{Given, most_votes};
    use crate::lock::store::Ended;
    use crate::store::redlock::vote::{Other, Quorum};

    #[test]
    fn a_lease_that_a_minority_gave_up_is_neither_a_lease_nor_nothing() {
        let outcome = |up: usize, blank: usize, silent: usize| {
            let up = vec![(7, String::new()); up];
            let silent = (0..silent).collect();
            Given { up, blank, silent, ..Given::default() }.outcome(Quorum::of(5)).ok()
        };
        assert_eq!(outcome(0, 0, 2), Some(Ended::Nothing));
        assert_eq!(outcome(1, 0, 0), None, "a grant may be under way elsewhere");
        assert_eq!(outcome(2, 0, 0), None);
        assert!(matches!(outcome(2, 1, 0), Some(Ended::Lease(_))), "a node has forgotten");
        assert!(matches!(outcome(3, 0, 2), Some(Ended::Lease(_))));
        assert_eq!(outcome(2, 0, 1), None);
        let given = Given { up: vec![(7, String::new())], greater: 3, ..Given::default() };
        assert_eq!(given.outcome(Quorum::of(5)).ok(), Some(Ended::Nothing), "a later lease");
    }

    #[test]
    fn a_silent_node_gives_up_all_that_a_majority_had_and_nothing_later() {
        let most = |numbers: &[u64]| {
            let up = numbers.iter().map(|number| (*number, String::new())).collect();
            Given { up, ..Given::default() }.most(Quorum::of(5))
        };
        assert_eq!(most(&[7, 7, 7, 7]), Some(7));
        assert_eq!(most(&[7, 5, 7, 7]), Some(7), "one missed a write-back");
        assert_eq!(most(&[9, 7, 7]), Some(7), "one has a late vote");
        assert_eq!(most(&[9, 7, 0]), Some(7), "one has forgotten");
        assert_eq!(most(&[0]), None);
    }

    fn votes(of: &[(&str, u64)]) -> Vec<Other> {
        let vote = |(holder, number): &(&str, u64)| Other {
            holder: holder.as_bytes().to_vec(),
            left: None,
            number: *number,
            owner: String::new(),
            held: None,
            renewals: 0,
        };
        of.iter().map(vote).collect()
    }

    #[test]
    fn a_forced_release_names_the_lease_and_no_vote_of_a_rival_or_a_repeat() {
        let named = |of: &[_], needed| {
            let most = most_votes(votes(of), needed)?;
            Some((String::from_utf8(most.holder).unwrap(), most.number))
        };
        let told = |holder: &str, number| Some((holder.to_owned(), number));
        assert_eq!(named(&[], 2), None);
        assert_eq!(named(&[("a", 5), ("a", 5), ("b", 9)], 2), told("a", 5));
        assert_eq!(named(&[("a", 5), ("a", 9), ("a", 5)], 2), told("a", 5));
        assert_eq!(named(&[("a", 5), ("a", 4)], 3), told("a", 5));
    }
}
