//! Who of the nodes may vote. Pure: answers and the time come in as arguments.
//!
//! A node that lost its data may have forgotten leases, so each carries a guard: a value that says
//! whether it votes, and that is void once the node restarts. A new set of nodes begins only when
//! all of them are blank, in two steps. A blank node comes back when enough others, so many that
//! they meet every majority it was in, have told how long their longest lock still lives.
//! Simpler rules were simulated and broke: see `simulation`.

use std::cmp::Reverse;
use std::fmt;
use std::time::Duration;

use sha2::Digest;
use sha2::Sha256;

use crate::store::redlock::vote::Quorum;

/// The set of nodes that come back without any voting node to ask. In order it comes behind the
/// name of every other set.
pub(super) const ORPHANS: &str = "orphans";

/// After how many times the settle time the peers of a node that waits are looked at once more.
const LOOK_AGAIN: u32 = 5;

/// What a node's guard says.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Guard {
    pub(super) state: State,
    /// A blank node's nonce; behind the name of its set else, so that a value never comes twice.
    id: String,
    run_id: String,
    /// Of a voting node: below what it draws no fencing token. Of a blank one: its time.
    number: u64,
}

/// Whether a node votes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum State {
    /// It may have forgotten leases.
    Blank,
    /// All were blank, and it is told so.
    Prepared,
    /// It votes.
    Voting,
}

impl State {
    const ALL: [(Self, &str); 3] = [(Self::Blank, "b"), (Self::Prepared, "p"), (Self::Voting, "v")];
}

impl Guard {
    /// Reads a guard's value; `None` if it is none.
    pub(super) fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('|');
        let letter = parts.next()?;
        let (state, _) = State::ALL.into_iter().find(|(_, known)| *known == letter)?;
        let (id, run_id) = (parts.next()?.to_owned(), parts.next()?.to_owned());
        let number = parts.next()?.parse().ok()?;
        parts.next().is_none().then_some(Self { state, id, run_id, number })
    }

    /// The set that the node belongs to.
    pub(super) fn set(&self) -> &str {
        self.id.split(':').next().unwrap_or_default()
    }

    /// The guard of the same node as one that votes in `set`, and draws no fencing token up to
    /// `base`.
    pub(super) fn voting(&self, set: &str, base: u64) -> Self {
        self.changed(State::Voting, set, base)
    }

    /// Which start of the server it belongs to.
    pub(super) fn run_id(&self) -> &str {
        &self.run_id
    }

    /// The guard of the same node, to be put in place of this one.
    fn changed(&self, state: State, set: &str, number: u64) -> Self {
        let nonce = self.id.rsplit(':').next().unwrap_or_default();
        Self { state, id: format!("{set}:{nonce}"), run_id: self.run_id.clone(), number }
    }

    /// The guard of the same node, blank.
    fn blank(&self, nonce: &str) -> Self {
        Self { state: State::Blank, id: nonce.to_owned(), ..self.changed(State::Blank, "", 0) }
    }
}

impl fmt::Display for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let letter = State::ALL.iter().find(|(state, _)| *state == self.state);
        let letter = letter.map_or("", |(_, letter)| letter);
        write!(f, "{letter}|{}|{}|{}", self.id, self.run_id, self.number)
    }
}

/// A guard that is to be put in place of another one, on this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) node: usize,
    pub(super) before: Guard,
    pub(super) after: Guard,
}

/// What there is to do.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Plan {
    /// A new set: only if all of `first` were made, all of `then`.
    Begin { first: Vec<Change>, then: Vec<Change> },
    /// These changes, and a look at the others for each of these nodes.
    Tend { changes: Vec<Change>, look_for: Vec<usize> },
}

/// What a walk over the locks of a voting node has shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) set: String,
    /// How long its longest lock still lives.
    pub(super) longest: Duration,
    /// The highest fencing token that it knows.
    pub(super) highest: u64,
}

/// One instance's view of the nodes over time.
#[derive(Debug)]
pub(super) struct Watch {
    quorum: Quorum,
    rules: Rules,
    sights: Vec<Option<Sight>>,
}

/// How long things take at most.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    /// Before a blank node's peers are looked at: by then no answer to a grant that it took part
    /// in still counts, and no command of one is still on its way.
    pub(super) settle: Duration,
    /// The longest TTL that the settings allow.
    pub(super) longest: Duration,
}

/// A node that does not vote, since this instance has seen it so.
#[derive(Debug)]
struct Sight {
    guard: Guard,
    since: Duration,
    looked: Duration,
    return_at: Option<Return>,
}

/// When a node may vote again, and as what.
#[derive(Clone, Debug)]
struct Return {
    at: Duration,
    set: String,
    base: u64,
}

impl Watch {
    pub(super) fn new(quorum: Quorum, rules: Rules) -> Self {
        let sights = std::iter::repeat_with(|| None).take(quorum.nodes()).collect();
        Self { quorum, rules, sights }
    }

    /// What there is to do, from the nodes' guards as they were read at `now`; `nonce` is new.
    pub(super) fn plan(&mut self, now: Duration, guards: &[Option<Guard>], nonce: &str) -> Plan {
        let known: Vec<_> =
            (0..).zip(guards).filter_map(|(node, guard)| Some((node, guard.as_ref()?))).collect();
        let quiet = known.iter().copied().filter(|(_, guard)| guard.state != State::Voting);
        let quiet: Vec<_> = quiet.collect();
        if quiet.len() >= self.needed_for_a_new_set() {
            return begin(&quiet);
        }
        let sets = self.sets(&known);
        let mut changes = Vec::new();
        let mut look_for = Vec::new();
        for &(node, guard) in &known {
            if guard.state == State::Voting {
                self.sights[node] = None;
                let strayed = sets.have_left(guard.set(), self.quorum);
                changes.extend(strayed.then(|| change(node, guard, guard.blank(nonce))));
                continue;
            }
            if guard.state == State::Prepared && sets.voting.iter().any(|set| set == guard.set()) {
                let voting = guard.voting(guard.set(), 0);
                changes.push(change(node, guard, voting));
                continue;
            }
            match self.tend(now, (node, guard), sets.voting.len()) {
                Tended::Returns(Return { set, base, .. }) => {
                    let set = sets.of(&set);
                    changes.push(change(node, guard, guard.voting(&set, base)));
                }
                Tended::ToLookFor => look_for.push(node),
                Tended::Waits => (),
            }
        }
        Plan::Tend { changes, look_for }
    }

    /// Notes what the peers of a blank node have shown; `now` is after the last answer.
    pub(super) fn looked(&mut self, now: Duration, node: usize, peers: &[Seen]) {
        let Some(sight) = &mut self.sights[node] else { return };
        sight.looked = now;
        let since = sight.since;
        let one_set = peers.windows(2).all(|two| two[0].set == two[1].set);
        let base = peers.iter().map(|peer| peer.highest).max().unwrap_or_default();
        let set = peers.first().map_or_else(String::new, |peer| peer.set.clone());
        if peers.len() >= self.quorum.peers() && one_set {
            let left = peers.iter().map(|peer| peer.longest).max().unwrap_or_default();
            self.returns(node, Return { at: now + stretched(left), set, base });
        } else if now >= self.over(since) {
            // Too few to ask: every lease that it may have forgotten is over by now.
            self.returns(node, Return { at: now, set, base });
        }
    }

    /// Every look is right by itself, so the earliest moment counts.
    fn returns(&mut self, node: usize, back: Return) {
        if let Some(sight) = &mut self.sights[node]
            && sight.return_at.as_ref().is_none_or(|known| back.at < known.at)
        {
            sight.return_at = Some(back);
        }
    }

    /// When the longest lease is over that a node may have forgotten which was seen blank `since`.
    fn over(&self, since: Duration) -> Duration {
        since + self.rules.settle + stretched(self.rules.longest)
    }

    /// All: a majority that has forgotten may have granted leases that the others know of.
    fn needed_for_a_new_set(&self) -> usize {
        #[cfg(test)]
        if crate::store::redlock::simulation::Rule::AllAreBlank.is_left_out() {
            return self.quorum.needed();
        }
        self.quorum.nodes()
    }

    fn tend(&mut self, now: Duration, (node, guard): (usize, &Guard), voting: usize) -> Tended {
        let sight = self.sights[node].take().filter(|sight| sight.guard == *guard);
        let sight = sight.unwrap_or_else(|| Sight {
            guard: guard.clone(),
            since: now,
            looked: now,
            return_at: None,
        });
        let tended = match &sight.return_at {
            Some(back) if now >= back.at => Tended::Returns(back.clone()),
            // The lock that it waits for may have been released.
            Some(_) if now >= sight.looked + self.rules.settle * LOOK_AGAIN => Tended::ToLookFor,
            Some(_) => Tended::Waits,
            None if now < sight.since + self.rules.settle => Tended::Waits,
            None if voting >= self.quorum.peers() || now >= self.over(sight.since) => {
                Tended::ToLookFor
            }
            None => Tended::Waits,
        };
        self.sights[node] = Some(sight);
        tended
    }

    fn sets(&self, known: &[(usize, &Guard)]) -> Sets {
        let voting = known.iter().filter(|(_, guard)| guard.state == State::Voting);
        let voting = voting.map(|(_, guard)| guard.set().to_owned()).collect();
        Sets { voting, unheard: self.quorum.nodes() - known.len() }
    }
}

/// The sets of the voting nodes.
struct Sets {
    voting: Vec<String>,
    unheard: usize,
}

impl Sets {
    /// The set in which a node comes back whose peers belong to `set`, if any could be asked.
    fn of(&self, set: &str) -> String {
        let known = [set, self.voting.first().map_or("", String::as_str), ORPHANS];
        known.into_iter().find(|set| !set.is_empty()).unwrap_or(ORPHANS).to_owned()
    }

    /// Whether the votes of a set count with nobody's any more: it is no majority, whatever the
    /// silent nodes say, and others are in a set that has more nodes. Of two that have as many one
    /// has to go as well, or no node of either could ever do anything.
    fn have_left(&self, set: &str, quorum: Quorum) -> bool {
        let nodes = |set: &str| self.voting.iter().filter(|other| *other == set).count();
        let first = self.voting.iter().max_by_key(|set| (nodes(set), Reverse(*set)));
        first.is_some_and(|first| first != set) && nodes(set) + self.unheard < quorum.needed()
    }
}

/// What becomes of a node that does not vote.
enum Tended {
    Waits,
    ToLookFor,
    Returns(Return),
}

/// A new set: its name comes from what all nodes said, so that instances that saw the same make
/// the same one.
fn begin(known: &[(usize, &Guard)]) -> Plan {
    let first = known[0].1;
    let prepared = |guard: &Guard| guard.state == State::Prepared && guard.set() == first.set();
    let vote =
        |(node, before): (usize, &Guard)| change(node, before, before.voting(before.set(), 0));
    if known.iter().all(|(_, guard)| prepared(guard)) {
        return Plan::Begin { first: Vec::new(), then: known.iter().copied().map(vote).collect() };
    }
    #[cfg(test)]
    if crate::store::redlock::simulation::Rule::TwoSteps.is_left_out() {
        let at_once = |&(node, before): &(usize, &Guard)| {
            change(node, before, before.changed(State::Voting, "one", 0))
        };
        return Plan::Begin { first: known.iter().map(at_once).collect(), then: Vec::new() };
    }
    let mut digest = Sha256::new();
    for (_, guard) in known {
        digest.update(format!("{guard}\n"));
    }
    let name: String = digest.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    let prepare = |&(node, before): &(usize, &Guard)| {
        change(node, before, before.changed(State::Prepared, &name, 0))
    };
    let first: Vec<_> = known.iter().map(prepare).collect();
    let then = first.iter().map(|done| vote((done.node, &done.after))).collect();
    Plan::Begin { first, then }
}

fn change(node: usize, before: &Guard, after: Guard) -> Change {
    Change { node, before: before.clone(), after }
}

/// How long to wait for something that takes `time` on another clock.
fn stretched(time: Duration) -> Duration {
    time + time / 100 + Duration::from_millis(2)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Guard;
    use super::Plan;
    use super::Rules;
    use super::Seen;
    use super::State;
    use super::Watch;
    use crate::store::redlock::vote::Quorum;

    const SECOND: Duration = Duration::from_secs(1);

    fn guard(text: &str) -> Option<Guard> {
        let guard = Guard::parse(text).unwrap();
        assert_eq!(guard.to_string(), text);
        Some(guard)
    }

    fn watch(nodes: usize) -> Watch {
        Watch::new(Quorum::of(nodes), Rules { settle: SECOND * 2, longest: SECOND * 100 })
    }

    fn seen(set: &str, longest: Duration, highest: u64) -> Seen {
        Seen { set: set.to_owned(), longest, highest }
    }

    /// What is changed on which node, a new set's second step included.
    fn changes(plan: Plan) -> Vec<(usize, String)> {
        let changes = match plan {
            Plan::Begin { first, then } => first.into_iter().chain(then).collect(),
            Plan::Tend { changes, .. } => changes,
        };
        changes.into_iter().map(|change| (change.node, change.after.to_string())).collect()
    }

    #[test]
    fn a_value_of_another_form_is_no_guard() {
        for text in ["", "v", "x|s:n|r|0", "v|s:n|r", "v|s:n|r|-1", "v|s:n|r|0|"] {
            assert_eq!(Guard::parse(text), None, "{text}");
        }
        assert_eq!(guard("v|s:n|r|7").unwrap().set(), "s");
    }

    #[test]
    fn a_new_set_begins_in_two_steps_and_only_if_all_are_blank() {
        let (one, two) = (guard("b|n1|r1|5"), guard("b|n2|r2|6"));
        let Plan::Begin { first, then } = watch(2).plan(SECOND, &[one.clone(), two.clone()], "")
        else {
            panic!("no new set")
        };
        let set = first[0].after.set().to_owned();
        let states: Vec<_> = first.iter().map(|change| change.after.to_string()).collect();
        assert_eq!(states, [format!("p|{set}:n1|r1|0"), format!("p|{set}:n2|r2|0")]);
        assert_eq!(then[0].before, first[0].after);
        assert!(then.iter().all(|change| change.after.state == State::Voting));
        let lonely = watch(2).plan(SECOND, &[one.clone(), None], "");
        assert_eq!(lonely, Plan::Tend { changes: Vec::new(), look_for: Vec::new() });
        assert_eq!(changes(watch(2).plan(SECOND, &[one, guard("v|s:n|r2|0")], "")), []);
        let both = [guard("p|s:n1|r1|0"), guard("p|s:n2|r2|0")];
        let Plan::Begin { first, then } = watch(2).plan(SECOND, &both, "") else { panic!() };
        assert_eq!((first.len(), then.len()), (0, 2));
    }

    #[test]
    fn what_another_instance_has_begun_is_finished() {
        let guards = [guard("p|s:n1|r1|0"), guard("v|s:n2|r2|0")];
        let finished = changes(watch(2).plan(SECOND, &guards, ""));
        assert_eq!(finished, [(0, "v|s:n1|r1|0".to_owned())]);
    }

    #[test]
    fn a_node_that_forgot_returns_when_the_longest_lock_of_enough_others_is_over() {
        let guards = [guard("b|n|r|0"), guard("v|s:a|r|0"), guard("v|s:b|r|0")];
        let mut watch = watch(3);
        assert_eq!(changes(watch.plan(SECOND, &guards, "")), []);
        let Plan::Tend { look_for, .. } = watch.plan(SECOND * 3, &guards, "") else { panic!() };
        assert_eq!(look_for, [0]);
        watch.looked(SECOND * 3, 0, &[seen("s", SECOND, 7)]);
        assert!(
            changes(watch.plan(SECOND * 50, &guards, "")).is_empty(),
            "one of two peers cannot know all"
        );
        watch.looked(SECOND * 50, 0, &[seen("s", SECOND, 7), seen("s", SECOND * 10, 9)]);
        assert_eq!(changes(watch.plan(SECOND * 60, &guards, "")), []);
        let back = changes(watch.plan(SECOND * 61, &guards, ""));
        assert_eq!(back, [(0, "v|s:n|r|9".to_owned())]);
    }

    #[test]
    fn a_node_does_not_wait_for_a_lock_that_was_released() {
        let guards = [guard("b|n|r|0"), guard("v|s:a|r|0"), guard("v|s:b|r|0")];
        let mut watch = watch(3);
        let peers = |left| [seen("s", left, 7), seen("s", SECOND, 7)];
        watch.plan(SECOND, &guards, "");
        watch.plan(SECOND * 3, &guards, "");
        watch.looked(SECOND * 3, 0, &peers(SECOND * 90));
        let look_for = |plan| match plan {
            Plan::Tend { look_for, .. } => look_for,
            Plan::Begin { .. } => panic!("no new set"),
        };
        assert!(look_for(watch.plan(SECOND * 12, &guards, "")).is_empty());
        assert_eq!(look_for(watch.plan(SECOND * 13, &guards, "")), [0]);
        watch.looked(SECOND * 13, 0, &peers(SECOND * 4));
        assert_eq!(changes(watch.plan(SECOND * 17, &guards, "")), []);
        assert_eq!(changes(watch.plan(SECOND * 18, &guards, "")).len(), 1);
    }

    #[test]
    fn a_node_that_forgot_again_begins_again() {
        let guards = |nonce: &str| {
            [guard(&format!("b|{nonce}|r|0")), guard("v|s:a|r|0"), guard("v|s:b|r|0")]
        };
        let mut watch = watch(3);
        watch.plan(SECOND, &guards("n"), "");
        watch.plan(SECOND * 3, &guards("n"), "");
        let two = [seen("s", SECOND, 7), seen("s", SECOND, 7)];
        watch.looked(SECOND * 3, 0, &two);
        assert_eq!(changes(watch.plan(SECOND * 10, &guards("m"), "")), []);
        assert_eq!(changes(watch.plan(SECOND * 11, &guards("m"), "")), []);
    }

    #[test]
    fn without_enough_others_a_node_waits_for_the_longest_lease_that_there_may_be() {
        let guards = [guard("b|n|r|0"), None, guard("v|s:b|r|0")];
        let mut watch = watch(3);
        watch.plan(SECOND, &guards, "");
        let Plan::Tend { look_for, .. } = watch.plan(SECOND * 100, &guards, "") else { panic!() };
        assert!(look_for.is_empty(), "one voting peer is too few to look at");
        let Plan::Tend { look_for, .. } = watch.plan(SECOND * 105, &guards, "") else { panic!() };
        assert_eq!(look_for, [0]);
        watch.looked(SECOND * 105, 0, &[seen("s", SECOND * 9, 7)]);
        let back = changes(watch.plan(SECOND * 105, &guards, ""));
        assert_eq!(back, [(0, "v|s:n|r|7".to_owned())]);
    }

    #[test]
    fn a_node_of_another_set_than_the_majority_begins_again() {
        let guards = [guard("v|old:n|r|0"), guard("v|s:a|r|0"), guard("v|s:b|r|0")];
        let strayed = changes(watch(3).plan(SECOND, &guards, "fresh"));
        assert_eq!(strayed, [(0, "b|fresh|r|0".to_owned())]);
        let split = [guard("v|old:n|r|0"), guard("v|s:a|r|0")];
        let strayed = changes(watch(2).plan(SECOND, &split, "fresh"));
        assert_eq!(strayed, [(1, "b|fresh|r|0".to_owned())], "the first in order stays");
        let unsure = [guard("v|old:n|r|0"), guard("v|s:a|r|0"), None];
        assert_eq!(changes(watch(3).plan(SECOND, &unsure, "fresh")), []);
    }
}
