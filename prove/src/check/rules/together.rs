//! Those who may rely on a key at one moment. I1: one, and of shared keys S1: as many units as all of them allow.
//! S2: a slot has one of them. I8, of shared keys S3: a token is one of them.

use std::collections::HashSet;

use super::{Court, EXCLUSION, REPEAT, SHARE, SHARED_NUMBERS, SLOT};
use crate::check::lease::Lease;
use crate::history::{NO_TOKEN, Nanos};

pub(super) fn judge(court: &mut Court<'_>) {
    let leases = &court.leases.all;
    let mut relied: Vec<(Nanos, Nanos, usize)> = Vec::new();
    for (index, lease) in leases.iter().enumerate() {
        let relies = lease.evidence.iter().filter(|one| one.rely > one.to);
        relied.extend(relies.map(|one| (one.to, one.rely, index)));
    }
    relied.sort_unstable();
    let mut active: Vec<(usize, Nanos)> = Vec::new();
    // Leases, and pairs of them, that were found already.
    let (mut many, mut pairs) = (HashSet::new(), HashSet::new());
    for (at, until, index) in relied {
        active.retain(|holder| holder.1 > at);
        match active.iter_mut().find(|holder| holder.0 == index) {
            Some(holder) => holder.1 = until.max(holder.1),
            None => active.push((index, until)),
        }
        if active.len() == 1 {
            continue;
        }
        let holders: Vec<usize> = active.iter().map(|holder| holder.0).collect();
        too_many(court, at, index, &holders, &mut many);
        for (nth, &second) in holders.iter().enumerate() {
            for &first in &holders[..nth] {
                let (one, another) = (&leases[first], &leases[second]);
                let (rule, what) = if one.slot.is_some() && one.slot == another.slot {
                    (SLOT, "have one slot")
                } else if one.token == another.token && one.token != NO_TOKEN {
                    (court.either(REPEAT, SHARED_NUMBERS), "are of one token")
                } else {
                    continue;
                };
                if pairs.insert((first.min(second), first.max(second))) {
                    let what = format!("leases {} and {} {what}", one.fence, another.fence);
                    find(court, (rule, at), [first, second].into_iter(), what);
                }
            }
        }
    }
}

/// Judges how many hold the key at a moment at which the holder of a lease was told of it.
fn too_many(
    court: &mut Court<'_>,
    at: Nanos,
    index: usize,
    holders: &[usize],
    many: &mut HashSet<usize>,
) {
    let leases = &court.leases.all;
    let slots = |lease: &&Lease<'_>| lease.slots;
    let Some(lowest) = holders.iter().map(|one| &leases[*one]).min_by_key(slots) else { return };
    let units: usize = holders.iter().map(|one| usize::from(leases[*one].units)).sum();
    let most = usize::from(lowest.slots);
    if court.key.shared {
        court.report.count("shared_full", usize::from(units == most));
    }
    if units > most && many.insert(index) {
        let what = format!(
            "{} leases with {units} units may be relied on, the last one {}, and lease {} allows {most}",
            holders.len(),
            leases[index].fence,
            lowest.fence
        );
        let rule = court.either(EXCLUSION, SHARE);
        find(court, (rule, at), holders.iter().copied(), what);
    }
}

fn find(
    court: &mut Court<'_>,
    (rule, at): (&'static str, Nanos),
    leases: impl Iterator<Item = usize>,
    what: String,
) {
    let since = leases.map(|index| court.leases.all[index].lo).min().unwrap_or(at);
    let promised = court.context.promises_exclusion(since, at);
    court.find(rule, at, promised, what);
}
