//! The state of a run: the table, what the instance has in memory beside it, and the clients.

use std::sync::Arc;

use crate::lock::lease::Receipt;
use crate::lock::store::Keep;
use crate::lock::table::Table;

/// A moment, in steps of 5 s: a hand-off lapses within one, a reserved place is given up after one.
pub(super) type Tick = u64;

/// The microseconds of a step.
pub(super) const STEP: u64 = 5_000_000;

/// The TTLs of the requests, in steps.
pub(super) const SHORT: Tick = 1;
pub(super) const LONG: Tick = 2;

/// What a client can ask for. Where it is `Named`, the request carries the number that the client
/// was last told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Wish {
    Acquire(Tick),
    AcquireNamed(Tick),
    /// An acquire that waits in line.
    Wait(Tick),
    Hold,
    HoldNamed,
    /// A stream that waits in line.
    HoldWait,
    Refresh(Tick),
    RefreshNamed(Tick),
    Release,
    ReleaseNamed,
}

impl Wish {
    pub(super) fn ttl(self) -> Tick {
        match self {
            Self::Acquire(ttl) | Self::AcquireNamed(ttl) | Self::Wait(ttl) => ttl,
            Self::Refresh(ttl) | Self::RefreshNamed(ttl) => ttl,
            _ => LONG,
        }
    }

    pub(super) fn names(self) -> bool {
        let names = matches!(self, Self::AcquireNamed(_) | Self::HoldNamed);
        names || matches!(self, Self::RefreshNamed(_) | Self::ReleaseNamed)
    }

    pub(super) fn is_stream(self) -> bool {
        matches!(self, Self::Hold | Self::HoldNamed | Self::HoldWait)
    }

    pub(super) fn is_claim(self) -> bool {
        self.is_stream() || matches!(self, Self::Acquire(_) | Self::AcquireNamed(_) | Self::Wait(_))
    }

    /// Whether it is an acquire or a stream that names a lease.
    pub(super) fn replaces(self) -> bool {
        self.is_claim() && self.names()
    }

    pub(super) fn waits(self) -> bool {
        matches!(self, Self::Wait(_) | Self::HoldWait)
    }
}

/// What a client was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Reply {
    /// The lease of this number, for so long: 201, 200, a refresh. It can be relied on until then.
    Lease {
        number: u64,
        left: Tick,
        until: Tick,
    },
    /// 409 `lock_held` by another token.
    Held,
    /// 409 `lock_held` with `mine`.
    Mine(u64),
    /// 409 `lock_lost`; for a stream, `lost`.
    Lost(Option<u64>),
    /// 204.
    Released,
    Superseded,
    Cancelled,
    /// The connection broke: the instance has stopped.
    Broken,
}

/// How far a request has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Stage {
    /// On its way to the service.
    Sent,
    /// Its grant is in the turn of its claim.
    Granted,
    /// Waits in line. The store may have its claim in line if it was `asked`, and has told its
    /// place if it has `joined`.
    InLine { asked: bool, joined: bool },
    /// A stream of this lease, with the line that is on its way, and the moment at which the client
    /// read the one before.
    Holds { number: u64, line: Option<Reply>, read: Option<Tick> },
    /// A stream that is gone; its last word is not spoken yet.
    Leaves { number: u64, ends: bool },
    /// The answer is on its way.
    Told(Reply),
}

/// Whether the client still waits for the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Client {
    Listens,
    /// It has given up, and closed the connection: the service sees that at once, later or never.
    Closed,
    /// Its network is cut, and it may still rely on what it has read.
    Cut,
}

/// A request.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Request {
    /// Its number among those of its client.
    pub(super) id: u8,
    pub(super) wish: Wish,
    /// The number of its claim among those of its client, which have a token each.
    pub(super) claim: u8,
    pub(super) named: Option<u64>,
    /// When it was sent.
    pub(super) sent: Tick,
    /// How long it was on its way.
    pub(super) way: Tick,
    pub(super) stage: Stage,
    pub(super) client: Client,
    /// The greatest number of a lease that this instance has seen end since a stream asked.
    pub(super) seen_end: u64,
}

/// A lease that a client relies on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Belief {
    pub(super) number: u64,
    pub(super) until: Tick,
    /// Only a stream told it.
    pub(super) by_stream: bool,
}

/// The question of a claim that is under way, and its grant until it is handed over or taken back.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Turn {
    pub(super) claim: u8,
    /// The request that asked.
    pub(super) id: u8,
    /// What that asked for.
    pub(super) wish: Wish,
    pub(super) at: At,
    /// The moment of the question.
    pub(super) asked: Tick,
    /// The time that was left of the lease then.
    pub(super) left: Tick,
    pub(super) number: u64,
    pub(super) receipt: Option<Receipt>,
}

/// How far a question has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum At {
    /// On its way to the store: to join the line or from it, or for the last time.
    InLine,
    Once,
    /// Granted to the line's claim; its request has not got it yet.
    Line,
    /// With its request.
    Request,
    /// To be taken back.
    Undo,
}

/// A client with what it has sent.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Party {
    /// The requests that it has sent.
    pub(super) sent: u8,
    /// The number of its claim.
    pub(super) claim: u8,
    /// The claim was asked for.
    pub(super) has_asked: bool,
    /// The number that it was last told of its claim.
    pub(super) knows: Option<u64>,
    /// It has sent a claim that names a lease, and none such was granted since.
    pub(super) has_named: bool,
    pub(super) relies: Option<Belief>,
    /// Its requests that are not over.
    pub(super) requests: Vec<Request>,
    pub(super) turns: Vec<Turn>,
    /// The requests that were told a definite no; bits.
    pub(super) refused: u16,
    /// Its claims that are gone but that the store may still have in line.
    pub(super) leaving: Vec<(u8, Keep)>,
}

/// The promise that was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Fault {
    /// Two clients rely on the key at once.
    Overlap,
    /// A lease has ended, or ends earlier, although its client relies on it.
    EndedEarly,
    /// A new lease has a number that is not above all earlier ones.
    NumberFell,
    /// A definite no was a yes, or became one.
    FalseNo,
    /// A lease that had ended was renewed.
    Revived,
    /// A lease lasts longer than the longest TTL.
    TooLong,
    /// A lease stays that no client was told of.
    LeftOver,
    /// A free key is not granted, or a place stays in line.
    Blocked,
    /// A claim was granted while another one was ahead.
    PassedOver,
    /// A request got a lease of another kind.
    NotAsAsked,
    /// A stream was told of a lease that this instance had seen end.
    ToldEnded,
}

/// A state of the run.
#[derive(Clone)]
pub(super) struct World {
    pub(super) now: Tick,
    pub(super) table: Arc<Table>,
    pub(super) parties: Vec<Party>,
    /// The most requests of a client.
    pub(super) each: u8,
    /// How often what is rare may still happen.
    pub(super) spare: Spare,
    /// The greatest number of all grants.
    pub(super) highest: u64,
    /// The leases whose grants were handed over, and those that were ended by force; bits.
    pub(super) told: u64,
    pub(super) forced: u64,
    /// The leases that were given back to their ends by rule 8, with these ends.
    pub(super) put_back: Vec<(u64, Tick)>,
    pub(super) fault: Option<Fault>,
}

/// How often what is rare may still happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Spare {
    pub(super) give_ups: u8,
    pub(super) cuts: u8,
    pub(super) stops: u8,
    pub(super) forced: u8,
}

impl World {
    pub(super) fn has_told(&self, number: u64) -> bool {
        self.told & bit(number) != 0
    }

    pub(super) fn was_forced(&self, number: u64) -> bool {
        self.forced & bit(number) != 0
    }

    /// The first fault counts.
    pub(super) fn wrong(&mut self, fault: Fault) {
        self.fault.get_or_insert(fault);
    }
}

/// The bit of a number; there are few.
pub(super) fn bit(number: u64) -> u64 {
    1 << (number % 64)
}
