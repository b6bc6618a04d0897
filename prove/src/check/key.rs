//! The history of one key: its operations in the order in which they were sent, also by token.

use std::collections::{BTreeMap, HashMap};

use crate::check::context::{Context, DEFAULT_TTL, MS, PLACE_KEPT, SECOND};
use crate::check::spans::{Span, Spans};
use crate::history::{Kind, NO_TOKEN, Nanos, Operation, Outcome, Token};

/// An operation, from when it was sent until when it may have an effect.
pub(super) type Effect<'a> = Span<&'a Operation>;

/// What a key's operations tell.
pub(super) struct Key<'a> {
    pub(super) key: u32,
    /// Whether anybody asked to share it.
    pub(super) shared: bool,
    pub(super) operations: Spans<&'a Operation>,
    pub(super) tokens: BTreeMap<Token, Spans<&'a Operation>>,
    pub(super) forced: Spans<&'a Operation>,
    pub(super) streams: Vec<Stream<'a>>,
}

/// A stream that had a lease.
pub(super) struct Stream<'a> {
    pub(super) grant: &'a Operation,
    pub(super) alive: Vec<&'a Operation>,
    pub(super) end: Option<&'a Operation>,
}

impl<'a> Stream<'a> {
    /// Returns what it was told: its grant and its events.
    pub(super) fn heard(&self) -> impl Iterator<Item = &'a Operation> {
        self.alive.iter().copied().chain([self.grant])
    }
}

impl<'a> Key<'a> {
    pub(super) fn new(context: &Context<'_>, operations: &[&'a Operation]) -> Self {
        let effect = |&of: &&'a Operation| Span { from: of.sent, until: settled(context, of), of };
        let effects: Vec<Effect<'a>> = operations.iter().map(effect).collect();
        let mut tokens = BTreeMap::<Token, Vec<Effect<'a>>>::new();
        for effect in effects.iter().filter(|effect| effect.of.token != NO_TOKEN) {
            tokens.entry(effect.of.token).or_default().push(*effect);
        }
        let tokens = tokens.into_iter().map(|(token, spans)| (token, spans.into_iter().collect()));
        let forced = effects.iter().filter(|effect| effect.of.kind == Kind::ForceRelease);
        Self {
            key: operations.first().map_or(0, |one| one.key),
            shared: operations.iter().any(|one| one.asked.slots.is_some_and(|slots| slots > 1)),
            tokens: tokens.collect(),
            forced: forced.copied().collect(),
            streams: streams(operations),
            operations: effects.into_iter().collect(),
        }
    }

    /// Returns the operations with a token that may have an effect in that time, the latest first.
    pub(super) fn near(
        &self,
        token: Token,
        from: Nanos,
        until: Nanos,
    ) -> impl Iterator<Item = Effect<'a>> {
        let spans = self.tokens.get(&token).into_iter();
        spans.flat_map(move |spans| spans.meeting(from, until))
    }

    /// Returns when a token that had a lease at `from` is first known to have none: given up, or told so.
    pub(super) fn over(
        &self,
        token: Token,
        fence: Option<u64>,
        from: Nanos,
        limit: Nanos,
    ) -> Nanos {
        let of_token = self.tokens.get(&token).into_iter();
        let of_token = of_token.flat_map(|spans| spans.after(from, limit));
        let all = of_token.chain(self.forced.after(from, limit)).map(|span| span.of);
        let ends = all.filter(|one| one.ends() && one.means().is_none_or(|it| Some(it) == fence));
        ends.filter_map(|one| one.answered).min().unwrap_or(Nanos::MAX)
    }

    /// Returns until when a lease may last at most that was asked for and given up while the store stood
    /// still, so that its answer certainly reached nobody: over one instance it is taken back. That the
    /// client repeats it meanwhile, and gives that up as well, changes nothing.
    fn stood_still(&self, context: &Context<'_>, asked: &Operation) -> Option<Nanos> {
        let until = context.stood_still(asked.sent, asked.gone?)?;
        let near = self.near(asked.token, asked.sent.saturating_sub(PLACE_KEPT), until);
        let alone = asked.chosen
            && near
                .map(|near| near.of)
                .filter(|of| of.prolongs())
                .all(|of| of.late.is_none() && of.instance == asked.instance && of.is_unknown());
        alone.then_some(until)
    }

    /// Returns a question that came to an unknown end, from when until when its lease may exist.
    pub(super) fn perhaps(
        &self,
        context: &Context<'_>,
        Effect { until: settled, of: operation, .. }: Effect<'a>,
    ) -> Effect<'a> {
        let exists = |from, until| Effect { from, until, of: operation };
        let linger = operation.asked.linger_ms.saturating_mul(MS);
        let ttl = operation.asked_ttl().unwrap_or(DEFAULT_TTL).max(linger);
        let is_late = operation.late.is_some();
        let whole = operation.left().and_then(|gone| {
            let slack = SECOND + 2 * context.slowest(gone, gone + SECOND);
            (!context.delayed(operation.sent, gone + slack)).then_some((gone, slack))
        });
        if let Some(until) = self.stood_still(context, operation) {
            return exists(operation.sent, until);
        }
        let Some((gone, slack)) = whole else {
            let until = context.stretched(operation.sent, settled.saturating_add(ttl));
            let until = until.min(self.over(operation.token, None, settled, until));
            return exists(operation.sent, until);
        };
        // Its connection was whole until it hung up, so a grant would have reached it but for the last moment.
        let from = operation.sent.max(if is_late { 0 } else { gone.saturating_sub(slack) });
        if operation.kind == Kind::Hold && !context.redlock() {
            return exists(from, gone + slack + linger);
        }
        if !is_late && (!operation.chosen || context.unanswered(operation.sent, gone)) {
            return exists(from, gone + slack);
        }
        // An answer that was sent as the client left counts as received. On Redlock, a client's lease
        // stays as well that was granted later; elsewhere it is taken back.
        let (counts, back) = match context.redlock() {
            true => (gone + slack, 0),
            false => (settled, settled.max(gone) + slack),
        };
        let until = gone.saturating_add(slack).saturating_add(ttl);
        let until = until.min(self.over(operation.token, None, counts, until));
        exists(from, until.max(back))
    }
}

/// Returns until when a claim may have a place in line.
pub(super) fn in_line_until(Effect { until, of: claim, .. }: Effect<'_>) -> Nanos {
    let keeps = claim.outcome != Outcome::Yes && claim.code != "wait_cancelled";
    let keeps = keeps && claim.chosen && claim.asked.wait_ms > 0;
    until.saturating_add(if keeps { PLACE_KEPT } else { 0 })
}

fn streams<'a>(operations: &[&'a Operation]) -> Vec<Stream<'a>> {
    let mut streams: Vec<Stream<'a>> = Vec::new();
    let mut open: HashMap<_, usize> = HashMap::new();
    for &operation in operations {
        // A client may have two while one replaces the other.
        let stream = (operation.client, operation.said.fencing_token);
        match operation.kind {
            Kind::Hold if operation.outcome == Outcome::Yes => {
                open.insert(stream, streams.len());
                streams.push(Stream { grant: operation, alive: Vec::new(), end: None });
            }
            Kind::Alive => {
                if let Some(&stream) = open.get(&stream) {
                    streams[stream].alive.push(operation);
                }
            }
            Kind::HoldEnd => {
                if let Some(stream) = open.remove(&stream) {
                    streams[stream].end = Some(operation);
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
    let seen = match (operation.answered, operation.left()) {
        (Some(answered), _) => answered,
        // Where the link was struck as well, the service may not have heard of it.
        (None, Some(gone)) if !context.client_disturbed(operation.sent, gone + SECOND) => gone,
        (None, gone) => waited.max(gone.unwrap_or_default()),
    };
    context.settled(seen)
}
