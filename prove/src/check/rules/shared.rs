//! Keys that leases share. S1: all who hold the key allow so many. S2: a slot has one holder. S3: a lease
//! that begins anew has another number, and no other has. S4: a change of share is refused for a reason.
//!
//! S5: nobody waits while there is room.

use std::collections::{HashMap, HashSet};

use super::tokens::{Holder, ROLLED_BACK, unknown_lease};
use super::{Court, room, served};
use crate::check::key::{is_claim, is_refused_change};
use crate::check::lease::Lease;
use crate::check::share::{Bounds, Share, bounds, shares, successors};
use crate::history::{Kind, MOST_SLOTS, NO_TOKEN, Nanos, Operation, Outcome, SHARED};

/// How long a request may count as older than what happened before a step back of Redis' clock.
const OLDER: Nanos = 20_000_000_000;

pub(super) fn judge(court: &mut Court<'_>) {
    let told: Vec<Vec<Share>> =
        court.key.leases.iter().map(|lease| shares(court.key, lease)).collect();
    count(court, &told);
    together(court, &told);
    for (index, told) in told.iter().enumerate() {
        within_a_lease(court, index, told);
    }
    for operation in &court.key.operations {
        as_asked(court, operation);
    }
    room::judge(court, &told);
    served::judge(court, &told);
}

fn count(court: &mut Court<'_>, told: &[Vec<Share>]) {
    let (key, report) = (court.key, &mut *court.report);
    let asked = |one: &&&Operation| !matches!(one.kind, Kind::Alive | Kind::HoldEnd);
    report.count("shared_keys", 1);
    report.count("shared_operations", key.operations.iter().filter(asked).count());
    let refused = key.operations.iter().filter(|operation| is_refused_change(operation));
    report.count("shared_refused_changes", refused.count());
    report.count("shared_grants", key.leases.len());
    for (lease, told) in key.leases.iter().zip(told) {
        let first = key.operation(lease.first);
        let waited = first.asked.wait_ms > 0 && first.said.waited_ms.is_some_and(|ms| ms > 0);
        report.count("shared_handoffs", usize::from(waited));
        let told: Vec<_> = told.iter().filter(|share| share.told).collect();
        let changed = told.windows(2).filter(|pair| pair[0].slots != pair[1].slots);
        report.count("shared_changes", changed.count());
        let anew = successors(key, lease, lease.latest());
        let anew = anew.into_iter().any(|number| key.operation(number).outcome == Outcome::Yes);
        report.count("shared_anew", usize::from(anew));
    }
}

/// Sweeps over the times in which holders may rely on their leases.
fn together(court: &mut Court<'_>, told: &[Vec<Share>]) {
    let mut relied: Vec<(Nanos, Nanos, usize)> = Vec::new();
    for (index, lease) in court.key.leases.iter().enumerate() {
        let relies = court.key.evidence_of(lease).iter().filter(|one| one.rely > one.to);
        relied.extend(relies.map(|one| (one.to, one.rely, index)));
    }
    relied.sort_unstable();
    let mut active: Vec<(usize, Nanos)> = Vec::new();
    let mut seen = Seen::default();
    for (at, until, index) in relied {
        active.retain(|holder| holder.1 > at);
        match active.iter_mut().find(|holder| holder.0 == index) {
            Some(holder) => holder.1 = until.max(holder.1),
            None => active.push((index, until)),
        }
        if active.len() > 1 {
            let holders = active.iter().map(|holder| holder.0);
            let holders = holders.filter_map(|one| Some((one, bounds(&told[one], at, at)?)));
            seen.moment(court, at, index, &holders.collect::<Vec<_>>());
        }
    }
    court.report.count("shared_together", seen.together.len());
}

/// What was counted and found already.
#[derive(Default)]
struct Seen {
    together: HashSet<usize>,
    /// Leases by which a key had too many holders.
    many: HashSet<usize>,
    pairs: HashSet<(usize, usize)>,
}

impl Seen {
    /// Judges those who hold the key at a moment, at which the holder of the lease `index` was told of it.
    fn moment(
        &mut self,
        court: &mut Court<'_>,
        at: Nanos,
        index: usize,
        holders: &[(usize, Bounds)],
    ) {
        let Some(&(lowest, least)) = holders.iter().min_by_key(|holder| holder.1.most) else {
            return;
        };
        let (count, most) = (holders.len(), usize::from(least.most));
        self.together.insert(index);
        court.report.count("shared_full", usize::from(count == most));
        if count > most && self.many.insert(index) {
            let fence = |index: usize| court.key.leases[index].fence;
            let what = format!(
                "{count} leases may be relied on, the last one {}, and lease {} allows {most}",
                fence(index),
                fence(lowest)
            );
            self.find(court, ("S1", at), holders.iter().map(|holder| holder.0), what);
        }
        let mut slots: HashMap<u16, usize> = HashMap::new();
        let mut tokens: HashMap<u64, usize> = HashMap::new();
        for &(holder, Bounds { slot, .. }) in holders {
            let other = slot.and_then(|slot| slots.insert(slot, holder));
            self.pair(court, ("S2", at), (other, holder), "have one slot");
            let token = court.key.leases[holder].token;
            let other = tokens.insert(token, holder).filter(|_| token != NO_TOKEN);
            self.pair(court, ("S3", at), (other, holder), "are of one token");
        }
    }

    fn pair(
        &mut self,
        court: &mut Court<'_>,
        rule: (&'static str, Nanos),
        (other, holder): (Option<usize>, usize),
        what: &str,
    ) {
        let Some(other) = other else { return };
        if self.pairs.insert((other.min(holder), other.max(holder))) {
            let fence = |index: usize| court.key.leases[index].fence;
            let what = format!("leases {} and {} {what}", fence(other), fence(holder));
            self.find(court, rule, [other, holder].into_iter(), what);
        }
    }

    fn find(
        &self,
        court: &mut Court<'_>,
        (rule, at): (&'static str, Nanos),
        leases: impl Iterator<Item = usize>,
        what: String,
    ) {
        let since = leases.map(|index| court.key.leases[index].lo).min().unwrap_or(at);
        let promised = court.context.promises_exclusion(since, at);
        court.find(rule, at, promised, what);
    }
}

/// S3: a lease that becomes exclusive, or a reader that gets a slot, has another number from then on;
/// S2: a lease keeps its slot.
fn within_a_lease(court: &mut Court<'_>, index: usize, told: &[Share]) {
    let lease = &court.key.leases[index];
    let told: Vec<&Share> = told.iter().filter(|share| share.told).collect();
    for (number, later) in told.iter().enumerate() {
        let earlier = told[..number].iter().filter(|earlier| earlier.to <= later.from);
        for earlier in earlier {
            let promised = court.context.promises_keeping(lease.lo, later.to);
            let (before, after) = (earlier.slots, later.slots);
            if kind(after) < kind(before) {
                let what = format!(
                    "lease {} had {before} slots and then {after} under the same number",
                    lease.fence
                );
                return court.find("S3", later.to, promised, what);
            }
            if kind(before) == kind(after) && earlier.slot != later.slot {
                let (before, after) = (earlier.slot, later.slot);
                let what = format!("lease {} changed its slot: {before:?}, {after:?}", lease.fence);
                return court.find("S2", later.to, promised, what);
            }
        }
    }
}

/// Exclusive, with a slot, or a reader: a number of a lease goes up this list only.
fn kind(slots: u16) -> u16 {
    match slots {
        1 => 0,
        MOST_SLOTS => 2,
        _ => 1,
    }
}

/// S1: a grant has the slots that its question named; S2: it has a slot that fits them.
fn as_asked(court: &mut Court<'_>, operation: &Operation) {
    let told = is_claim(operation) || operation.kind == Kind::Refresh;
    let (true, Outcome::Yes, Some(answered)) = (told, operation.outcome, operation.answered) else {
        return;
    };
    let slots = operation.said.slots.unwrap_or(1);
    // After a step back of Redis' clock a request for more may count as older than a renewal of the lease, and
    // is told the slots that hold.
    let more = operation.asked.slots.is_some_and(|asked| asked > slots);
    let since = operation.sent.saturating_sub(OLDER);
    let promised = !more || court.context.promises_time(since, answered);
    // One of 1000 has a slot, and a reader, of which the same is told, has none.
    let numbered = slots != 1 && operation.asked.slots != Some(SHARED);
    let fits = match operation.said.slot {
        Some(slot) => numbered && slot > 0 && (operation.status != 201 || slot <= slots),
        None => !numbered || slots == MOST_SLOTS,
    };
    if !fits {
        let what = format!("{slots} slots, and slot {:?}", operation.said.slot);
        court.find("S2", answered, promised, what);
    }
    let Some(asked) = operation.asked.slots.filter(|&asked| asked.min(MOST_SLOTS) != slots) else {
        return;
    };
    let mut near = court.key.near(operation.token, operation.sent, answered);
    let others = near.any(|number| {
        let other = court.key.operation(number);
        is_claim(other) && !std::ptr::eq(other, operation)
    });
    // Of several requests with a token the newest one counts.
    if !others {
        let what = format!("{asked} slots were asked for, and {slots} were granted");
        court.find("S1", answered, promised, what);
    }
}

/// S3: a token sees the number of its lease; S4: it is told whether it has one, and keeps what it has.
pub(super) fn of_token(court: &mut Court<'_>, holder: &Holder<'_>, operation: &Operation) {
    let Some(answered) = operation.answered else { return };
    let sent = operation.sent;
    let own = holder.during(sent, answered);
    let sees = is_claim(operation) || operation.kind == Kind::Refresh;
    let sees = sees || operation.said.mine == Some(true);
    if let (Some(lease), Some(said), true) = (own, operation.said.fencing_token, sees)
        && operation.outcome == Outcome::Yes
        && said != lease.fence
    {
        let promised = court.context.promises_exclusion(lease.lo, answered);
        let what = format!("lease {} was shown as lease {said}", lease.fence);
        court.find("S3", answered, promised, what);
    }
    let refused = is_claim(operation) && operation.outcome == Outcome::No;
    if !refused || operation.code != "lock_held" {
        return;
    }
    let mine = is_refused_change(operation);
    if let Some(lease) = own {
        refused_its_own(court, lease, operation);
    } else if mine
        && !holder.perhaps(court, sent, answered, None)
        && !unknown_lease(court, operation.token, (sent, answered))
    {
        let promised = court.context.promises_loss(sent.saturating_sub(ROLLED_BACK), answered);
        let what = format!("token {} has nothing, and is told that it has", operation.token);
        court.find("S4", answered, promised, what);
    }
}

/// S4: a repeat that asks for another share is told that its token has the lease, and every other repeat
/// is granted. One that names the lease is refused only what the others may not allow.
fn refused_its_own(court: &mut Court<'_>, lease: &Lease, operation: &Operation) {
    let answered = operation.answered.unwrap_or(operation.sent);
    let told = shares(court.key, lease);
    let Some(has) = bounds(&told, operation.sent, answered) else { return };
    let asked = operation.asked.slots.map(|asked| asked.min(MOST_SLOTS));
    let named = operation.asked.fencing_token.is_some();
    let changes = asked.is_some_and(|asked| asked != has.least || asked != has.most);
    let may_be_refused = asked.is_some_and(|asked| asked < has.most) || changes && !named;
    let why = match (may_be_refused, is_refused_change(operation)) {
        (true, true) => return,
        (true, false) => "is not told that it has it",
        (false, _) => "is refused it",
    };
    let promised = court.context.promises_keeping(lease.lo, answered);
    let what = format!(
        "token {} has lease {} of {} slots, asks for {:?} and {why}",
        lease.token, lease.fence, has.most, operation.asked.slots
    );
    court.find("S4", answered, promised, what);
}
