//! The rules that a run can leave out, one at a time: the simulation has to find the fault.

use std::cell::Cell;

use crate::store::redlock::Restarted;

/// The look for another lease before one is brought, in a script.
const SEEN: &str = "string.find(free_at, string.format(' %.0f ', last), 1, true)";

/// The look for the end of an earlier lease of the token, in a script.
const SINCE: &str = "kind == 'none' and ended_since";

thread_local! {
    static LEFT_OUT: Cell<Option<Rule>> = const { Cell::new(None) };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::store::redlock) enum Rule {
    /// A majority confirms a fencing token before it is answered.
    WriteBack,
    /// Only a node on which the token holds the key confirms it, and the clock is checked.
    HoldersConfirm,
    /// The clock is checked last.
    TimeIsLookedAt,
    /// A lease takes more than half of the nodes.
    MoreThanHalf,
    /// A node that restarted does not vote.
    RunId,
    /// A node that may have forgotten leases waits for the longest one.
    WholeWait,
    /// A node votes for instances with its own settings only.
    Settings,
    /// A node serves instances with other settings only when the last leases of the former have
    /// expired.
    Unused,
    /// Nothing is granted while instances with another list may have a majority.
    Rivals,
    /// A refresh brings the lease to the nodes that miss it.
    BringBack,
    /// It brings none that may have ended.
    WhileItLasts,
    /// Nor to a node where another lease has come and gone since.
    BroughtUnseen,
    /// A lease that is shortened stays for as long as a refresh of before may bring it.
    ShortenedStays,
    /// The last word of a hold leaves the mark of an ended lease, though the lease lingers.
    LastWordMarks,
    /// The clean-up of an attempt takes only the votes of that attempt.
    AttemptName,
    /// A vote stays until all attempts that use it have given it up.
    AllAttempts,
    /// A call does not act after its caller has given up.
    NotAfter,
    /// The deadline of a call is fixed before its arguments.
    DeadlineFirst,
    /// A refresh fails if the lock is gone.
    NoRevival,
    /// A number that is confirmed is leveled no more.
    Settled,
    /// Numbers of two attempts do not agree until one is confirmed.
    OneDrawer,
    /// No vote that was asked for before the end of its token's lease comes after it.
    EndedSince,
    /// A node draws no number while it does not vote.
    DrawnByVoters,
    /// It is told that of the lease.
    WaitingAreTold,
    /// A vote is given the number of its lease, below what its node knew, only while that lasts.
    LeveledUnseen,
    /// A request does not shorten a lease that another one has renewed since it was made.
    InOrder,
}

/// Leaves a rule out on this thread from now on.
pub(super) fn leave_out(rule: Option<Rule>) {
    LEFT_OUT.set(rule);
}

/// The rule that this thread leaves out.
pub(super) fn left_out() -> Option<Rule> {
    LEFT_OUT.get()
}

impl Rule {
    /// Returns true if this thread leaves the rule out.
    pub(in crate::store::redlock) fn is_left_out(self) -> bool {
        match LEFT_OUT.get() {
            // While the clock is checked, a late confirmation does no harm.
            Some(Self::HoldersConfirm) if self == Self::TimeIsLookedAt => true,
            left_out => left_out == Some(self),
        }
    }

    /// A script without the rule, if the rule is a script's.
    pub(super) fn removed_from(self, source: &str) -> String {
        // These rules cover for some others.
        let covered = source.replace(SEEN, "true").replace(SINCE, "false and ended_since");
        let (rule, instead) = match self {
            Self::WriteBack => ("local holds = ", "do return { now, 'yes' } end local holds = "),
            Self::HoldersConfirm => {
                ("return { now, holds and 'yes' or 'no' }", "return { now, 'yes' }")
            }
            Self::WholeWait => ("lease + math.ceil(lease / 100) + 2", "lease / 2"),
            Self::Settings => ("its_longest == longest and its_nodes == nodes", "of ~= nil"),
            Self::Unused => ("unused() >= its_longest / 10 + over(its_longest)", "true"),
            Self::BringBack => ("refreshed ~= '' and (value == token or untouched)", "false"),
            Self::BroughtUnseen => (SEEN, "true"),
            Self::ShortenedStays => ("ttl < BRING_WITHIN and", "false and"),
            Self::LastWordMarks => ("if last_word == '1' then mark_ended(token) end", ""),
            Self::AttemptName => ("ours and others == ''", "true"),
            Self::AllAttempts => {
                ("local whose = ours and used_by(attempt, its_attempt) or", "local whose =")
            }
            Self::Settled => ("holds and confirmed(since) or since or ''", "since or ''"),
            Self::EndedSince => (SINCE, "false and ended_since"),
            Self::DrawnByVoters => {
                ("voting and draw(proposal, floor) or 0", "draw(proposal, floor)")
            }
            Self::NotAfter => ("if now > tonumber(not_after) then", "if false then"),
            Self::NoRevival => ("if value ~= token then", "if value and value ~= token then"),
            Self::InOrder => ("set > asked + 1", "false"),
            Self::WhileItLasts | Self::LeveledUnseen => return covered,
            _ => return source.to_owned(),
        };
        match self {
            Self::ShortenedStays | Self::LastWordMarks | Self::NotAfter => {
                covered.replace(rule, instead)
            }
            _ => source.replace(rule, instead),
        }
    }

    /// The trust in a restarted node, without the rule `without`.
    pub(super) fn restarted(without: Option<Self>) -> Restarted {
        if without == Some(Self::RunId) { Restarted::Trusted } else { Restarted::Doubted }
    }
}
