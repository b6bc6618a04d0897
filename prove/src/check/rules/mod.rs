//! The invariants, and where each is judged. `I` are those of all keys, and `S` those of keys that
//! leases share. The [rules of a lease](../../../../docs/rules.md) say why they hold.

mod answers;
mod fencing;
mod holders;
mod names;
mod order;
mod revival;
mod several;
mod succession;
mod together;
mod tokens;
mod waiting;

use crate::check::context::{Context, DEFAULT_TTL};
use crate::check::key::{Effect, Key};
use crate::check::lease::Leases;
use crate::check::report::{Report, Violation};
use crate::history::{Kind, Left, Nanos, Operation};

/// No two clients may rely on one key (`together`), nor on more than is safe (`succession`).
const EXCLUSION: &str = "I1 exclusion";
/// The number of a lease is its own, above those before it, and does not change (`fencing`).
const NUMBERS: &str = "I2 numbers";
/// First in line, first served (`order`).
const ORDER: &str = "I3 order";
/// A key that was given up goes to a claim that waits (`waiting`).
const WAKE_UP: &str = "I4 wake-up";
/// A client that has gone neither keeps a key (`waiting`) nor is counted as a waiter (`answers`).
const GHOST: &str = "I5 ghost";
/// A release ends the lease of its token, and no other (`tokens`, `succession`).
const RELEASE: &str = "I6 release";
/// A lease that is over does not come back (`revival`).
const REVIVAL: &str = "I7 revival";
/// A token is not refused its own lease (`tokens`), and has no second one (`together`, `names`).
const REPEAT: &str = "I8 repeat";
/// A lease ends neither early (`succession`, `tokens`, `answers`) nor late (`waiting`, `revival`).
const END: &str = "I9 end";
/// A refusal, and a look that says `held`, has a holder or a claim in line behind it (`answers`).
const REFUSAL: &str = "I10 refusal";
/// One sequence of leases explains all answers (`succession`).
const SEQUENCE: &str = "I11 sequence";
/// No answer without the right to it, and none that shows the token of another (`tokens`).
const RIGHTS: &str = "I12 rights";
/// Only a request that names a lease changes more of it than its end, and in its place begins one with
/// another number (`names`).
const NAMES: &str = "I13 names";
/// All who hold a key allow so many (`together`), and each shares it as it asked for (`names`).
const SHARE: &str = "S1 share";
/// A slot has one holder (`together`), and a lease keeps its slot (`names`).
const SLOT: &str = "S2 slot";
/// As I2 and I8.
const SHARED_NUMBERS: &str = "S3 numbers";
/// A replacement is refused for a reason, and a look counts all holders (`holders`); a token without a
/// lease is not told of one (`tokens`).
const CHANGE: &str = "S4 change";
/// Nobody waits for a key that has room for all who wait (`waiting`).
const ROOM: &str = "S5 room";
/// Claims of several keys neither wait for each other nor keep what they do not get (`several`).
const SEVERAL: &str = "M1 several";
/// A definite refusal is one: its token has nothing (`tokens`).
const DEFINITE: &str = "no definite refusal is a grant";
/// Nothing remains when all leases are over.
const LEFT: &str = "left";

/// One key, and where what is found goes.
pub(super) struct Court<'c> {
    context: &'c Context<'c>,
    key: &'c Key<'c>,
    leases: &'c Leases<'c>,
    report: &'c mut Report,
}

impl<'c> Court<'c> {
    fn find(&mut self, rule: &'static str, at: Nanos, promised: bool, what: String) {
        let key = self.key.key;
        self.report.violations.push(Violation { rule, key, at, what, promised });
    }

    fn operations(&self) -> impl Iterator<Item = &'c Operation> + use<'c> {
        self.key.operations.all().map(|span| span.of)
    }

    /// Returns a question that came to an unknown end, from when until when its lease may exist.
    fn perhaps(&self, asked: Effect<'c>) -> Effect<'c> {
        let (key, token) = (self.key, asked.of.token);
        let Effect { from, mut until, of } = key.perhaps(self.context, asked);
        // A replacement that is taken back ends when the lease would have that it replaced.
        let since = if of.replaces().is_some() { 0 } else { from };
        if of.replaces().is_some() {
            let leases = self.leases.all.iter().filter(|it| it.token == token && it.lo < until);
            until = leases.map(|lease| lease.by_ttl).fold(until, Nanos::max);
        }
        // Others that nobody heard of may have prolonged it.
        let lasts = |it: Effect<'_>| match it.of.kind {
            Kind::Refresh => it.until.saturating_add(it.of.asked_ttl().unwrap_or(DEFAULT_TTL)),
            _ => key.perhaps(self.context, it).until,
        };
        loop {
            let near = key.near(token, since, until);
            let near = near.filter(|it| it.of.is_unknown() && it.of.prolongs());
            let later = near.map(lasts).fold(until, Nanos::max);
            if later == until {
                return Effect { from, until, of };
            }
            until = later;
        }
    }

    /// Returns the rule of exclusive keys or that of shared ones.
    fn either(&self, exclusive: &'static str, shared: &'static str) -> &'static str {
        if self.key.shared { shared } else { exclusive }
    }
}

/// Holds one key against all rules.
pub(super) fn judge(
    context: &Context<'_>,
    key: &Key<'_>,
    leases: &Leases<'_>,
    report: &mut Report,
) {
    let mut court = Court { context, key, leases, report };
    count(&mut court);
    fencing::judge(&mut court);
    together::judge(&mut court);
    names::judge(&mut court);
    holders::judge(&mut court);
    if !key.shared {
        succession::judge(&mut court);
    }
    order::judge(&mut court);
    tokens::judge(&mut court);
    revival::judge(&mut court);
    let stretches = waiting::judge(&mut court);
    answers::judge(&mut court, &stretches);
    several::judge(&mut court);
}

fn count(court: &mut Court<'_>) {
    let (leases, report) = (&court.leases.all, &mut *court.report);
    let waited = leases.iter().filter(|lease| lease.first.has_waited()).count();
    let replaced = leases.iter().filter(|lease| lease.first.replaces().is_some()).count();
    report.count("grants", leases.len());
    report.count("replaced", replaced);
    let several = leases.iter().filter(|lease| lease.first.asked.several).count();
    report.count("several_grants", several);
    report.count("handoffs", waited);
    report.count("expiries", leases.iter().filter(|lease| lease.cap == Nanos::MAX).count());
    if court.key.shared {
        report.count("shared_keys", 1);
        report.count("shared_grants", leases.len());
        report.count("shared_handoffs", waited);
        report.count("shared_replaced", replaced);
        return; // Leases that hold together need no order.
    }
    let unordered = leases.windows(2).filter(|pair| pair[0].hi >= pair[1].lo);
    report.count("unordered_grants", unordered.count());
}

/// `left`: something remained although all leases and their bookkeeping should be over.
pub(super) fn left(left: &Left, report: &mut Report) {
    if left.count > left.allowed {
        let what = format!("{} {} remained, {} may", left.count, left.what, left.allowed);
        report.violations.push(Violation { rule: LEFT, key: 0, at: 0, what, promised: true });
    }
}
