//! What a token may do: I6 (a release needs a lease), I7 (a lost lease stays lost), I8 (a token is never
//! refused its own lease), `no` (a definite no is one) and I12 (nothing without the right).

use super::Court;
use super::fencing::ms;
use super::shared;
use crate::check::context::SECOND;
use crate::check::key::{Number, is_claim, is_definite_no, is_lost, is_release};
use crate::check::lease::{Evidence, Lease};
use crate::history::{Kind, Nanos, Operation, Outcome, Token};

pub(super) fn judge(court: &mut Court<'_>) {
    for index in 0..court.key.leases.len() {
        revived(court, index);
    }
    let mut leases: Vec<(Token, usize)> =
        (0..).zip(&court.key.leases).map(|(index, lease)| (lease.token, index)).collect();
    leases.sort_unstable();
    for operations in court.key.tokens() {
        let token = operations[0].0;
        let start = leases.partition_point(|entry| entry.0 < token);
        let end = leases.partition_point(|entry| entry.0 <= token);
        let mine: Vec<&Lease> =
            leases[start..end].iter().map(|entry| &court.key.leases[entry.1]).collect();
        Holder::new(mine).judge(court, operations);
    }
    for operation in &court.key.operations {
        secrets(court, operation);
    }
}

/// How long after a loss leases may be there again that were over: longer than any TTL of a driver.
pub(super) const ROLLED_BACK: Nanos = 10 * SECOND;

/// The leases of one token.
pub(super) struct Holder<'l> {
    /// In the order of their numbers.
    leases: Vec<&'l Lease>,
    /// The latest end of each of these and those before it.
    latest: Vec<Nanos>,
    /// Until when each of these, or one before it, lasts for certain.
    surely: Vec<Nanos>,
    /// When each of these, or one after it, can have begun.
    starts: Vec<Nanos>,
}

impl<'l> Holder<'l> {
    fn new(leases: Vec<&'l Lease>) -> Self {
        let mut latest: Vec<Nanos> = Vec::with_capacity(leases.len());
        let mut surely: Vec<Nanos> = Vec::with_capacity(leases.len());
        for lease in &leases {
            latest.push(latest.last().copied().unwrap_or_default().max(lease.latest()));
            surely.push(surely.last().copied().unwrap_or_default().max(lease.sure));
        }
        let mut starts: Vec<Nanos> = leases.iter().map(|lease| lease.lo).collect();
        for index in (1..starts.len()).rev() {
            starts[index - 1] = starts[index - 1].min(starts[index]);
        }
        Self { leases, latest, surely, starts }
    }

    /// Returns how many leases there are up to the last one that can have begun by then.
    fn begun(&self, by: Nanos) -> usize {
        self.starts.partition_point(|&start| start <= by)
    }

    fn judge(&self, court: &mut Court<'_>, operations: &[(Token, Number)]) {
        // The last definite no, and until when questions before it may have an effect.
        let mut no: Option<&Operation> = None;
        for &(_, number) in operations {
            let operation = court.key.operation(number);
            if is_release(operation) {
                self.released(court, operation);
            }
            if is_lost(operation) || is_definite_no(operation) {
                self.refused(court, operation);
            }
            if let Some(no) = no.filter(|no| no.answered < Some(operation.sent)) {
                after_no(court, no, operation);
            }
            self.looked(court, operation);
            if court.key.shared {
                shared::of_token(court, self, operation);
            }
            if is_definite_no(operation) && no.is_none_or(|no| no.answered < operation.answered) {
                no = Some(operation);
            }
        }
    }

    /// Returns a lease that existed all through that time.
    pub(super) fn during(&self, from: Nanos, until: Nanos) -> Option<&'l Lease> {
        let begun = self.begun(from);
        let near = self.leases[..begun].iter().zip(&self.surely[..begun]).rev();
        let mut near = near.take_while(|(_, surely)| **surely >= until);
        near.find(|(lease, _)| lease.covers(from, until)).map(|(lease, _)| *lease)
    }

    /// Returns whether there may have been a lease at some time between these, of that number if given.
    pub(super) fn perhaps(
        &self,
        court: &Court<'_>,
        from: Nanos,
        until: Nanos,
        fence: Option<u64>,
    ) -> bool {
        let late = court.context.late(from);
        let near = (0..self.begun(until)).rev();
        let mut near = near.take_while(|&index| self.latest[index].saturating_add(late) >= from);
        near.any(|index| {
            let lease = self.leases[index];
            let meant = fence.is_none_or(|fence| lease.fence == fence);
            // The allowance is for leases that end by themselves.
            let alive = lease.over >= from && lease.by_ttl.saturating_add(late) >= from;
            meant && lease.lo <= until && alive
        })
    }

    /// I6: a release that went well has released something.
    fn released(&self, court: &mut Court<'_>, release: &Operation) {
        let (key, sent) = (court.key, release.sent);
        let answered = release.answered.unwrap_or(sent);
        let fence = release.asked.fencing_token;
        if let Some(lease) = self.during(sent, answered)
            && let Some(named) = fence
            && lease.fence != named
        {
            let promised = court.context.promises_keeping(lease.lo, answered);
            let what = format!("a release of lease {named} went well during lease {}", lease.fence);
            return court.find("I6", answered, promised, what);
        }
        let alive = self.perhaps(court, sent, answered, fence);
        if alive || may_have_something(court, release.token, (sent, answered)) {
            return;
        }
        let never = self.leases.is_empty() && key.near(release.token, 0, answered).count() <= 1;
        let had = if never { "never had anything" } else { "had nothing any more" };
        // A store that was set back may have an earlier lease again.
        let lost = self.leases[..self.begun(sent)].iter().map(|lease| lease.latest()).min();
        let promised = court.context.promises_loss(lost.unwrap_or(sent).min(sent), answered);
        let what = format!("token {} released the key and {had}", release.token);
        court.find("I6", answered, promised, what);
    }

    /// I8 and I9: whoever holds the key is not told that it does not.
    fn refused(&self, court: &mut Court<'_>, operation: &Operation) {
        let Some(answered) = operation.answered else { return };
        let Some(lease) = self.during(operation.sent, answered) else { return };
        // The others may not allow it other slots, see `shared`.
        if court.key.shared && is_claim(operation) && operation.code == "lock_held" {
            return;
        }
        let named = operation.asked.fencing_token;
        if named.is_some_and(|named| named != lease.fence) {
            return;
        }
        let (from, code) = (lease.lo, &operation.code);
        let promised = court.context.promises_keeping(from, answered);
        let what = format!("token {} holds lease {} and was told {code}", lease.token, lease.fence);
        court.find(if is_claim(operation) { "I8" } else { "I9" }, answered, promised, what);
    }

    /// I9 and I12: a look with a token tells whether it holds the key.
    fn looked(&self, court: &mut Court<'_>, look: &Operation) {
        let (Kind::Look, Outcome::Yes, Some(answered)) = (look.kind, look.outcome, look.answered)
        else {
            return;
        };
        let (token, sent) = (look.token, look.sent);
        // On Redlock a node that does not answer may have the vote that decides.
        let disturbed = court.context.redlock() && court.context.disturbed(sent, answered);
        if look.said.mine == Some(false)
            && let Some(lease) = self.during(sent, answered)
        {
            let promised = !disturbed && court.context.promises_keeping(lease.lo, answered);
            let what = format!("token {token} holds lease {} and sees another one", lease.fence);
            court.find("I9", answered, promised, what);
        }
        if look.said.mine == Some(true)
            && !self.perhaps(court, sent, answered, None)
            && !may_have_something(court, token, (sent, answered))
        {
            // An old copy of the data brings leases back, for what was left of them.
            let before = sent.saturating_sub(ROLLED_BACK);
            let promised = !disturbed && court.context.promises_loss(before, answered);
            let what = format!("token {token} has nothing, and a look says that it holds the key");
            court.find("I12", answered, promised, what);
        }
    }
}

/// Returns whether some question of a token may have brought it a lease or a place that it has in that time.
fn may_have_something(court: &Court<'_>, token: Token, (from, until): (Nanos, Nanos)) -> bool {
    let key = court.key;
    let far = from.saturating_sub(crate::check::context::PLACE_KEPT);
    let mut near = key.near(token, far, until).map(|number| (number, key.operation(number)));
    let waits = near.any(|(number, operation)| {
        is_claim(operation)
            && match operation.outcome {
                Outcome::Yes => key.settled(number) >= from,
                _ => operation.asked.wait_ms > 0 && key.in_line(number) >= from,
            }
    });
    waits || unknown_lease(court, token, (from, until))
}

/// Returns whether a question of a token that came to an unknown end may have brought it a lease.
pub(super) fn unknown_lease(
    court: &Court<'_>,
    token: Token,
    (from, until): (Nanos, Nanos),
) -> bool {
    let key = court.key;
    // Leases of which nobody was told last as long as was asked for, a day at most.
    let mut near = key.near(token, 0, until).take(256);
    near.any(|number| {
        let operation = key.operation(number);
        let unknown = operation.outcome == Outcome::Unknown;
        let prolongs = is_claim(operation) || operation.kind == Kind::Refresh;
        unknown && prolongs && key.perhaps(court.context, number).1 >= from
    }) || key.near(token, 0, until).nth(256).is_some()
}

/// `no`: after a definite no its token has nothing, unless another question with it was under way.
fn after_no(court: &mut Court<'_>, no: &Operation, operation: &Operation) {
    let has = match operation.kind {
        Kind::Look => operation.said.mine == Some(true),
        Kind::Refresh => operation.outcome == Outcome::Yes,
        // An event of a stream may have been kept back until after the no.
        Kind::Alive | Kind::Acquire | Kind::Hold => false,
        Kind::HoldEnd | Kind::Release | Kind::ForceRelease => false,
    };
    let Some(answered) = operation.answered.filter(|_| has) else { return };
    let key = court.key;
    let mut others = key.near(no.token, no.sent, answered).map(|number| key.operation(number));
    if others.any(|other| is_claim(other) && !std::ptr::eq(other, no)) {
        return;
    }
    let no_at = no.answered.unwrap_or(no.sent);
    let promised = court.context.promises_loss(no.sent, answered);
    let what = format!(
        "token {} was told {} and held the key {} ms later",
        no.token,
        no.code,
        ms(operation.sent - no_at)
    );
    court.find("no", answered, promised, what);
}

/// I7: after a lease was given up, lost or succeeded nothing goes well under its number; I9: nor long after
/// its TTL.
fn revived(court: &mut Court<'_>, index: usize) {
    let lease = &court.key.leases[index];
    let allowed = court.context.late(lease.by_ttl);
    let mut found = Vec::new();
    for one in court.key.evidence_of(lease) {
        // In an outage a stream goes on while its TTL lasts, and cannot know what became of its lease.
        let knows = one.kind != Kind::Alive || !court.context.outage(lease.over, one.to);
        if one.from > lease.over && knows {
            found.push(("I7", one.clone(), lease.over));
            break;
        }
    }
    if court.key.evidence_of(lease).iter().all(|one| !is_claim(court.key.operation(one.number)))
        && let Some(one) = from_nowhere(court, lease)
    {
        found.push(("I7", one, lease.hi));
    }
    late_evidence(court, lease, allowed, &mut found);
    for (rule, one, lost) in found {
        let promised = court.context.promises_loss(lost.min(one.from), one.to);
        let after = one.from.saturating_sub(lost) / 1_000;
        let what = format!(
            "lease {} (token {}) was over, and {:?} went well {after} us later",
            lease.fence, lease.token, one.kind
        );
        court.find(rule, one.to, promised, what);
    }
}

/// Returns the answer by which a lease is known that no question can have begun.
fn from_nowhere(court: &Court<'_>, lease: &Lease) -> Option<Evidence> {
    let key = court.key;
    let one = key.evidence_of(lease).iter().min_by_key(|one| one.to)?;
    let mut before = key.near(lease.token, 0, one.to).map(|number| key.operation(number));
    let begun =
        before.any(|operation| is_claim(operation) && operation.outcome == Outcome::Unknown);
    (!begun && !court.context.redlock()).then(|| one.clone())
}

/// I9: an answer long after the TTL of everything that was asked before it.
fn late_evidence(
    court: &Court<'_>,
    lease: &Lease,
    allowed: Nanos,
    found: &mut Vec<(&'static str, Evidence, Nanos)>,
) {
    let key = court.key;
    let evidence = key.evidence_of(lease);
    if evidence.len() < 2 || evidence.iter().any(|one| one.kind == Kind::Hold) {
        return;
    }
    let mut lasts: Nanos = 0;
    for (index, one) in evidence.iter().enumerate() {
        // Sorted by `from`; whatever was under way before may have prolonged it.
        let operation = key.operation(one.number);
        let took = one.to.saturating_sub(operation.sent);
        let said = operation.said.ttl_ms.unwrap_or_default() * crate::check::context::MS;
        let asked = crate::check::key::asked_ttl(operation);
        let ttl = asked.unwrap_or_else(|| court.context.longest(said, took)).max(said);
        if index > 0 && one.from > lasts.saturating_add(allowed) {
            let mut unknown = key.near(lease.token, lease.lo, one.from);
            let prolonged = unknown.any(|number| key.operation(number).outcome == Outcome::Unknown);
            if !prolonged && court.context.stretched(lease.lo, lasts) == lasts {
                found.push(("I9", one.clone(), lasts));
                return;
            }
        }
        lasts = lasts.max(one.to.saturating_add(ttl));
    }
}

/// I12: whoever has no right gets nothing, and no answer shows another's token.
fn secrets(court: &mut Court<'_>, operation: &Operation) {
    let at = operation.answered.unwrap_or(operation.sent);
    if operation.asked.unauthorized && operation.outcome == Outcome::Yes {
        let what = format!("{:?} went well without the right API key", operation.kind);
        court.find("I12", at, true, what);
    }
    if operation.said.leaked {
        let what = format!("an answer to {:?} showed another's token", operation.kind);
        court.find("I12", at, true, what);
    }
}
