//! The rules that a run can leave out, one at a time: the simulation has to find what comes of it.

use std::cell::Cell;

use crate::store::redlock::Restarted;

thread_local! {
    static LEFT_OUT: Cell<Option<Rule>> = const { Cell::new(None) };
}

/// A rule of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::store::redlock) enum Rule {
    /// A majority confirms a fencing token before it is answered.
    WriteBack,
    /// Only a node on which the token holds the key confirms it; and the time is looked at.
    HoldersConfirm,
    /// The time is looked at last.
    TimeIsLookedAt,
    /// A lease takes more than half of the nodes.
    MoreThanHalf,
    /// No blank guard is like another one.
    Nonce,
    /// A node that restarted does not vote.
    RunId,
    /// So many peers are asked that they meet every majority.
    EnoughPeers,
    /// A new set begins only if all nodes are blank.
    AllAreBlank,
    /// A new set begins in two steps.
    TwoSteps,
    /// The clean-up of an attempt takes only what that attempt has left.
    AttemptName,
    /// A call does not act any more once its caller has given up.
    NotAfter,
    /// A refresh says so where the lock is gone.
    NoRevival,
    /// A node comes back with the greatest fencing token of its peers.
    FenceBase,
}

/// Leaves a rule out on this thread from now on.
pub(super) fn leave_out(rule: Option<Rule>) {
    LEFT_OUT.set(rule);
}

/// What this thread leaves out.
pub(super) fn left_out() -> Option<Rule> {
    LEFT_OUT.get()
}

impl Rule {
    /// Whether this thread leaves it out.
    pub(in crate::store::redlock) fn is_left_out(self) -> bool {
        match LEFT_OUT.get() {
            // Where the time is looked at, a confirmation that comes too late does no harm.
            Some(Self::HoldersConfirm) if self == Self::TimeIsLookedAt => true,
            left_out => left_out == Some(self),
        }
    }

    /// A script without the rule, if the rule is a script's.
    pub(super) fn removed_from(self, source: &str) -> String {
        let (rule, instead) = match self {
            Self::WriteBack => {
                ("local holds = ", "do return { now, 'yes', set } end local holds = ")
            }
            Self::HoldersConfirm => (
                "return holds and { now, 'yes', set } or { now, 'no' }",
                "return { now, 'yes', set }",
            ),
            Self::Nonce => {
                ("string.format('b|%s|%s|%.0f', nonce, run, now)", "'b||' .. run .. '|0'")
            }
            Self::AttemptName => ("ours and attempt == its_attempt", "true"),
            Self::NotAfter => ("if now > tonumber(not_after) then", "if false then"),
            Self::NoRevival => ("if value ~= token then", "if value and value ~= token then"),
            Self::FenceBase => ("tonumber(base or 0) + 1", "0"),
            _ => return source.to_owned(),
        };
        source.replace(rule, instead)
    }

    /// What a restarted node is worth without it.
    pub(super) fn restarted(without: Option<Self>) -> Restarted {
        if without == Some(Self::RunId) { Restarted::Trusted } else { Restarted::Doubted }
    }
}
