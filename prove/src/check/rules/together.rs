//! Those who may rely on a key at one moment. I1: one, and of shared keys S1: as many as all of them allow.
//! S2: a slot has one of them. I8, of shared keys S3: a token is one of them.

use std::collections::{HashMap, HashSet};

use super::{Court, EXCLUSION, REPEAT, SHARE, SHARED_NUMBERS, SLOT};
use crate::check::share::{Bounds, bounds};
use crate::history::{NO_TOKEN, Nanos};

pub(super) fn judge(court: &mut Court<'_>) {
    let leases = court.leases;
    let mut relied: Vec<(Nanos, Nanos, usize)> = Vec::with_capacity(leases.evidence.len());
    for (index, lease) in leases.all.iter().enumerate() {
        let relies = leases.evidence_of(lease).iter().filter(|one| one.rely > one.to);
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
            let holders =
                holders.filter_map(|one| Some((one, bounds(&court.shares[one], at, at)?)));
            seen.moment(court, at, index, &holders.collect::<Vec<_>>());
        }
    }
    if court.key.shared {
        court.report.count("shared_together", seen.together.len());
    }
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
        if court.key.shared {
            court.report.count("shared_full", usize::from(count == most));
        }
        if count > most && self.many.insert(index) {
            let told = |index: usize| court.leases.all[index].fence;
            let what = format!(
                "{count} leases may be relied on, the last one {}, and lease {} allows {most}",
                told(index),
                told(lowest)
            );
            let rule = court.either(EXCLUSION, SHARE);
            find(court, (rule, at), holders.iter().map(|holder| holder.0), what);
        }
        let mut slots: HashMap<u16, usize> = HashMap::new();
        let mut tokens: HashMap<u64, usize> = HashMap::new();
        for &(holder, Bounds { slot, .. }) in holders {
            let other = slot.and_then(|slot| slots.insert(slot, holder));
            self.pair(court, (SLOT, at), (other, holder), "have one slot");
            let token = court.leases.all[holder].token;
            let other = tokens.insert(token, holder).filter(|_| token != NO_TOKEN);
            let rule = court.either(REPEAT, SHARED_NUMBERS);
            self.pair(court, (rule, at), (other, holder), "are of one token");
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
            let fence = |index: usize| court.leases.all[index].fence;
            let what = format!("leases {} and {} {what}", fence(other), fence(holder));
            find(court, rule, [other, holder].into_iter(), what);
        }
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
