//! The history of one key: its operations in the order in which they were sent, by token, and its leases.

use std::collections::HashMap;
use std::ops::Range;

use super::context::{Context, DEFAULT_TTL, MS, PLACE_KEPT, SECOND};
use super::lease;
use super::lease::{Evidence, Lease};
use crate::history::{Kind, NO_TOKEN, Nanos, Operation, Outcome, Token};

/// By then an instance has heard of a question, where nothing stands still.
const HEARD: Nanos = 250 * MS;

/// The number of an operation within its key.
pub(super) type Number = u32;

/// What a key's operations tell.
pub(super) struct Key<'a> {
    pub(super) key: u32,
    /// Whether anybody asked to share it.
    pub(super) shared: bool,
    pub(super) operations: Vec<&'a Operation>,
    /// Until when each operation may have an effect.
    pub(super) settled: Vec<Nanos>,
    /// The operations with a token, by token and then as they were sent.
    by_token: Vec<(Token, Number)>,
    /// Until when each of these and those before it with its token may have an effect.
    reach: Vec<Nanos>,
    /// The forced releases, as they were sent.
    pub(super) forced: Vec<Number>,
    /// Until when each of these and those before it may have an effect.
    pub(super) forced_reach: Vec<Nanos>,
    pub(super) streams: Vec<Stream>,
    pub(super) evidence: Vec<Evidence>,
    /// In the order of their fencing tokens.
    pub(super) leases: Vec<Lease>,
    /// Where two tokens have one number.
    pub(super) clashes: Vec<(u64, Nanos)>,
}

/// A stream that had a lease.
pub(super) struct Stream {
    pub(super) grant: Number,
    pub(super) end: Option<Number>,
    /// When its last event was received.
    pub(super) last: Nanos,
    /// No event that is received from now on was sent before this.
    pub(super) since: Nanos,
}

impl<'a> Key<'a> {
    pub(super) fn new(context: &Context<'_>, key: u32, operations: Vec<&'a Operation>) -> Self {
        let settled = operations.iter().map(|operation| settled(context, operation)).collect();
        let shares = |operation: &&Operation| operation.asked.slots.is_some_and(|slots| slots > 1);
        let mut history = Self {
            key,
            shared: operations.iter().any(shares),
            operations,
            settled,
            by_token: Vec::new(),
            reach: Vec::new(),
            forced: Vec::new(),
            forced_reach: Vec::new(),
            streams: Vec::new(),
            evidence: Vec::new(),
            leases: Vec::new(),
            clashes: Vec::new(),
        };
        history.index();
        lease::collect(context, &mut history);
        history
    }

    pub(super) fn operation(&self, number: Number) -> &'a Operation {
        self.operations[number as usize]
    }

    pub(super) fn settled(&self, number: Number) -> Nanos {
        self.settled[number as usize]
    }

    pub(super) fn evidence_of(&self, lease: &Lease) -> &[Evidence] {
        &self.evidence[lease.evidence.start as usize..lease.evidence.end as usize]
    }

    /// Returns each token with the range of its operations.
    pub(super) fn tokens(&self) -> impl Iterator<Item = &[(Token, Number)]> {
        self.by_token.chunk_by(|one, other| one.0 == other.0)
    }

    /// Returns the operations with a token that were sent until then.
    fn until(&self, token: Token, until: Nanos) -> Range<usize> {
        let start = self.by_token.partition_point(|entry| entry.0 < token);
        let end = self.by_token.partition_point(|&(other, number)| {
            other < token || other == token && self.operation(number).sent <= until
        });
        start..end.max(start)
    }

    /// Returns the operations with a token that may have an effect in that time, the latest first.
    pub(super) fn near(
        &self,
        token: Token,
        from: Nanos,
        until: Nanos,
    ) -> impl Iterator<Item = Number> {
        let range = if token == NO_TOKEN { 0..0 } else { self.until(token, until) };
        let near = range.rev().take_while(move |&entry| self.reach[entry] >= from);
        near.map(|entry| self.by_token[entry].1).filter(move |&number| self.settled(number) >= from)
    }

    /// Returns the operations with a token that were sent after that time, the first one first.
    pub(super) fn after(&self, token: Token, at: Nanos) -> impl Iterator<Item = Number> {
        let start = if token == NO_TOKEN { self.by_token.len() } else { self.until(token, at).end };
        let later = self.by_token[start..].iter();
        later.take_while(move |entry| entry.0 == token).map(|entry| entry.1)
    }

    /// Returns when a token that had a lease at `from` is first known to have none: given up, or told so.
    pub(super) fn over(
        &self,
        token: Token,
        fence: Option<u64>,
        from: Nanos,
        limit: Nanos,
    ) -> Nanos {
        let mut over = Nanos::MAX;
        for number in self.after(token, from) {
            let operation = self.operation(number);
            if operation.sent > limit || operation.sent >= over {
                break;
            }
            let means =
                operation.asked.fencing_token.is_none_or(|meant| fence.is_none_or(|f| f == meant));
            if means && (is_release(operation) || is_lost(operation)) {
                over = over.min(operation.answered.unwrap_or(Nanos::MAX));
            }
        }
        over.min(self.forced_over(fence, from, limit))
    }

    fn forced_over(&self, fence: Option<u64>, from: Nanos, limit: Nanos) -> Nanos {
        let start = self.forced.partition_point(|&number| self.operation(number).sent <= from);
        let mut over = Nanos::MAX;
        for &number in &self.forced[start..] {
            let operation = self.operation(number);
            if operation.sent > limit || operation.sent >= over {
                break;
            }
            let definite = operation.outcome == Outcome::Yes || is_lost(operation);
            let other = ended_by_force(operation).is_some_and(|ended| Some(ended) != fence);
            if definite && !other {
                over = over.min(operation.answered.unwrap_or(Nanos::MAX));
            }
        }
        over
    }

    /// Returns until when a question may take effect, by what its client asks next: one that its client
    /// gave up, long after its instance had heard of it, is older than that.
    pub(super) fn counts(&self, context: &Context<'_>, number: Number) -> Nanos {
        let (operation, settled) = (self.operation(number), self.settled(number));
        let Some(gone) = operation.gone else { return settled };
        let heard = gone.saturating_sub(operation.sent) >= HEARD
            && !context.client_disturbed(operation.sent, gone + SECOND)
            && !context.suspended(operation.sent, gone)
            && context.promises_keeping(operation.sent, settled);
        if heard { gone } else { settled }
    }

    /// Returns when the lease of a question that came to an unknown end may exist.
    pub(super) fn perhaps(&self, context: &Context<'_>, number: Number) -> (Nanos, Nanos) {
        let (operation, settled) = (self.operation(number), self.settled(number));
        let ttl = asked_ttl(operation).unwrap_or(DEFAULT_TTL);
        let Some(gone) = operation.gone else {
            let until = context.stretched(operation.sent, settled.saturating_add(ttl));
            return (operation.sent, until.min(self.over(operation.token, None, settled, until)));
        };
        let slack = SECOND + 2 * context.slowest(gone, gone + SECOND);
        if context.delayed(operation.sent, gone + slack) {
            let until = context.stretched(operation.sent, settled.saturating_add(ttl));
            return (operation.sent, until.min(self.over(operation.token, None, settled, until)));
        }
        // Its connection was whole until it hung up, so a grant would have reached it but for the last moment.
        let from = operation.sent.max(gone.saturating_sub(slack));
        if !operation.chosen {
            return (from, gone + slack);
        }
        // An answer that was sent as the client left counts as received. On Redlock, a client's lease
        // stays as well that was granted later.
        let counts = if context.redlock() { gone + slack } else { self.counts(context, number) };
        let until = gone.saturating_add(slack).saturating_add(ttl);
        let until = until.min(self.over(operation.token, None, counts, until));
        // Elsewhere it is taken back.
        (from, if context.redlock() { until } else { until.max(settled.max(gone) + slack) })
    }

    /// Returns until when a claim of this operation may have a place in line.
    pub(super) fn in_line(&self, number: Number) -> Nanos {
        let operation = self.operation(number);
        let until = self.settled(number);
        let keeps = operation.outcome != Outcome::Yes && operation.code != "wait_cancelled";
        if keeps && operation.chosen && operation.asked.wait_ms > 0 {
            until.saturating_add(PLACE_KEPT)
        } else {
            until
        }
    }

    fn index(&mut self) {
        for (number, operation) in (0..).zip(&self.operations) {
            if operation.token != NO_TOKEN {
                self.by_token.push((operation.token, number));
            }
            if operation.kind == Kind::ForceRelease {
                let before = self.forced_reach.last().copied().unwrap_or_default();
                self.forced_reach.push(before.max(self.settled[number as usize]));
                self.forced.push(number);
            }
        }
        self.by_token.sort_unstable();
        let mut last = (NO_TOKEN, 0);
        for &(token, number) in &self.by_token {
            let before = if last.0 == token { last.1 } else { 0 };
            last = (token, before.max(self.settled[number as usize]));
            self.reach.push(last.1);
        }
        self.find_streams();
    }

    fn find_streams(&mut self) {
        let mut open: HashMap<u32, usize> = HashMap::new();
        for (number, operation) in (0..).zip(&self.operations) {
            match operation.kind {
                Kind::Hold if operation.outcome == Outcome::Yes => {
                    open.insert(operation.client, self.streams.len());
                    let since = began(operation).0;
                    let last = operation.answered.unwrap_or(operation.sent);
                    self.streams.push(Stream { grant: number, end: None, last, since });
                }
                Kind::Hold => {
                    open.remove(&operation.client);
                }
                Kind::HoldEnd => {
                    if let Some(stream) = open.remove(&operation.client) {
                        self.streams[stream].end = Some(number);
                    }
                }
                Kind::Alive => {
                    if let Some(&stream) = open.get(&operation.client) {
                        lease::push_alive(
                            &mut self.evidence,
                            &mut self.streams[stream],
                            number,
                            (&self.operations, operation),
                        );
                    }
                }
                _ => (),
            }
        }
    }
}

/// Returns whether a claim of the operation may wait in line.
pub(super) fn is_claim(operation: &Operation) -> bool {
    matches!(operation.kind, Kind::Acquire | Kind::Hold)
}

/// Returns whether it was told that the token, or whoever was to be ended, has no lease.
pub(super) fn is_lost(operation: &Operation) -> bool {
    operation.outcome == Outcome::No
        && operation.code.starts_with("lock_lost")
        && matches!(operation.kind, Kind::Refresh | Kind::Release | Kind::ForceRelease)
}

/// Returns whether it gave up what its token had.
pub(super) fn is_release(operation: &Operation) -> bool {
    operation.kind == Kind::Release && operation.outcome == Outcome::Yes
}

/// Returns the only lease that a forced release can have ended; none if it ended all.
pub(super) fn ended_by_force(operation: &Operation) -> Option<u64> {
    // Of several leases it tells the first one's number.
    let told = operation.said.fencing_token.filter(|_| operation.said.holders.is_none());
    operation.asked.fencing_token.or(told)
}

/// Returns whether a claim was told that its own lease does not let it have the key with other slots.
pub(super) fn is_refused_change(operation: &Operation) -> bool {
    operation.outcome == Outcome::No
        && operation.code == "lock_held"
        && operation.said.mine == Some(true)
}

/// Returns whether it says that the token does not hold the key, and that nothing under way grants it.
pub(super) fn is_definite_no(operation: &Operation) -> bool {
    let code = operation.code.as_str();
    operation.outcome == Outcome::No
        && is_claim(operation)
        && operation.status != 0
        && !is_refused_change(operation)
        && (matches!(code, "lock_held" | "wait_cancelled" | "draining")
            || code.ends_with("/not_acquired"))
}

/// Returns the time in which the lease began of which a question was told.
pub(super) fn began(operation: &Operation) -> (Nanos, Nanos) {
    let answered = operation.answered.unwrap_or(operation.sent);
    let waited = operation.said.waited_ms.unwrap_or_default().saturating_mul(MS);
    (operation.sent.saturating_add(waited).min(answered), answered)
}

/// Returns the TTL that was asked for.
pub(super) fn asked_ttl(operation: &Operation) -> Option<Nanos> {
    operation.asked.ttl_ms.map(|ttl| ttl.saturating_mul(MS))
}

/// Returns until when an operation may have an effect.
fn settled(context: &Context<'_>, operation: &Operation) -> Nanos {
    if operation.outcome != Outcome::Unknown
        && let Some(answered) = operation.answered
    {
        return answered;
    }
    let waits = operation.asked.wait_ms.saturating_mul(MS);
    let waited = operation.sent.saturating_add(waits);
    let seen = match (operation.answered, operation.gone) {
        (Some(answered), _) => answered,
        // Where the link was struck as well, the service may not have heard of it.
        (None, Some(gone)) if !context.client_disturbed(operation.sent, gone + SECOND) => gone,
        (None, gone) => waited.max(gone.unwrap_or_default()),
    };
    context.settled(seen)
}
