//! The evaluation of the answers of N independent nodes. Pure: answers are arguments.
//!
//! A lease exists while more than half of all nodes hold its token. Its fencing token follows one
//! rule: a number may be answered only after such a majority has confirmed, each node atomically,
//! that it holds the token and that the highest number it knows is not below this one; and this
//! number is the greatest that any of them drew. So the next majority, which shares a node with
//! this one, draws a greater number; no clock is involved.

use std::time::Duration;

use crate::lock::error::Effect;

/// The majority of N nodes; any N from 1 on, odd or even.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Quorum {
    nodes: usize,
}

impl Quorum {
    pub(super) const fn of(nodes: usize) -> Self {
        Self { nodes }
    }

    pub(super) const fn nodes(self) -> usize {
        self.nodes
    }

    /// More than half: any two majorities share a node.
    pub(super) fn needed(self) -> usize {
        self.nodes / 2 + 1
    }

    /// The number of nodes that may be missing.
    pub(super) fn spare(self) -> usize {
        self.nodes - self.needed()
    }

    /// The size of a group of nodes that meets every majority, and so can block it.
    pub(super) fn peers(self) -> usize {
        self.nodes - self.needed() + 1
    }
}

/// One node's answer about a token and a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ballot {
    /// The key is the token's.
    Yes(Yes),
    /// The token does not have it.
    No(Option<Other>),
    /// Nobody has it; the highest number that the node knows.
    Missing(u64),
    /// The token has it, but another request has taken it over.
    TakenOver,
    /// The node may have forgotten leases, and does not count.
    Blank,
    /// The node serves instances with other settings.
    Foreign,
    Silent(Effect),
}

/// A node's vote for a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Yes {
    /// The fencing token of the lease on this node.
    pub(super) number: u64,
    /// The attempt that drew the number; empty once a majority may have confirmed it.
    pub(super) drawer: String,
    /// The age of the vote.
    pub(super) since: Since,
    /// The renewals of the lease, as far as this node knows.
    pub(super) renewals: u64,
    /// The requested TTL in milliseconds, and the owner, if the question was for them.
    pub(super) asked: Option<(u64, String)>,
    /// The milliseconds since its lease began on this node, if the question was for them.
    pub(super) held: Option<u64>,
    /// The highest number that the node knew before it drew this one; absent unless it drew it now.
    pub(super) before: Option<u64>,
}

impl Yes {
    /// Returns true if one attempt drew both numbers, or both may be confirmed.
    fn is_drawn_with(&self, other: &Self) -> bool {
        self.drawer == other.drawer
    }
}

/// The age of a node's vote for a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Since {
    /// From this question.
    Now,
    /// From an earlier question.
    Before,
}

/// The holder of the key on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Other {
    /// The value of the lock there; empty for another type.
    pub(super) holder: Vec<u8>,
    /// The time left; absent if it never expires.
    pub(super) left: Option<Duration>,
    /// The fencing token there; 0 for a direct Redis client.
    pub(super) number: u64,
    /// The holder's label; empty if none.
    pub(super) owner: String,
    /// The milliseconds since the lease began on this node; absent for a direct Redis client.
    pub(super) held: Option<u64>,
    /// The renewals of the lease, if the question was for them.
    pub(super) renewals: u64,
}

/// The fencing token of a majority.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Number {
    /// A majority has confirmed it already.
    Agreed(u64),
    /// A majority still has to confirm it.
    Disputed(u64),
}

/// The answers to one question, as they arrive.
#[derive(Debug)]
pub(super) struct Poll {
    quorum: Quorum,
    ballots: Vec<Option<Ballot>>,
}

impl Poll {
    pub(super) fn new(quorum: Quorum) -> Self {
        Self { quorum, ballots: vec![None; quorum.nodes()] }
    }

    pub(super) fn count(&mut self, node: usize, ballot: Ballot) {
        self.ballots[node] = Some(ballot);
    }

    /// The answers so far, by node.
    pub(super) fn ballots(&self) -> impl Iterator<Item = (usize, Option<&Ballot>)> {
        self.ballots.iter().map(Option::as_ref).enumerate()
    }

    /// The votes for the token.
    pub(super) fn votes(&self) -> Vec<&Yes> {
        let votes = self.ballots.iter().filter_map(|ballot| match ballot {
            Some(Ballot::Yes(yes)) => Some(yes),
            _ => None,
        });
        votes.collect()
    }

    /// Returns true if a majority votes for the token.
    pub(super) fn won(&self) -> bool {
        self.votes().len() >= self.quorum.needed()
    }

    /// Returns true if a majority had voted for it before this question, and its number may have
    /// been answered.
    pub(super) fn was_held(&self) -> bool {
        let had_it = |yes: &&Yes| yes.since == Since::Before && yes.before.is_none();
        let (votes, number) = (self.votes(), self.number());
        let is_known = |yes: &&Yes| match number {
            Number::Agreed(_) => true,
            Number::Disputed(number) => yes.number == number && yes.drawer.is_empty(),
        };
        votes.iter().any(is_known)
            && votes.into_iter().filter(had_it).count() >= self.quorum.needed()
    }

    /// Returns true if a majority may have voted for it before this question, counting nodes that
    /// did not answer.
    pub(super) fn may_have_been_held(&self) -> bool {
        let before = self
            .how_many(|ballot| matches!(ballot, Ballot::Yes(yes) if yes.since == Since::Before));
        let unheard = self.quorum.nodes() - self.answered();
        before > 0 && before + unheard >= self.quorum.needed()
    }

    /// Returns true if every node has answered or failed.
    pub(super) fn complete(&self) -> bool {
        self.ballots.iter().all(Option::is_some)
    }

    /// Returns true if further answers cannot improve the result.
    ///
    /// If some nodes had the token before, its lease may be an old one whose number must not change
    /// needlessly: then all nodes are awaited, unless a majority agrees on the number.
    pub(super) fn decided(&self) -> bool {
        let open = self.ballots.iter().filter(|ballot| ballot.is_none()).count();
        let (votes, needed, answered) = (self.votes(), self.quorum.needed(), self.answered());
        if open == 0 {
            return true;
        }
        if votes.len() + open < needed {
            // It is lost. The cause, rivals or silence, is known with a majority of answers, or
            // without a chance of one. Nodes that are not heard yet may have voted: they are
            // awaited while the outcome depends on them.
            let silent = self.how_many(|ballot| *ballot == Ballot::Silent(Effect::Unknown));
            let outcome_is_known = open + silent <= self.quorum.spare();
            return answered >= needed || (answered + open < needed && outcome_is_known);
        }
        let fresh = votes.iter().all(|yes| yes.since == Since::Now);
        self.won() && (fresh || matches!(self.number(), Number::Agreed(_)))
    }

    /// The fencing token of the votes. Those agree that were drawn in one attempt, or are settled: a
    /// number of another attempt may still be leveled.
    pub(super) fn number(&self) -> Number {
        let votes = self.votes();
        let alike = |one: &Yes, other: &Yes| one.number == other.number && one.is_drawn_with(other);
        let agree = |one: &Yes| votes.iter().filter(|other| alike(one, other)).count();
        let agreed = votes.iter().find(|yes| agree(yes) >= self.quorum.needed());
        let greatest = votes.iter().map(|yes| yes.number).max().unwrap_or_default();
        agreed.map_or(Number::Disputed(greatest), |yes| Number::Agreed(yes.number))
    }

    /// The highest numbers that are known to the nodes where the key was free, a space around each.
    pub(super) fn free_at(&self) -> String {
        let known = self.ballots.iter().flatten().filter_map(|ballot| match ballot {
            Ballot::Missing(known) => Some(format!(" {known} ")),
            _ => None,
        });
        known.collect()
    }

    /// The renewals of the lease, as far as the voters know.
    pub(super) fn renewals(&self) -> u64 {
        self.votes().iter().map(|yes| yes.renewals).max().unwrap_or_default()
    }

    /// The number of answers that count.
    pub(super) fn answered(&self) -> usize {
        let counts = |ballot: &Ballot| match ballot {
            Ballot::Yes(_) | Ballot::No(_) | Ballot::Missing(_) | Ballot::TakenOver => true,
            Ballot::Blank | Ballot::Foreign | Ballot::Silent(_) => false,
        };
        self.how_many(counts)
    }

    /// The number of ballots that match `so`.
    pub(super) fn how_many(&self, so: impl Fn(&Ballot) -> bool) -> usize {
        self.ballots.iter().flatten().filter(|ballot| so(ballot)).count()
    }

    /// The holder of the key on most nodes, and the number of these nodes.
    pub(super) fn rival(&self) -> Option<(&Other, usize)> {
        let others = || {
            self.ballots.iter().filter_map(|ballot| match ballot {
                Some(Ballot::No(other)) => other.as_ref(),
                _ => None,
            })
        };
        let count = |one: &Other| others().filter(|other| other.holder == one.holder).count();
        let rival = others().max_by_key(|one| (count(one), one.number))?;
        Some((rival, count(rival)))
    }

    /// The lease of a holder, as far as the nodes that name it know, and their number. It is over
    /// when too few of them are left.
    pub(super) fn lease_of(&self, holder: &[u8]) -> Option<(Other, usize)> {
        let of_holder = |ballot: &Ballot| match ballot {
            Ballot::No(Some(other)) if other.holder == holder => Some(other.clone()),
            _ => None,
        };
        let mut parts: Vec<_> = self.ballots.iter().flatten().filter_map(of_holder).collect();
        // A lock without a TTL comes last.
        parts.sort_by_key(|part| part.left.unwrap_or(Duration::MAX));
        let left = parts.get(parts.len().saturating_sub(self.quorum.needed()))?.left;
        let agree = |one: &&Other| {
            let alike = parts.iter().filter(|other| other.number == one.number).count();
            (alike >= self.quorum.needed(), one.number)
        };
        let one = parts.iter().max_by_key(agree)?;
        Some((Other { left, held: self.age_of(one), ..one.clone() }, parts.len()))
    }

    /// The age of the lease in milliseconds, as far as the voters know.
    pub(super) fn age(&self) -> Option<u64> {
        self.majority_age(self.votes().iter().filter_map(|yes| yes.held).collect())
    }

    /// The age of the lease in milliseconds on the voter where it began first.
    pub(super) fn oldest(&self) -> Option<u64> {
        self.votes().iter().filter_map(|yes| yes.held).max()
    }

    /// The age of a rival's lease in milliseconds, as far as known.
    pub(super) fn age_of(&self, rival: &Other) -> Option<u64> {
        let ages = self.ballots.iter().flatten().filter_map(|ballot| match ballot {
            Ballot::No(Some(other)) if other.holder == rival.holder => other.held,
            _ => None,
        });
        self.majority_age(ages.collect())
    }

    /// The age on the node that completed a majority: a node that was added later has a smaller
    /// one, and one with a vote of an earlier attempt a greater one.
    fn majority_age(&self, mut ages: Vec<u64>) -> Option<u64> {
        ages.sort_unstable_by_key(|age| std::cmp::Reverse(*age));
        let majority = ages.len().min(self.quorum.needed());
        majority.checked_sub(1).map(|last| ages[last])
    }

    /// Returns true if one rival may hold the key by majority, counting nodes that did not answer.
    /// Otherwise votes are split and no token holds it.
    pub(super) fn held(&self) -> bool {
        self.rival().is_some_and(|(_, nodes)| self.may_be_majority(nodes))
    }

    /// Returns true if so many nodes are a majority, with those that did not answer.
    pub(super) fn may_be_majority(&self, nodes: usize) -> bool {
        nodes + self.quorum.nodes() - self.answered() >= self.quorum.needed()
    }

    /// The time until a majority of nodes is free, as far as known: the time left on the node that
    /// completes it.
    pub(super) fn left(&self) -> Option<Duration> {
        let mut left: Vec<_> = self
            .ballots
            .iter()
            .filter_map(|ballot| match ballot {
                Some(Ballot::No(other)) => {
                    Some(other.as_ref().map_or(Some(Duration::ZERO), |other| other.left))
                }
                Some(Ballot::Yes(_)) => Some(Some(Duration::ZERO)),
                _ => None,
            })
            .collect();
        // A lock without a TTL comes last.
        left.sort_by_key(|left| left.unwrap_or(Duration::MAX));
        let majority = left.len().min(self.quorum.needed());
        majority.checked_sub(1).and_then(|last| left[last])
    }
}

/// The time left of a lease of `ttl` that was requested `elapsed` ago, less a margin for clocks of
/// different speed: 1 % and the 2 ms of the server's precision. `None` if less than half of the TTL
/// is left: the nodes were too slow.
pub(super) fn validity(ttl: Duration, elapsed: Duration) -> Option<Duration> {
    let left = ttl.checked_sub(ttl / 100 + Duration::from_millis(2))?.checked_sub(elapsed)?;
    (left >= ttl / 2).then_some(left)
}

/// As [`validity`], for a lease that cannot be renewed beyond `rest`: it may be short.
pub(super) fn remaining(rest: Duration, elapsed: Duration) -> Option<Duration> {
    let left = rest.checked_sub(rest / 100 + Duration::from_millis(2))?.checked_sub(elapsed)?;
    (left >= Duration::from_millis(1)).then_some(left)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Ballot, Number, Other, Poll, Quorum, Since, Yes, validity};
    use crate::lock::error::Effect;

    fn yes(number: u64, since: Since) -> Ballot {
        drawn(number, since, None)
    }

    fn drawn(number: u64, since: Since, before: Option<u64>) -> Ballot {
        let drawer = String::new();
        Ballot::Yes(Yes { number, drawer, since, renewals: 0, asked: None, held: None, before })
    }

    fn taken(holder: &str, left_ms: u64) -> Ballot {
        let left = Some(Duration::from_millis(left_ms));
        let (holder, owner) = (holder.as_bytes().to_vec(), String::new());
        Ballot::No(Some(Other { holder, left, number: 1, owner, held: None, renewals: 0 }))
    }

    fn poll(nodes: usize, ballots: &[Ballot]) -> Poll {
        let mut poll = Poll::new(Quorum::of(nodes));
        for (node, ballot) in ballots.iter().enumerate() {
            poll.count(node, ballot.clone());
        }
        poll
    }

    #[test]
    fn a_quorum_is_more_than_half_in_integers() {
        let needed: Vec<_> = (1..=7).map(|nodes| Quorum::of(nodes).needed()).collect();
        assert_eq!(needed, [1, 2, 2, 3, 3, 4, 4]);
        for nodes in 1..=7 {
            let quorum = Quorum::of(nodes);
            assert!(quorum.needed() * 2 > nodes, "two majorities share a node");
            assert!(quorum.needed() + quorum.peers() > nodes, "peers meet every majority");
            assert_eq!(quorum.spare() + quorum.needed(), nodes);
        }
    }

    #[test]
    fn a_number_is_agreed_only_if_a_majority_has_that_very_number() {
        let now = Since::Now;
        assert_eq!(poll(3, &[yes(5, now), yes(5, now)]).number(), Number::Agreed(5));
        assert_eq!(poll(3, &[yes(5, now), yes(6, now)]).number(), Number::Disputed(6));
        assert_eq!(poll(5, &[yes(5, now), yes(5, now), yes(7, now)]).number(), Number::Disputed(7));
    }

    #[test]
    fn an_old_lease_keeps_its_number_if_a_third_node_can_tell_it() {
        let (before, now) = (Since::Before, Since::Now);
        let mut asked = poll(3, &[yes(5, before), yes(9, now)]);
        assert!(asked.won() && !asked.decided());
        asked.count(2, yes(5, before));
        assert!(asked.decided() && asked.was_held());
        assert_eq!(asked.number(), Number::Agreed(5));
        assert!(poll(3, &[yes(9, now), yes(9, now)]).decided());
    }

    #[test]
    fn a_vote_without_a_number_was_no_lease() {
        let before = Since::Before;
        assert!(poll(3, &[yes(5, before), yes(5, before)]).was_held());
        assert!(!poll(3, &[yes(5, before), drawn(9, before, Some(0))]).was_held());
        // One attempt drew the greater number, and nobody has confirmed it.
        let unknown = |number| match yes(number, before) {
            Ballot::Yes(yes) => Ballot::Yes(Yes { drawer: "attempt".to_owned(), ..yes }),
            other => other,
        };
        assert!(!poll(3, &[yes(5, before), unknown(9)]).was_held());
        assert!(poll(3, &[unknown(9), unknown(9)]).was_held());
        assert!(poll(3, &[yes(5, before), yes(9, before)]).was_held());
    }

    #[test]
    fn a_split_vote_is_not_a_lease_of_somebody_else() {
        let split = poll(2, &[yes(5, Since::Now), taken("b", 100)]);
        assert!(split.decided() && !split.won() && !split.held());
        assert_eq!(split.answered(), 2);
        assert!(poll(3, &[taken("b", 100), taken("b", 90)]).held());
        assert!(!poll(3, &[yes(5, Since::Now), taken("b", 1), taken("c", 1)]).held());
        // The silent node may be b's as well.
        let silent = Ballot::Silent(Effect::Unknown);
        assert!(poll(3, &[yes(5, Since::Now), taken("b", 1), silent]).held());
    }

    #[test]
    fn a_loss_is_told_once_a_majority_has_said_so() {
        let two = [taken("b", 1), taken("b", 1)];
        assert!(poll(3, &two).decided());
        assert!(!poll(4, &two).decided(), "a third of four can still answer");
        let silent = || Ballot::Silent(Effect::None);
        assert!(poll(4, &[taken("b", 1), silent(), silent()]).decided());
        assert!(!poll(2, &[Ballot::Blank]).decided(), "the other node may vote");
        assert!(!poll(4, &[Ballot::Blank, Ballot::Blank]).decided());
        assert!(poll(3, &[Ballot::Blank, Ballot::Blank]).decided(), "one vote is no lease");
        assert!(!poll(3, &[Ballot::Blank, Ballot::Silent(Effect::Unknown)]).decided());
    }

    #[test]
    fn a_key_is_free_when_a_majority_of_its_nodes_is() {
        let left = |ballots: &[Ballot]| poll(3, ballots).left();
        let ms = |ms| Some(Duration::from_millis(ms));
        assert_eq!(left(&[taken("b", 300), taken("b", 100), taken("b", 200)]), ms(200));
        assert_eq!(left(&[taken("b", 300), yes(5, Since::Now), taken("b", 200)]), ms(200));
        assert_eq!(left(&[taken("b", 300), taken("b", 200)]), ms(300));
    }

    #[test]
    fn a_lease_is_what_its_majority_has() {
        let part = |holder: &str, left_ms, number| match taken(holder, left_ms) {
            Ballot::No(Some(other)) => Ballot::No(Some(Other { number, ..other })),
            other => other,
        };
        let lease = |ballots: &[Ballot]| {
            let (lease, nodes) = poll(3, ballots).lease_of(b"a")?;
            Some((lease.number, lease.left?.as_millis(), nodes))
        };
        let [first, second] = [part("a", 300, 5), part("a", 200, 5)];
        assert_eq!(lease(&[first.clone(), second.clone()]), Some((5, 200, 2)));
        // One node has a vote of a repeat, or of a rival.
        let all = [first.clone(), second.clone(), part("a", 900, 7)];
        assert_eq!(lease(&all), Some((5, 300, 3)));
        assert_eq!(lease(&[first.clone(), second, part("b", 900, 7)]), Some((5, 200, 2)));
        assert_eq!(lease(&[first.clone(), part("b", 900, 7)]), Some((5, 300, 1)));
        assert_eq!(lease(&[first, part("a", 900, 7)]), Some((7, 300, 2)));
        assert_eq!(lease(&[part("b", 900, 7)]), None);
    }

    #[test]
    fn a_lease_is_as_old_as_its_majority() {
        let aged = |held: Option<u64>| match taken("b", 100) {
            Ballot::No(Some(other)) => Ballot::No(Some(Other { held, ..other })),
            other => other,
        };
        let age = |nodes, ages: &[Option<u64>]| {
            let poll = poll(nodes, &ages.iter().copied().map(aged).collect::<Vec<_>>());
            poll.age_of(poll.rival()?.0)
        };
        assert_eq!(age(3, &[Some(900), Some(500), Some(505)]), Some(505));
        assert_eq!(age(3, &[Some(500), Some(3)]), Some(3));
        assert_eq!(age(3, &[Some(500), None]), Some(500), "a record without a start");
        assert_eq!(age(3, &[None, None]), None);
        assert_eq!(age(3, &[]), None);
    }

    #[test]
    fn the_remaining_ttl_is_less_the_time_spent_and_the_drift() {
        let ms = Duration::from_millis;
        assert_eq!(validity(ms(10_000), ms(50)), Some(ms(9_848)));
        assert_eq!(validity(ms(100), ms(48)), None);
        assert_eq!(validity(ms(1), ms(0)), None);
        assert_eq!(validity(ms(1_000), ms(2_000)), None);
    }
}
