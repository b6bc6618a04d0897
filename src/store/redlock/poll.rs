//! The counting of the answers of N independent nodes. Pure: answers are arguments.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::lock::error::Effect;
use crate::lock::lease::State;
use crate::lock::token::LeaseToken;
use crate::store::redlock::tally::{Majority, Quorum, Tally, nth_greatest};

/// The longest that an attempt takes on any instance: the greatest `redlock.node_timeout`.
pub(super) const LONGEST_ATTEMPT: Duration = Duration::from_millis(400);

/// One node's answer to a question about a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Heard {
    /// False if the node may have forgotten leases, serves other settings, or is silent: then its
    /// answer does not count.
    pub(super) votes: bool,
    /// The greatest number that it knows.
    pub(super) highest: u64,
    pub(super) said: Says,
}

/// What a node says of a token and a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Says {
    /// Its vote is the attempt's, for this time.
    Yes(Duration),
    /// The token had the lock before.
    Again,
    /// It knows a number that is not below the attempt's.
    Behind,
    /// The token has the lock.
    Has(Vote),
    /// Nobody has it.
    Free,
    /// Another token has it.
    Taken,
    /// The holder, when it was asked for.
    Held(Holding),
    /// What the token had is ended: its number, 0 if unknown, and its owner.
    Ended(u64, String),
    /// Nothing more than that the question was answered.
    Done,
    /// The node serves instances with other settings.
    Foreign,
    Silent(Effect),
}

/// What a token has on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Vote {
    pub(super) number: u64,
    /// The attempt that asked for it while it is open, as in the record.
    pub(super) by: String,
    pub(super) left: Duration,
    /// The TTL that it was given last.
    pub(super) ttl: Duration,
    pub(super) state: State,
    /// Empty if none.
    pub(super) owner: String,
    pub(super) held: Option<Duration>,
}

impl Vote {
    pub(super) fn is_told(&self) -> bool {
        self.by == "-"
    }

    /// Returns true if it is open, and no attempt can count it any more, on any instance. Its age is
    /// what has passed of its TTL: that of a replacement is less than the time that its key is held.
    fn is_old(&self) -> bool {
        !self.is_told() && self.ttl.saturating_sub(self.left) > LONGEST_ATTEMPT * 2
    }
}

impl Says {
    fn holding(&self) -> Option<&Holding> {
        match self {
            Self::Held(holding) => Some(holding),
            _ => None,
        }
    }
}

impl Heard {
    /// What a node said that was not told of this lease, its state or its TTL, for the question that
    /// tells it and changes only what is so still. A greater number stays while its attempt may go on.
    pub(super) fn unsettled(&self, number: u64, (state, ttl): (State, Duration)) -> Option<String> {
        let Self { highest, said, .. } = self;
        let is_settled = |vote: &Vote| {
            vote.number == number && vote.is_told() && vote.state >= state && vote.ttl >= ttl
        };
        match said {
            Says::Free => Some(format!("{highest} 0 -")),
            Says::Has(vote) if is_settled(vote) => None,
            Says::Has(vote) if vote.number <= number || vote.is_old() => {
                Some(format!("{highest} {} {}", vote.number, vote.by))
            }
            _ => None,
        }
    }

    /// The number of what a token without a lease has, unless it may be a vote for an attempt under
    /// way.
    pub(super) fn leftover(&self) -> Option<u64> {
        match &self.said {
            Says::Has(vote) if vote.is_told() || vote.is_old() => Some(vote.number),
            _ => None,
        }
    }
}

/// The holder of a lock on one node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Holding {
    /// The value of the lock; empty for another type.
    pub(super) holder: Vec<u8>,
    /// The time left; absent if it never expires.
    pub(super) left: Option<Duration>,
    /// 0 for a direct Redis client.
    pub(super) number: u64,
    /// Empty if none.
    pub(super) owner: String,
    /// Absent for a direct Redis client.
    pub(super) held: Option<Duration>,
}

/// The outcome of an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// A majority voted freshly: R3.
    Granted,
    /// The token may have a lease, or its old votes are in the way.
    Again,
    /// A greater number may win.
    Behind,
    /// Another token may have a majority.
    Held,
    /// No token has one.
    Split,
    /// Too few nodes answered.
    Failed,
}

/// The answers to one question, as they arrive.
#[derive(Debug)]
pub(super) struct Poll {
    quorum: Quorum,
    heard: Vec<Option<Heard>>,
}

impl Poll {
    pub(super) fn new(quorum: Quorum) -> Self {
        Self { quorum, heard: vec![None; quorum.nodes()] }
    }

    pub(super) fn count(&mut self, node: usize, heard: Heard) {
        self.heard[node] = Some(heard);
    }

    /// The answers so far, by node.
    pub(super) fn heard(&self) -> impl Iterator<Item = (usize, Option<&Heard>)> {
        self.heard.iter().map(Option::as_ref).enumerate()
    }

    /// The nodes that have not answered.
    pub(super) fn silent(&self) -> impl Iterator<Item = usize> {
        let is_silent = |heard: &Heard| matches!(heard.said, Says::Silent(_));
        let silent = self.heard().filter(move |(_, heard)| heard.is_none_or(is_silent));
        silent.map(|(node, _)| node)
    }

    /// The answers that count. What a node has ended is over, whether it votes or not.
    pub(super) fn said(&self) -> impl Iterator<Item = &Says> {
        let counts = |heard: &&Heard| heard.votes || matches!(heard.said, Says::Ended(..));
        self.heard.iter().flatten().filter(counts).map(|heard| &heard.said)
    }

    /// Counts what the nodes say, as far as `what` sees it.
    pub(super) fn tally<'a, T: Ord>(&'a self, what: impl Fn(&'a Says) -> Option<T>) -> Tally<T> {
        let mut nodes = BTreeMap::new();
        for said in self.said().filter_map(what) {
            *nodes.entry(said).or_default() += 1;
        }
        Tally { nodes, unheard: self.unheard(), needed: self.quorum.needed() }
    }

    /// The number of answers that count and match `so`.
    pub(super) fn how_many(&self, so: impl Fn(&Says) -> bool) -> usize {
        self.said().filter(|said| so(said)).count()
    }

    pub(super) fn yes(&self) -> usize {
        self.how_many(|said| matches!(said, Says::Yes(_)))
    }

    /// The number of answers that count.
    pub(super) fn answered(&self) -> usize {
        self.how_many(|_| true)
    }

    /// The nodes whose answer is missing, or does not count.
    pub(super) fn unheard(&self) -> usize {
        self.quorum.nodes() - self.answered()
    }

    /// Returns true if every node has answered or failed.
    pub(super) fn complete(&self) -> bool {
        self.heard.iter().all(Option::is_some)
    }

    /// The greatest number that any node knows.
    pub(super) fn highest(&self) -> u64 {
        self.heard.iter().flatten().map(|heard| heard.highest).max().unwrap_or_default()
    }

    /// Returns true if further answers cannot improve the result of an attempt.
    pub(super) fn decided(&self) -> bool {
        let open = self.heard.iter().filter(|heard| heard.is_none()).count();
        let (yes, needed, answered) = (self.yes(), self.quorum.needed(), self.answered());
        if open == 0 || yes >= needed {
            return true;
        }
        // It is lost. The cause, rivals or silence, is known with a majority of answers, or without
        // a chance of one. Nodes that are not heard yet may have voted: they are awaited while the
        // outcome depends on them.
        let unknown = |heard: &&Heard| heard.said == Says::Silent(Effect::Unknown);
        let silent = self.heard.iter().flatten().filter(unknown).count();
        let outcome_is_known = open + silent <= self.quorum.spare();
        yes + open < needed
            && (answered >= needed || (answered + open < needed && outcome_is_known))
    }

    /// The outcome of an attempt: R3 and R5.
    pub(super) fn outcome(&self) -> Outcome {
        let (yes, needed) = (self.yes(), self.quorum.needed());
        let again = self.how_many(|said| *said == Says::Again);
        let behind = self.how_many(|said| *said == Says::Behind);
        if yes >= needed {
            Outcome::Granted
        } else if again > 0 && again + yes + self.unheard() >= needed {
            Outcome::Again
        } else if behind > 0 && behind + yes >= needed {
            Outcome::Behind
        } else if self.holdings().next().is_none() || self.answered() < needed {
            Outcome::Failed
        } else if self.held() {
            Outcome::Held
        } else {
            Outcome::Split
        }
    }

    /// The number of the lease that the token of the question has, only the one `named`, if given:
    /// R6. A lease exists where a majority has its number.
    pub(super) fn lease(&self, named: Option<u64>) -> Majority<u64> {
        let numbers = self.tally(|said| match said {
            Says::Has(vote) if named.is_none_or(|named| named == vote.number) => Some(vote.number),
            _ => None,
        });
        numbers.majority()
    }

    /// The number of the lease that a release has ended: R10.
    pub(super) fn ended_lease(&self) -> Majority<u64> {
        let ended = self.tally(|said| match said {
            Says::Ended(number, _) => Some(*number),
            _ => None,
        });
        ended.majority()
    }

    /// What the nodes have ended: numbers and owners.
    pub(super) fn ended(&self) -> impl Iterator<Item = (u64, &str)> {
        self.said().filter_map(|said| match said {
            Says::Ended(number, owner) => Some((*number, owner.as_str())),
            _ => None,
        })
    }

    /// The votes of this number that count, by node.
    pub(super) fn votes(&self, number: u64) -> impl Iterator<Item = (usize, &Vote)> {
        self.heard().filter_map(move |(node, heard)| match heard {
            Some(Heard { votes: true, said: Says::Has(vote), .. }) if vote.number == number => {
                Some((node, vote))
            }
            _ => None,
        })
    }

    pub(super) fn holdings(&self) -> impl Iterator<Item = &Holding> {
        self.said().filter_map(Says::holding)
    }

    fn holders(&self) -> Tally<&[u8]> {
        self.tally(|said| Some(&*said.holding()?.holder))
    }

    /// Returns true if one holder may have the key by majority, counting nodes that did not answer.
    /// Otherwise votes are split and no token has it.
    pub(super) fn held(&self) -> bool {
        self.holdings().next().is_some() && self.holders().majority() != Majority::None
    }

    /// Returns true if a majority has said the same: that the key is free, or its lease. A vote of
    /// a repeat has another number.
    pub(super) fn is_known(&self) -> bool {
        let lease = |said: &'_ Says| match said {
            Says::Free => Some(None),
            said => said.holding().map(|one| Some((one.holder.clone(), one.number))),
        };
        self.tally(lease).majority().says().is_some()
    }

    /// Returns true if this token has a lease, and `None` if the nodes that did not answer decide.
    /// The lock of a direct client is no lease, also if its value is the token.
    pub(super) fn is_of(&self, token: &LeaseToken) -> Option<bool> {
        let has_it = |one: &&Holding| one.number > 0 && one.holder == token.expose().as_bytes();
        match self.tally(|said| Some(said.holding().filter(has_it)?.number)).majority() {
            Majority::Says(_) => Some(true),
            Majority::Unclear => None,
            Majority::None => Some(false),
        }
    }

    /// The holder with this number on most nodes: two claims may have had it, and one of them has
    /// the lease.
    pub(super) fn holder_of(&self, number: u64) -> Option<&[u8]> {
        let named = |one: &&Holding| one.number == number;
        self.tally(|said| Some(&*said.holding().filter(named)?.holder)).most()
    }

    /// The lease of the holder with most nodes.
    pub(super) fn held_lease(&self) -> Option<Holding> {
        self.lease_of(self.holders().most()?)
    }

    /// The lease of a holder, as far as the nodes that name it know. It is over when too few of
    /// them are left; the node that completed the majority knows its age.
    pub(super) fn lease_of(&self, holder: &[u8]) -> Option<Holding> {
        let parts = || self.holdings().filter(|one| one.holder == holder);
        let numbers =
            self.tally(|said| Some(said.holding().filter(|one| one.holder == holder)?.number));
        let number = numbers.most()?;
        let of_majority = |times: Vec<Duration>| {
            let nodes = times.len().min(self.quorum.needed());
            nth_greatest(times, nodes)
        };
        // A lock without a TTL has most left.
        let left = of_majority(parts().map(|one| one.left.unwrap_or(Duration::MAX)).collect());
        let held = of_majority(parts().filter_map(|one| one.held).collect());
        let one = parts().find(|one| one.number == number)?.clone();
        Some(Holding { left: left.filter(|left| *left < Duration::MAX), held, ..one })
    }

    /// The time until a majority of nodes is free, as far as known: the time left on the node that
    /// completes it.
    pub(super) fn left(&self) -> Option<Duration> {
        let left = self.said().map(|said| match said {
            // A lock without a TTL has most left.
            Says::Held(holding) => holding.left.unwrap_or(Duration::MAX),
            _ => Duration::ZERO,
        });
        let left: Vec<_> = left.collect();
        let others = left.len().saturating_sub(self.quorum.needed());
        nth_greatest(left, others + 1).filter(|left| *left < Duration::MAX)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::{Heard, Holding, Outcome, Poll, Says, Vote};
    use crate::lock::error::Effect;
    use crate::lock::lease::State;
    use crate::store::redlock::tally::{Majority, Quorum};

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn held(holder: &str, left_ms: u64, number: u64) -> Says {
        let (holder, owner) = (holder.as_bytes().to_vec(), String::new());
        let held = Some(ms(500));
        Says::Held(Holding { holder, left: Some(ms(left_ms)), number, owner, held })
    }

    /// The vote of a claim that has held the key for long, of this age.
    fn vote(number: u64, by: &str, age_ms: u64) -> Vote {
        let (by, owner, held) = (by.to_owned(), String::new(), Some(ms(60_000)));
        Vote {
            number,
            by,
            left: ms(1_000 - age_ms),
            ttl: ms(1_000),
            state: State::New,
            owner,
            held,
        }
    }

    const YES: Says = Says::Yes(ms(1_000));

    fn told(number: u64) -> Says {
        Says::Has(vote(number, "-", 100))
    }

    fn open(number: u64) -> Says {
        Says::Has(vote(number, "7", 100))
    }

    fn silent() -> Says {
        Says::Silent(Effect::Unknown)
    }

    fn poll(nodes: usize, said: &[Says]) -> Poll {
        let mut poll = Poll::new(Quorum::of(nodes));
        for (node, said) in said.iter().enumerate() {
            let votes = !matches!(said, Says::Silent(_) | Says::Foreign);
            poll.count(node, Heard { votes, highest: 9, said: said.clone() });
        }
        poll
    }

    #[test]
    fn only_fresh_votes_make_a_grant() {
        let outcome = |said: &[Says]| poll(3, said).outcome();
        assert_eq!(outcome(&[YES, YES]), Outcome::Granted);
        assert_eq!(outcome(&[YES, Says::Again, Says::Again]), Outcome::Again);
        assert_eq!(outcome(&[YES, Says::Again, silent()]), Outcome::Again);
        assert_eq!(outcome(&[YES, Says::Again, held("b", 9, 1)]), Outcome::Again);
        assert_eq!(outcome(&[Says::Again, held("b", 9, 1), held("b", 9, 1)]), Outcome::Held);
        assert_eq!(outcome(&[YES, Says::Behind, silent()]), Outcome::Behind);
        assert_eq!(outcome(&[YES, silent(), silent()]), Outcome::Failed);
    }

    #[test]
    fn a_split_vote_is_not_a_lease_of_somebody_else() {
        assert_eq!(poll(2, &[YES, held("b", 100, 1)]).outcome(), Outcome::Split);
        assert_eq!(poll(3, &[held("b", 100, 1), held("b", 90, 1)]).outcome(), Outcome::Held);
        let three = [YES, held("b", 1, 1), held("c", 1, 1)];
        assert_eq!(poll(3, &three).outcome(), Outcome::Split);
        // The silent node may be b's as well.
        assert_eq!(poll(3, &[YES, held("b", 1, 1), silent()]).outcome(), Outcome::Held);
    }

    #[test]
    fn a_loss_is_told_once_a_majority_has_said_so() {
        let two = [held("b", 1, 1), held("b", 1, 1)];
        assert!(poll(3, &two).decided());
        assert!(!poll(4, &two).decided(), "a third of four can still answer");
        let nobody = || Says::Silent(Effect::None);
        assert!(poll(4, &[held("b", 1, 1), nobody(), nobody()]).decided());
        assert!(!poll(2, &[Says::Foreign]).decided(), "the other node may vote");
        assert!(poll(3, &[Says::Foreign, Says::Foreign]).decided(), "one vote is no lease");
        assert!(!poll(3, &[Says::Foreign, silent()]).decided());
    }

    #[test]
    fn a_lease_exists_where_a_majority_has_its_number() {
        let lease = |said: &[Says]| poll(3, said).lease(None);
        assert_eq!(lease(&[told(5), open(5), Says::Free]), Majority::Says(5));
        assert_eq!(lease(&[told(5), open(7), open(7)]), Majority::Says(7));
        assert_eq!(lease(&[told(5), open(7), Says::Free]), Majority::None);
        assert_eq!(lease(&[told(5), silent(), Says::Free]), Majority::Unclear);
        assert_eq!(lease(&[Says::Free, silent(), Says::Taken]), Majority::None);
        assert_eq!(lease(&[Says::Free, silent(), silent()]), Majority::Unclear);
        let named = |said: &[Says]| poll(3, said).lease(Some(5));
        assert_eq!(named(&[told(5), told(5), open(7)]), Majority::Says(5));
        assert_eq!(named(&[told(5), open(7), open(7)]), Majority::None, "it is another lease");
    }

    #[test]
    fn a_release_has_ended_the_lease_that_a_majority_ended() {
        let ended = |number| Says::Ended(number, String::new());
        let lease = |said: &[Says]| poll(5, said).ended_lease();
        assert_eq!(lease(&[ended(7), ended(7), ended(7), ended(5), Says::Free]), Majority::Says(7));
        assert_eq!(
            lease(&[ended(7), ended(7), silent(), Says::Free, Says::Free]),
            Majority::Unclear
        );
        let part = [ended(7), ended(7), ended(5), Says::Free, Says::Free];
        assert_eq!(lease(&part), Majority::None, "a grant may be under way elsewhere");
        // What a node has ended is over, whether it votes or not.
        let mut poll = poll(3, &[ended(7), Says::Free, Says::Free]);
        poll.count(1, Heard { votes: false, highest: 9, said: ended(7) });
        assert_eq!(poll.ended_lease(), Majority::Says(7));
    }

    #[test]
    fn of_two_claims_with_one_number_that_with_most_nodes_is_the_lease() {
        for order in [["lost", "won", "won"], ["won", "lost", "won"], ["won", "won", "lost"]] {
            let poll = poll(3, &order.map(|holder| held(holder, 9, 7)));
            assert_eq!(poll.holder_of(7), Some(&b"won"[..]), "{order:?}");
            assert_eq!(poll.holder_of(8), None);
        }
    }

    #[test]
    fn only_a_young_vote_with_a_greater_number_is_left_to_its_attempt() {
        let unsettled = |said: Says| {
            Heard { votes: true, highest: 9, said }.unsettled(5, (State::New, ms(1_000)))
        };
        let said = |text: &str| Some(text.to_owned());
        assert_eq!(unsettled(Says::Free), said("9 0 -"));
        assert_eq!(unsettled(open(4)), said("9 4 7"));
        assert_eq!(unsettled(open(5)), said("9 5 7"));
        assert_eq!(unsettled(Says::Has(vote(7, "7", 799))), None);
        assert_eq!(unsettled(Says::Has(vote(7, "7", 801))), said("9 7 7"));
        assert_eq!(unsettled(Says::Has(vote(7, "-", 801))), None, "it is told");
        assert_eq!(unsettled(told(5)), None);
        for missed in [(State::Heard, ms(1_000)), (State::New, ms(1_001))] {
            let heard = Heard { votes: true, highest: 9, said: told(5) };
            assert_eq!(heard.unsettled(5, missed), said("9 5 -"), "{missed:?}");
        }
    }

    #[test]
    fn a_key_is_free_when_a_majority_of_its_nodes_is() {
        let left = |said: &[Says]| poll(3, said).left();
        let [long, short, mid] = [300, 100, 200].map(|left| held("b", left, 1));
        assert_eq!(left(&[long.clone(), short, mid.clone()]), Some(ms(200)));
        assert_eq!(left(&[long.clone(), YES, mid.clone()]), Some(ms(200)));
        assert_eq!(left(&[long, mid]), Some(ms(300)));
    }

    #[test]
    fn a_lease_is_what_its_majority_has() {
        let lease = |said: &[Says]| {
            let lease = poll(3, said).lease_of(b"a")?;
            Some((lease.number, lease.left?.as_millis()))
        };
        let [first, second] = [held("a", 300, 5), held("a", 200, 5)];
        assert_eq!(lease(&[first.clone(), second.clone()]), Some((5, 200)));
        // One node has a vote of a repeat, or of a rival.
        let all = [first.clone(), second.clone(), held("a", 900, 7)];
        assert_eq!(lease(&all), Some((5, 300)));
        assert_eq!(lease(&[first.clone(), second, held("b", 900, 7)]), Some((5, 200)));
        assert_eq!(lease(&[first, held("b", 900, 7)]), Some((5, 300)));
        assert_eq!(lease(&[held("b", 900, 7)]), None);
    }

    #[test]
    fn votes_of_a_repeat_are_not_the_lease_that_a_look_tells() {
        let [lease, same, vote] = [held("a", 300, 5), held("a", 200, 5), held("a", 900, 7)];
        assert!(!poll(3, &[lease.clone(), vote.clone()]).is_known());
        let all = poll(3, &[lease, vote, same]);
        assert!(all.is_known());
        assert_eq!(all.held_lease().map(|lease| lease.number), Some(5));
    }
}
