//! S4, as far as all holders of a shared key decide it: a change of share that names its lease is
//! refused only if the others do not allow it, and a look counts those who hold the key.

use super::Court;
use super::tokens::ROLLED_BACK;
use crate::check::key::{Number, is_claim, is_refused_change};
use crate::check::share::{Share, bounds};
use crate::history::{Kind, MOST_SLOTS, NO_TOKEN, Nanos, Operation, Outcome, Token};

/// Somebody who may hold the key in a time.
struct Perhaps {
    from: Nanos,
    until: Nanos,
    token: Token,
    lease: Option<usize>,
    /// What it allows, if it is no lease of which anybody was told.
    slots: u16,
}

/// All of them, as they began; each with the longest stay so far.
struct Holders(Vec<(Nanos, Perhaps)>);

impl Holders {
    fn of(court: &Court<'_>) -> Self {
        let key = court.key;
        let leases = key.leases.iter().enumerate().map(|(index, lease)| {
            let until = lease.latest();
            let until = until.saturating_add(court.context.late(until.min(lease.by_ttl)));
            Perhaps { from: lease.lo, until, token: lease.token, lease: Some(index), slots: 0 }
        });
        let mut all: Vec<Perhaps> = leases.collect();
        for (number, operation) in (0 as Number..).zip(&key.operations) {
            if is_claim(operation) && operation.outcome == Outcome::Unknown {
                let (from, until) = key.perhaps(court.context, number);
                let slots = operation.asked.slots.unwrap_or(1).min(MOST_SLOTS);
                all.push(Perhaps { from, until, token: operation.token, lease: None, slots });
            }
        }
        all.sort_unstable_by_key(|one| one.from);
        let mut longest = 0;
        let reach = all.into_iter().map(|one| {
            longest = one.until.max(longest);
            (longest, one)
        });
        Self(reach.collect())
    }

    /// Returns those who may hold the key at some time between these.
    fn between(&self, from: Nanos, until: Nanos) -> impl Iterator<Item = &Perhaps> {
        let end = self.0.partition_point(|one| one.1.from <= until);
        let near = self.0[..end].iter().rev().take_while(move |one| one.0 >= from);
        near.map(|one| &one.1).filter(move |one| one.until >= from)
    }
}

pub(super) fn judge(court: &mut Court<'_>, told: &[Vec<Share>]) {
    let holders = Holders::of(court);
    for operation in &court.key.operations {
        let Some(answered) = operation.answered else { continue };
        if is_refused_change(operation) && operation.asked.fencing_token.is_some() {
            refused(court, &holders, told, (operation, answered));
        }
        if operation.kind == Kind::Look && operation.outcome == Outcome::Yes {
            looked(court, &holders, (operation, answered));
        }
    }
}

fn refused(
    court: &mut Court<'_>,
    holders: &Holders,
    told: &[Vec<Share>],
    (operation, answered): (&Operation, Nanos),
) {
    let Some(asked) = operation.asked.slots else { return };
    let sent = operation.sent;
    let since = sent.saturating_sub(court.context.late(sent));
    let (mut count, mut least) = (1, asked.min(MOST_SLOTS));
    for other in holders.between(sent, answered) {
        if other.token == operation.token && other.token != NO_TOKEN {
            continue;
        }
        let allows = other.lease.map_or(Some(other.slots), |lease| {
            bounds(&told[lease], since, answered).map(|bounds| bounds.least)
        });
        (count, least) = (count + 1, least.min(allows.unwrap_or(1)));
    }
    if count <= least {
        let promised = court.context.promises_loss(sent.saturating_sub(ROLLED_BACK), answered);
        let what = format!(
            "token {} asks for {asked} slots, {} others may hold the key, and it is refused",
            operation.token,
            count - 1
        );
        court.find("S4", answered, promised, what);
    }
}

fn looked(court: &mut Court<'_>, holders: &Holders, (look, answered): (&Operation, Nanos)) {
    let Some(held) = look.said.held else { return };
    let seen = look.said.holders.map_or_else(|| usize::from(held), usize::from);
    let (mut sure, mut perhaps, mut since) = (0, 0, look.sent);
    for one in holders.between(look.sent, answered) {
        perhaps += 1;
        let lease = one.lease.map(|index| &court.key.leases[index]);
        if let Some(lease) = lease.filter(|lease| lease.covers(look.sent, answered)) {
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
    court.find("S4", answered, promised, what);
}
