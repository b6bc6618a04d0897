//! All who may hold a shared key. S4: a change of share that names its lease is refused only if the others
//! do not allow it, and a look counts those who hold the key.

use super::{CHANGE, Court};
use crate::check::context::ROLLED_BACK;
use crate::check::share::bounds;
use crate::check::spans::Spans;
use crate::history::{Kind, NO_TOKEN, Nanos, Operation, Outcome};

/// A lease by its index, or a question that came to an unknown end .
#[derive(Clone, Copy)]
pub(super) enum Holder<'a> {
    Lease(usize),
    Unknown(&'a Operation),
}

/// Returns all who may hold a key, each with the time.
pub(super) fn holders<'c>(court: &Court<'c>) -> Vec<(Nanos, Nanos, Holder<'c>)> {
    let (key, leases) = (court.key, court.leases.all.iter().enumerate());
    let leases = leases.map(|(index, lease)| (lease.lo, lease.latest(), Holder::Lease(index)));
    let unknown = key.numbered().filter(|(_, one)| one.is_claim() && one.is_unknown());
    let unknown = unknown.map(|(number, operation)| {
        let (from, until) = key.perhaps(court.context, number);
        (from, until, Holder::Unknown(operation))
    });
    leases.chain(unknown).collect()
}

/// Returns the least that a holder may allow in that time.
pub(super) fn allows(court: &Court<'_>, holder: Holder<'_>, from: Nanos, until: Nanos) -> u16 {
    match holder {
        Holder::Lease(index) => {
            bounds(&court.shares[index], from, until).map_or(1, |bounds| bounds.least)
        }
        Holder::Unknown(operation) => operation.asked_slots(),
    }
}

pub(super) fn judge(court: &mut Court<'_>) {
    let late = holders(court).into_iter().map(|(from, until, of)| {
        let ends = match of {
            Holder::Lease(index) => until.min(court.leases.all[index].by_ttl),
            Holder::Unknown(_) => return (from, until, of),
        };
        (from, until.saturating_add(court.context.late(ends)), of)
    });
    let holders: Spans<Holder<'_>> = late.collect();
    for operation in &court.key.operations {
        let Some(answered) = operation.answered else { continue };
        if operation.is_refused_change() && operation.asked.fencing_token.is_some() {
            refused(court, &holders, (operation, answered));
        }
        if operation.kind == Kind::Look && operation.outcome == Outcome::Yes {
            looked(court, &holders, (operation, answered));
        }
    }
}

fn refused(
    court: &mut Court<'_>,
    holders: &Spans<Holder<'_>>,
    (operation, answered): (&Operation, Nanos),
) {
    if operation.asked.slots.is_none() {
        return;
    }
    let (sent, asked, token) = (operation.sent, operation.asked_slots(), operation.token);
    let since = sent.saturating_sub(court.context.late(sent));
    let others = holders.meeting(sent, answered).filter(|one| {
        let other = match one.of {
            Holder::Lease(index) => court.leases.all[index].token,
            Holder::Unknown(other) => other.token,
        };
        other != token || token == NO_TOKEN
    });
    let (mut count, mut least) = (1, asked);
    for other in others {
        (count, least) = (count + 1, least.min(allows(court, other.of, since, answered)));
    }
    if count <= least {
        let promised = court.context.promises_loss(sent.saturating_sub(ROLLED_BACK), answered);
        let others = count - 1;
        let what = format!(
            "token {token} asks for {asked} slots, {others} others may hold the key, and it is refused"
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
    let seen = look.said.holders.map_or_else(|| usize::from(held), usize::from);
    let (mut sure, mut perhaps, mut since) = (0, 0, look.sent);
    for one in holders.meeting(look.sent, answered) {
        perhaps += 1;
        let Holder::Lease(index) = one.of else { continue };
        let lease = &court.leases.all[index];
        if lease.covers(look.sent, answered) {
            (sure, since) = (sure + 1, since.min(lease.lo));
        }
    }
    // A key that is being handed over looks held by one, see I10.
    let many = look.said.holders.is_some() && seen > perhaps;
    let promised = match (seen < sure, many) {
        (true, _) => court.context.promises_keeping(since, answered),
        (_, true) => court.context.promises_loss(look.sent.saturating_sub(ROLLED_BACK), answered),
        _ => return,
    };
    let what = format!("a look counts {seen} holders, and there are {sure} to {perhaps}");
    court.find(CHANGE, answered, promised, what);
}
