//! The answers to holders, and the check that they are consistent.
//!
//! A stay is one answer that gave or prolonged a lease. Its holder may rely on it from the answer
//! until the promised end, or until it sends a release. Times are milliseconds of virtual time.

use std::collections::HashMap;

/// The answers of a run, and the faults found so far.
#[derive(Default)]
pub(super) struct History {
    stays: Vec<Stay>,
    replacements: Vec<(usize, u64, [u64; 2])>,
    faults: Vec<Fault>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Stay {
    pub(super) key: usize,
    /// The number of the token.
    pub(super) token: u64,
    pub(super) asked: u64,
    pub(super) from: u64,
    pub(super) until: u64,
    pub(super) fence: u64,
}

/// A violation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Wrong {
    /// I1: two holders rely on one key.
    TwoHolders,
    /// I2: two leases have one fencing token.
    SameNumber,
    /// I2: a lease that was requested after the answer to another one has no greater number.
    NumberFell,
    /// I2: an expired lease has a greater number than its successor.
    OldOutranksNew,
    /// I1: another client had the key between a lease and the one that has taken its place.
    Interrupted,
    /// A lease that a stream keeps was refreshed by its client.
    NotAlone,
    /// I7: a lease that was given up lives on.
    Revived,
    /// I8: a token is told that another one has its key, although no node forgot.
    AgainstItself,
    /// A token that may hold the key is told that it certainly does not.
    SaysNothing,
    /// The number of a lease changed although no node forgot.
    Renumbered,
    /// I9: a lease ended early although no node forgot.
    EndedEarly,
    /// A lease is promised for longer than requested.
    PromisesTooMuch,
    /// A lease lasts longer than `max_hold`.
    HeldTooLong,
    /// A call without an effect, or an undone one, left something.
    HadEffect,
    /// A free key is not granted.
    NotGiven,
    /// A lock is left at the end.
    LeftOver,
    /// A node does not vote again.
    NotBack,
}

/// A fault and its story.
#[derive(Clone, Debug)]
pub(super) struct Fault {
    pub(super) wrong: Wrong,
    pub(super) story: String,
}

impl History {
    pub(super) fn stays(&mut self, stay: Stay) {
        self.stays.push(stay);
    }

    /// Notes that a token's lease has taken the place of an earlier one.
    pub(super) fn replaces(&mut self, key: usize, token: u64, numbers: [u64; 2]) {
        self.replacements.push((key, token, numbers));
    }

    /// Ends the stays of a token: no holder relies on them any more.
    pub(super) fn ends(&mut self, key: usize, token: u64, now: u64) {
        for stay in
            self.stays.iter_mut().rev().filter(|stay| (stay.key, stay.token) == (key, token))
        {
            stay.until = stay.until.min(now);
        }
    }

    /// The stays of a token were told to nobody: their numbers do not count.
    pub(super) fn was_told_to_nobody(&mut self, key: usize, token: u64) {
        for stay in self.stays.iter_mut().filter(|stay| (stay.key, stay.token) == (key, token)) {
            stay.fence = 0;
        }
    }

    /// Ends the stays of all tokens of a key.
    pub(super) fn ends_all(&mut self, key: usize, now: u64) {
        for stay in self.stays.iter_mut().rev().filter(|stay| stay.key == key) {
            stay.until = stay.until.min(now.max(stay.from));
        }
    }

    pub(super) fn wrong(&mut self, wrong: Wrong, story: String) {
        self.faults.push(Fault { wrong, story });
    }

    pub(super) fn judge(self) -> Vec<Fault> {
        let mut faults = self.faults;
        let mut keys: HashMap<usize, Vec<Stay>> = HashMap::new();
        for stay in self.stays {
            keys.entry(stay.key).or_default().push(stay);
        }
        for mut stays in keys.into_values() {
            two_holders(&stays, &mut faults);
            for (key, token, [before, now]) in &self.replacements {
                let between = |stay: &&Stay| {
                    let is_between = *before < stay.fence && stay.fence < *now;
                    is_between && stay.key == *key && stay.token != *token && stay.from < stay.until
                };
                let story = |stay| format!("{stay:?} within {token}: {before} to {now}");
                let found = stays.iter().filter(between).map(story);
                faults.extend(found.map(|story| Fault { wrong: Wrong::Interrupted, story }));
            }
            // A client without the service has no number.
            stays.retain(|stay| stay.fence > 0);
            for check in [same_numbers, fallen_numbers, old_outranks_new] {
                check(&stays, &mut faults);
            }
        }
        faults
    }
}

fn fault(wrong: Wrong, one: &Stay, other: &Stay) -> Fault {
    Fault { wrong, story: format!("{one:?} and {other:?}") }
}

fn two_holders(stays: &[Stay], faults: &mut Vec<Fault>) {
    let mut relied: Vec<_> = stays.iter().filter(|stay| stay.from < stay.until).collect();
    relied.sort_by_key(|stay| stay.from);
    let mut open: Vec<&Stay> = Vec::new();
    for stay in relied {
        open.retain(|other| other.until > stay.from);
        let rivals = open.iter().filter(|other| other.token != stay.token);
        faults.extend(rivals.map(|rival| fault(Wrong::TwoHolders, rival, stay)));
        open.push(stay);
    }
}

fn same_numbers(stays: &[Stay], faults: &mut Vec<Fault>) {
    let mut known: HashMap<u64, &Stay> = HashMap::new();
    for stay in stays {
        let first = known.entry(stay.fence).or_insert(stay);
        if first.token != stay.token {
            faults.push(fault(Wrong::SameNumber, first, stay));
        }
    }
}

fn fallen_numbers(stays: &[Stay], faults: &mut Vec<Fault>) {
    let later = |stay: &Stay| stay.asked;
    // An answer in the same millisecond may have come later.
    let earlier = |stay: &Stay| stay.from + 1;
    outranked(stays, (earlier, later), |one, other| {
        let fell = one.fence > other.fence || one.fence == other.fence && one.token != other.token;
        faults.extend(fell.then(|| fault(Wrong::NumberFell, one, other)));
    });
}

fn old_outranks_new(stays: &[Stay], faults: &mut Vec<Fault>) {
    outranked(stays, (|stay| stay.until, |stay| stay.from), |one, other| {
        // One that was freed by force in the same moment was relied on by nobody.
        let relied = one.from < one.until && other.from < other.until;
        let outranks = relied && one.token != other.token && one.fence >= other.fence;
        faults.extend(outranks.then(|| fault(Wrong::OldOutranksNew, one, other)));
    });
}

/// Compares each stay with those of the two greatest numbers, of two tokens, among all that had
/// ended before it.
fn outranked(
    stays: &[Stay],
    (over, begun): (impl Fn(&Stay) -> u64, impl Fn(&Stay) -> u64),
    mut compare: impl FnMut(&Stay, &Stay),
) {
    let (mut by_end, mut by_begin): (Vec<_>, Vec<_>) =
        (stays.iter().collect(), stays.iter().collect());
    by_end.sort_by_key(|stay| over(stay));
    by_begin.sort_by_key(|stay| begun(stay));
    let mut ended = by_end.into_iter().peekable();
    let mut greatest: [Option<&Stay>; 2] = [None, None];
    for stay in by_begin {
        while let Some(other) = ended.next_if(|other| over(other) <= begun(stay)) {
            let [first, second] = greatest;
            if first.is_none_or(|first| first.fence <= other.fence) {
                let second = if first.is_some_and(|first| first.token == other.token) {
                    second
                } else {
                    first
                };
                greatest = [Some(other), second];
            } else if first.is_some_and(|first| first.token != other.token)
                && second.is_none_or(|second| second.fence <= other.fence)
            {
                greatest[1] = Some(other);
            }
        }
        for other in greatest.into_iter().flatten() {
            compare(other, stay);
        }
    }
}
