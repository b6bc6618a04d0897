//! The rules that a run can leave out, one at a time: the simulation has to find the fault.

use std::cell::Cell;

use crate::store::redlock::Restarted;

thread_local! {
    static LEFT_OUT: Cell<Option<Rule>> = const { Cell::new(None) };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(in crate::store::redlock) enum Rule {
    /// R2: a node votes only above the greatest number that it knows.
    Above,
    /// R2: a node stores no vote while it waits.
    Waits,
    /// R3: only fresh votes count for a grant.
    Fresh,
    /// R3: the clock is checked last.
    TimeIsLookedAt,
    /// R3: a lease takes more than half of the nodes.
    MoreThanHalf,
    /// R4: an attempt takes back only its own votes.
    ItsOwn,
    /// R4: and none that is told.
    Told,
    /// R5: a client refreshes no lease that a stream keeps.
    KeptAlone,
    /// R6: a refresh never shortens.
    OnlyExtends,
    /// R6: a refresh fails if the lock is gone.
    NoRevival,
    /// R7: a refresh brings the lease to the nodes that miss it.
    Brings,
    /// R7: only to a node that still says what it said.
    Unchanged,
    /// R7: a greater number is lowered only if it is older than an attempt.
    Older,
    /// R7: the age of a vote is its own, and not that of the lease which it replaces.
    ItsAge,
    /// R8: a replacement has its votes only where the lease is that it names.
    InPlace,
    /// R9: votes of a token without a lease are given up.
    Leftovers,
    /// R10: a node refuses late votes of a lease that has ended.
    HasEnded,
    /// R11: a node that restarted does not vote.
    RunId,
    /// R11: a node that may have forgotten leases waits for the longest one.
    WholeWait,
    /// R11: a node votes for instances with its own settings only.
    Settings,
    /// R11: a node serves instances with other settings only once an operator says so.
    Admitted,
    /// R11: and votes for them when the leases of the former have expired.
    Outlives,
    /// R11: a call does not act after its caller has given up.
    NotAfter,
    /// R11: the deadline of a call is fixed before its arguments.
    DeadlineFirst,
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
        LEFT_OUT.get() == Some(self)
    }

    /// A script without the rule, if the rule is a script's.
    pub(super) fn removed_from(self, source: &str) -> String {
        let (rule, instead) = match self {
            Self::Above => ("if proposed <= highest then", "if false then"),
            Self::Told => ("math.max(highest, fence), fence, '-'", "highest, number, by"),
            Self::InPlace => ("if replaces ~= '' and not is_replaced then", "if false then"),
            Self::OnlyExtends => ("if sets_end == '1' or most >= left", "if true"),
            Self::ItsOwn => ("by ~= attempt", "by == '-'"),
            Self::NoRevival => {
                let revive = "if not value then redis.call('SET', lock, token, 'PX', longest) \
                              number, by, its_ttl, holder = highest, '-', longest, token end";
                ("if holder ~= token then return answer(value and 'taken' or 'free') end", revive)
            }
            Self::Unchanged => {
                ("said == string.format('%.0f %.0f %s', highest, number, by)", "true")
            }
            Self::HasEnded => ("if is_told then highest", "if false then highest"),
            Self::Waits => ("if not voting then return", "if false then return"),
            Self::WholeWait => ("lease + math.ceil(lease / 100) + 2", "lease / 2"),
            Self::Settings => ("its_longest == longest and its_nodes == nodes", "of ~= nil"),
            Self::Admitted => (
                "if unseen and (own or not of) then\n  own = wait()",
                "if not own then own = serve(from)",
            ),
            Self::Outlives => ("wait() and 'taken'", "serve(0) and 'taken'"),
            Self::NotAfter => ("if now > tonumber(not_after) then", "if false then"),
            _ => return source.to_owned(),
        };
        source.replace(rule, instead)
    }

    /// The trust in a restarted node, without the rule `without`.
    pub(super) fn restarted(without: Option<Self>) -> Restarted {
        if without == Some(Self::RunId) { Restarted::Trusted } else { Restarted::Doubted }
    }
}
