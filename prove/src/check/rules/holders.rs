//! All who may hold a key. S4: a request that names its lease is refused only if the others do not allow
//! it, and a look at a shared key counts those who hold it and their units.

use super::{CHANGE, Court};
use crate::check::context::ROLLED_BACK;
use crate::check::lease::Lease;
use crate::check::spans::{Span, Spans};
use crate::history::{Kind, NO_TOKEN, Nanos, Operation, Outcome, Token};

/// A lease, or a question that came to an unknown end.
#[derive(Clone, Copy)]
pub(super) enum Holder<'a> {
    Lease(&'a Lease<'a>),
    Unknown(&'a Operation),
}

/// Returns all who may hold a key, each with the time.
pub(super) fn holders<'c>(court: &Court<'c>) -> Vec<Span<Holder<'c>>> {
    let key = court.key;
    let leases = court.leases.all.iter().map(|lease| Span {
        from: lease.lo,
        until: lease.latest(),
        of: Holder::Lease(lease),
    });
    let unknown = key.operations.all().filter(|span| span.of.is_claim() && span.of.is_unknown());
    let unknown = unknown.map(|span| {
        let Span { from, until, of } = court.perhaps(span);
        Span { from, until, of: Holder::Unknown(of) }
    });
    // A claim of several keys keeps some for a while, and gives them back before it is refused.
    let several = key.operations.all().filter(|span| {
        span.of.asked.several && span.of.is_claim() && span.of.outcome == Outcome::No
    });
    let several = several.map(|Span { from, until, of }| {
        let until = until.saturating_add(court.context.late(until));
        Span { from, until, of: Holder::Unknown(of) }
    });
    leases.chain(unknown).chain(several).collect()
}

impl Holder<'_> {
    /// Returns how many units it has.
    pub(super) fn units(self) -> u16 {
        match self {
            Self::Lease(lease) => lease.units,
            Self::Unknown(operation) => operation.asked_units(),
        }
    }

    /// Returns how many units it allows.
    pub(super) fn allows(self) -> u16 {
        match self {
            Self::Lease(lease) => lease.slots,
            Self::Unknown(operation) => operation.asked_slots(),
        }
    }

    fn token(self) -> Token {
        match self {
            Self::Lease(lease) => lease.token,
            Self::Unknown(operation) => operation.token,
        }
    }
}

pub(super) fn judge(court: &mut Court<'_>) {
    let late = holders(court).into_iter().map(|one| {
        let Holder::Lease(lease) = one.of else { return one };
        let late = court.context.late(one.until.min(lease.by_ttl));
        Span { until: one.until.saturating_add(late), ..one }
    });
    let holders: Spans<Holder<'_>> = late.collect();
    for operation in court.operations() {
        let Some(answered) = operation.answered else { continue };
        let is_refused = operation.outcome == Outcome::No && operation.code == "lock_held";
        if operation.replaces().is_some() && is_refused {
            refused(court, &holders, (operation, answered));
        }
        if operation.kind == Kind::Look && court.key.shared {
            looked(court, &holders, (operation, answered));
        }
    }
}

fn refused(
    court: &mut Court<'_>,
    holders: &Spans<Holder<'_>>,
    (operation, answered): (&Operation, Nanos),
) {
    let (sent, asked, token) = (operation.sent, operation.asked_slots(), operation.token);
    let others = holders.meeting(sent, answered).map(|one| one.of);
    let others = others.filter(|other| other.token() != token || token == NO_TOKEN);
    let (mut units, mut least) = (operation.asked_units(), asked);
    for other in others {
        (units, least) = (units.saturating_add(other.units()), least.min(other.allows()));
    }
    if units <= least {
        let promised = court.context.promises_loss(sent.saturating_sub(ROLLED_BACK), answered);
        let what = format!(
            "token {token} asks for {asked} slots, {units} units are on the key with its own, and it is \
             refused"
        );
        court.find(CHANGE, answered, promised, what);
    }
}

fn looked(
    court: &mut Court<'_>,
    holders: &Spans<Holder<'_>>,
    (look, answered): (&Operation, Nanos),
) {
    let Some(held) = look.said.held else { return };
    let seen = look.said.holders.unwrap_or_else(|| u16::from(held));
    // Where their units are not told, each has one.
    let seen = [seen, look.said.units.unwrap_or(seen)];
    let (mut sure, mut perhaps, mut since) = ([0, 0], [0, 0], look.sent);
    for one in holders.meeting(look.sent, answered) {
        let counts = [1, one.of.units()];
        perhaps = [0, 1].map(|at| perhaps[at] + counts[at]);
        let Holder::Lease(lease) = one.of else { continue };
        if lease.covers(look.sent, answered) {
            (sure, since) = ([0, 1].map(|at| sure[at] + counts[at]), since.min(lease.lo));
        }
    }
    for (at, what) in ["holders", "units"].into_iter().enumerate() {
        let (seen, sure, perhaps) = (seen[at], sure[at], perhaps[at]);
        // A key that is being handed over looks held by one, see I10.
        let many = look.said.holders.is_some() && seen > perhaps;
        let promised = match (seen < sure, many) {
            (true, _) => court.context.promises_keeping(since, answered),
            (_, true) => {
                court.context.promises_loss(look.sent.saturating_sub(ROLLED_BACK), answered)
            }
            _ => continue,
        };
        let what = format!("a look counts {seen} {what}, and there are {sure} to {perhaps}");
        return court.find(CHANGE, answered, promised, what);
    }
}
