//! Majorities of nodes: their size, the count of what nodes say, and the times that they agree on.

use std::collections::BTreeMap;
use std::time::Duration;

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
}

/// What a majority of nodes says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Majority<T> {
    Says(T),
    /// No majority by now; the nodes that were not heard may complete one.
    Unclear,
    /// Nothing has a majority, or can have one.
    None,
}

/// The number of nodes behind each thing that they say: the count of every majority.
#[derive(Debug)]
pub(super) struct Tally<T> {
    pub(super) nodes: BTreeMap<T, usize>,
    /// The nodes whose answer is missing, or does not count.
    pub(super) unheard: usize,
    pub(super) needed: usize,
}

impl<T: Ord> Tally<T> {
    /// What most nodes say; the greatest of these, if there are several.
    pub(super) fn most(self) -> Option<T> {
        Some(self.nodes.into_iter().max_by(|(one, n), (two, m)| (n, one).cmp(&(m, two)))?.0)
    }

    pub(super) fn majority(self) -> Majority<T> {
        let Self { unheard, needed, .. } = self;
        let most = self.nodes.into_iter().max_by_key(|(_, nodes)| *nodes);
        match (most, unheard) {
            (Some((said, nodes)), _) if nodes >= needed => Majority::Says(said),
            (Some((_, nodes)), _) if nodes + unheard >= needed => Majority::Unclear,
            (None, _) if unheard >= needed => Majority::Unclear,
            _ => Majority::None,
        }
    }
}

impl<T> Majority<T> {
    pub(super) fn says(self) -> Option<T> {
        match self {
            Self::Says(said) => Some(said),
            Self::Unclear | Self::None => None,
        }
    }
}

/// The time for which a majority has a lease, by the time that is left of it on each node.
pub(super) fn majority_left(left: Vec<Duration>, quorum: Quorum) -> Option<Duration> {
    nth_greatest(left, quorum.needed())
}

/// The greatest time for 1, and so on.
pub(super) fn nth_greatest(mut times: Vec<Duration>, nth: usize) -> Option<Duration> {
    times.sort_unstable_by_key(|time| std::cmp::Reverse(*time));
    times.get(nth.checked_sub(1)?).copied()
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

    use super::{Quorum, majority_left, validity};

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_quorum_is_more_than_half_in_integers() {
        let needed: Vec<_> = (1..=7).map(|nodes| Quorum::of(nodes).needed()).collect();
        assert_eq!(needed, [1, 2, 2, 3, 3, 4, 4]);
        for nodes in 1..=7 {
            let quorum = Quorum::of(nodes);
            assert!(quorum.needed() * 2 > nodes, "two majorities share a node");
            assert_eq!(quorum.spare() + quorum.needed(), nodes);
        }
    }

    #[test]
    fn the_remaining_ttl_is_that_of_a_majority_less_the_time_spent_and_the_drift() {
        let of =
            |left: &[u64]| majority_left(left.iter().copied().map(ms).collect(), Quorum::of(3));
        assert_eq!(of(&[100, 300, 200]), Some(ms(200)));
        assert_eq!(of(&[100]), None);
        assert_eq!(validity(ms(10_000), ms(50)), Some(ms(9_848)));
        assert_eq!(validity(ms(100), ms(48)), None);
        assert_eq!(validity(ms(1), ms(0)), None);
        assert_eq!(validity(ms(1_000), ms(2_000)), None);
    }
}
