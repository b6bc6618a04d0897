//! I7: after a lease was given up, lost or succeeded nothing goes well under its number, and none begins
//! without a claim. I9: nothing goes well long after its TTL, and a stream on the instance that ended its
//! lease by force is told at once.

use super::{Court, END, REVIVAL};
use crate::check::bounds::longest_ttl;
use crate::check::context::{MS, ROLLED_BACK};
use crate::check::lease::{Evidence, Lease};
use crate::history::{Kind, Nanos, Outcome};

pub(super) fn judge(court: &mut Court<'_>) {
    let leases = court.leases;
    for lease in &leases.all {
        // In an outage a stream goes on while its TTL lasts, and cannot know what became of its lease.
        let knows = |one: &&Evidence<'_>| {
            one.of.kind != Kind::Alive || !court.context.outage(lease.over, one.to)
        };
        let after = lease.evidence.iter().find(|one| one.from > lease.over && knows(one));
        if let Some(one) = after {
            revived(court, REVIVAL, (lease, lease.over), one);
        }
        if let Some(one) = from_nowhere(court, lease) {
            revived(court, REVIVAL, (lease, lease.hi), one);
        }
        if let Some((one, lasts)) = late(court, lease) {
            revived(court, END, (lease, lasts), one);
        }
    }
    silent_ends(court);
}

/// I9: a stream hears at once of a forced release on its own instance, also one that came before its grant
/// was told.
fn silent_ends(court: &mut Court<'_>) {
    let key = court.key;
    for stream in &key.streams {
        let grant = stream.grant;
        let (Some(told), Some(fence)) = (grant.answered, grant.said.fencing_token) else {
            continue;
        };
        let forced = key.forced.after(grant.sent, Nanos::MAX).map(|span| span.of).find(|one| {
            let here = one.outcome == Outcome::Yes && one.instance == grant.instance;
            here && one.means() == Some(fence)
        });
        let Some(forced) = forced.and_then(|forced| forced.answered) else { continue };
        let known = told.max(forced);
        let end = stream.end.and_then(|end| end.answered.or(end.gone));
        let silent = end.unwrap_or(known).saturating_sub(known);
        if silent > court.context.handed_late(known) {
            let promised =
                court.context.promises_loss(grant.sent.saturating_sub(ROLLED_BACK), known);
            let ms = silent / MS;
            let what =
                format!("the stream of lease {fence} heard {ms} ms late of its forced release");
            court.find(END, known, promised, what);
        }
    }
}

fn revived(
    court: &mut Court<'_>,
    rule: &'static str,
    (lease, lost): (&Lease<'_>, Nanos),
    one: &Evidence<'_>,
) {
    let promised = court.context.promises_loss(lost.min(one.from), one.to);
    let after = one.from.saturating_sub(lost) / 1_000;
    let what = format!(
        "lease {} (token {}) was over, and {:?} went well {after} us later",
        lease.fence, lease.token, one.of.kind
    );
    court.find(rule, one.to, promised, what);
}

/// Returns the first answer by which a lease is known that no question can have begun.
fn from_nowhere<'l>(court: &Court<'_>, lease: &'l Lease<'l>) -> Option<&'l Evidence<'l>> {
    let one = lease.evidence.iter().min_by_key(|one| one.to)?;
    let mut before = court.key.near(lease.token, 0, one.to).map(|near| near.of);
    let begun = lease.evidence.iter().any(|one| one.of.is_claim())
        || before.any(|operation| operation.is_claim() && operation.is_unknown());
    (!begun).then_some(one)
}

/// Returns an answer long after the TTL of everything that was asked before it, and when that was over.
fn late<'l>(court: &Court<'_>, lease: &'l Lease<'l>) -> Option<(&'l Evidence<'l>, Nanos)> {
    let (context, key) = (court.context, court.key);
    if lease.evidence.iter().any(|one| one.of.kind == Kind::Hold) {
        return None;
    }
    let allowed = context.late(lease.by_ttl);
    let mut lasts: Nanos = 0;
    for (index, one) in lease.evidence.iter().enumerate() {
        // Sorted by `from`; whatever was under way before may have prolonged it.
        if index > 0 && one.from > lasts.saturating_add(allowed) {
            let mut near = key.near(lease.token, lease.lo, one.from);
            let prolonged = near.any(|near| near.of.is_unknown());
            if !prolonged && context.stretched(lease.lo, lasts) == lasts {
                return Some((one, lasts));
            }
        }
        lasts = lasts.max(one.to.saturating_add(longest_ttl(context, one)));
    }
    None
}
