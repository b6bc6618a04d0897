//! The history of one key: its operations in the order in which they were sent, also by token.

use std::collections::{BTreeMap, HashMap};

use crate::check::context::{Context, DEFAULT_TTL, MS, PLACE_KEPT, SECOND};
use crate::check::spans::Spans;
use crate::history::{Kind, NO_TOKEN, Nanos, Operation, Outcome, Token};

/// The number of an operation within its key.
pub(super) type Number = u32;

/// What a key's operations tell. A time of an operation is from when it was sent until when it may have
/// an effect.
pub(super) struct Key<'a> {
    pub(super) key: u32,
    /// Whether anybody asked to share it.
    pub(super) shared: bool,
    pub(super) operations: Vec<&'a Operation>,
    settled: Vec<Nanos>,
    pub(super) tokens: BTreeMap<Token, Spans<Number>>,
    pub(super) forced: Spans<Number>,
    pub(super) streams: Vec<Stream>,
}

/// A stream that had a lease.
pub(super) struct Stream {
    pub(super) grant: Number,
    pub(super) alive: Vec<Number>,
    pub(super) end: Option<Number>,
}

impl<'a> Key<'a> {
    pub(super) fn new(context: &Context<'_>, key: u32, operations: Vec<&'a Operation>) -> Self {
        let settled: Vec<_> =
            operations.iter().map(|operation| settled(context, operation)).collect();
        let times =
            |number: Number| (operations[number as usize].sent, settled[number as usize], number);
        let (mut tokens, mut forced) = (BTreeMap::<_, Vec<_>>::new(), Vec::new());
        for (number, operation) in (0..).zip(&operations) {
            if operation.token != NO_TOKEN {
                tokens.entry(operation.token).or_default().push(times(number));
            }
            if operation.kind == Kind::ForceRelease {
                forced.push(times(number));
            }
        }
        let tokens = tokens.into_iter().map(|(token, times)| (token, times.into_iter().collect()));
        Self {
            key,
            shared: operations.iter().any(|one| one.asked.slots.is_some_and(|slots| slots > 1)),
            tokens: tokens.collect(),
            forced: forced.into_iter().collect(),
            streams: streams(&operations),
            operations,
            settled,
        }
    }

    pub(super) fn operation(&self, number: Number) -> &'a Operation {
        self.operations[number as usize]
    }

    pub(super) fn numbered(&self) -> impl Iterator<Item = (Number, &'a Operation)> {
        (0..).zip(self.operations.iter().copied())
    }

    pub(super) fn settled(&self, number: Number) -> Nanos {
        self.settled[number as usize]
    }

    /// Returns the operations with a token that may have an effect in that time, the latest first.
    pub(super) fn near(
        &self,
        token: Token,
        from: Nanos,
        until: Nanos,
    ) -> impl Iterator<Item = (Number, &'a Operation)> {
        let spans = self.tokens.get(&token).into_iter();
        let near = spans.flat_map(move |spans| spans.meeting(from, until));
        near.map(|span| (span.of, self.operation(span.of)))
    }

    /// Returns when a token that had a lease at `from` is first known to have none: given up, or told so.
    pub(super) fn over(
        &self,
        token: Token,
        fence: Option<u64>,
        from: Nanos,
        limit: Nanos,
    ) -> Nanos {
        let of_token = self.tokens.get(&token).into_iter().flat_map(|spans| spans.after(from));
        let given_up = |operation: &Operation| {
            let named = operation.asked.fencing_token;
            let another = named.is_some_and(|named| Some(named) != fence);
            !another && (operation.is_release() || operation.is_lost())
        };
        let ended = |operation: &Operation| {
            let another = operation.ended_by_force().is_some_and(|ended| Some(ended) != fence);
            !another && (operation.outcome == Outcome::Yes || operation.is_lost())
        };
        let first = |spans: &mut dyn Iterator<Item = Number>, ends: &dyn Fn(&Operation) -> bool| {
            let mut over = Nanos::MAX;
            for operation in spans.map(|number| self.operation(number)) {
                if operation.sent > limit || operation.sent >= over {
                    break;
                }
                if ends(operation) {
                    over = over.min(operation.answered.unwrap_or(Nanos::MAX));
                }
            }
            over
        };
        let over = first(&mut of_token.map(|span| span.of), &given_up);
        over.min(first(&mut self.forced.after(from).map(|span| span.of), &ended))
    }

    /// Returns when the lease of a question that came to an unknown end may exist.
    pub(super) fn perhaps(&self, context: &Context<'_>, number: Number) -> (Nanos, Nanos) {
        let (operation, settled) = (self.operation(number), self.settled(number));
        let ttl = operation.asked_ttl().unwrap_or(DEFAULT_TTL);
        let whole = operation.gone.and_then(|gone| {
            let slack = SECOND + 2 * context.slowest(gone, gone + SECOND);
            (!context.delayed(operation.sent, gone + slack)).then_some((gone, slack))
        });
        let Some((gone, slack)) = whole else {
            let until = context.stretched(operation.sent, settled.saturating_add(ttl));
            return (operation.sent, until.min(self.over(operation.token, None, settled, until)));
        };
        // Its connection was whole until it hung up, so a grant would have reached it but for the last moment.
        let from = operation.sent.max(gone.saturating_sub(slack));
        if !operation.chosen || context.unanswered(operation.sent, gone) {
            return (from, gone + slack);
        }
        // An answer that was sent as the client left counts as received. On Redlock, a client's lease
        // stays as well that was granted later; elsewhere it is taken back.
        let (counts, back) = match context.redlock() {
            true => (gone + slack, 0),
            false => (settled, settled.max(gone) + slack),
        };
        let until = gone.saturating_add(slack).saturating_add(ttl);
        let until = until.min(self.over(operation.token, None, counts, until));
        (from, until.max(back))
    }

    /// Returns until when a claim of this operation may have a place in line.
    pub(super) fn in_line(&self, number: Number) -> Nanos {
        let (operation, until) = (self.operation(number), self.settled(number));
        let keeps = operation.outcome != Outcome::Yes && operation.code != "wait_cancelled";
        let keeps = keeps && operation.chosen && operation.asked.wait_ms > 0;
        until.saturating_add(if keeps { PLACE_KEPT } else { 0 })
    }
}

fn streams(operations: &[&Operation]) -> Vec<Stream> {
    let mut streams: Vec<Stream> = Vec::new();
    let mut open: HashMap<u32, usize> = HashMap::new();
    for (number, operation) in (0..).zip(operations) {
        match operation.kind {
            Kind::Hold if operation.outcome == Outcome::Yes => {
                open.insert(operation.client, streams.len());
                streams.push(Stream { grant: number, alive: Vec::new(), end: None });
            }
            Kind::Hold => drop(open.remove(&operation.client)),
            Kind::Alive => {
                if let Some(&stream) = open.get(&operation.client) {
                    streams[stream].alive.push(number);
                }
            }
            Kind::HoldEnd => {
                if let Some(stream) = open.remove(&operation.client) {
                    streams[stream].end = Some(number);
                }
            }
            _ => (),
        }
    }
    streams
}

fn settled(context: &Context<'_>, operation: &Operation) -> Nanos {
    let is_last = |answered: &Nanos| {
        let waits = operation.asked.wait_ms > 0;
        !operation.is_unknown() || !waits && context.hears_out(operation.sent, *answered)
    };
    if let Some(answered) = operation.answered.filter(is_last) {
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
