//! The rules that a run can leave out, one at a time: the checker has to find the fault.

use std::cell::Cell;

thread_local! {
    static LEFT_OUT: Cell<Option<Rule>> = const { Cell::new(None) };
}

/// A rule of `docs/rules.md`, by its number. Those down to `Lapses` are lines of the table, which
/// `build.rs` has; the others are in `service.rs` and `client.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Rule {
    /// 2: an exclusive lease is alone.
    Room,
    /// 3: a lease ends with its TTL.
    Time,
    /// 4: a repeat keeps the number.
    RepeatNumber,
    /// 5: a repeat leaves the lease of a stream alone, and gives none to a stream.
    RepeatPlain,
    /// 6: a replacement ends the lease that it names, and no other.
    ReplaceNamed,
    /// 6: a replacement has a new number.
    ReplaceNumber,
    /// 7, 20: a key that was handed to one claim is granted to no other.
    Handed,
    /// 8: a lease that was heard of is not taken back.
    Heard,
    /// 8: a replacement that is taken back ends when the named lease would have.
    PutBack,
    /// 10: the place of an absent claim is reserved for a while only.
    Reserved,
    /// 13: a refresh never shortens a lease.
    OnlyExtends,
    /// 13: a refresh never revives one.
    NoRevival,
    /// 13: only its stream refreshes a kept lease.
    KeptAlone,
    /// 14: a release ends a lease of its token.
    OwnToken,
    /// 1, 14: a refresh or release that names a lease touches no other.
    OnlyNamed,
    /// 20: a hand-off that nobody confirms lapses.
    Lapses,

    /// 8: a grant that reaches nobody is taken back.
    TakenBack,
    /// 9: a grant goes to a newer request only if that asks for the same.
    SameOptions,
    /// 9: a grant to a superseded request is taken back.
    Superseded,
    /// 9, 11: a claim has one question under way.
    OneQuestion,
    /// 10: a claim leaves the line with its request.
    Leaves,
    /// 10: a departure overtakes no question of its claim.
    NoOvertaking,
    /// 14: a released claim has left the line before the store is told.
    ReleasedFirst,
    /// 16: the last word names the lease of its stream.
    LastWordNames,
    /// 16: after a time-out the lease keeps its end.
    TimedOut,
    /// 17: a stream is not told of a lease that has ended.
    Registered,
    /// 1: the greatest number outlives the process.
    NumberOnDisk,
    /// The leases outlive the process.
    LeasesOnDisk,

    /// Clients: a claim after a release has a new token.
    NewToken,
    /// Clients: a request that names a lease is the end of relying on it.
    NamingGivesUp,
    /// Clients: no other lease counts until a request that names one is granted.
    UntilNamed,
    /// Clients: the TTL counts from the moment when the request was sent.
    FromTheSending,
}

/// Leaves a rule out on this thread from now on.
pub(super) fn leave_out(rule: Option<Rule>) {
    LEFT_OUT.set(rule);
}

impl Rule {
    /// Returns true if this thread leaves the rule out.
    pub(crate) fn is_left_out(self) -> bool {
        LEFT_OUT.get() == Some(self)
    }
}
