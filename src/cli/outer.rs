//! The leases of the `exec` around this process, as its environment names them. A claim on such a key
//! would wait for its own parent, which waits for its COMMAND.

use tokio::time::sleep;

use crate::cli::claimant::{Absence, Contention, PAUSE, Unanswered};
use crate::cli::clock::Moment;
use crate::cli::exit::Failure;
use crate::client::{Client, ClientError, LeaseId};
use crate::lock::key::LockKey;
use crate::lock::slots::{Share, Slots};
use crate::lock::token::{FencingToken, LeaseToken};

/// The variables with what COMMAND is told of its lease: its key, token, fencing token and slot.
pub(super) const KEY: &str = "LOCK_KEY";
pub(super) const TOKEN: &str = "LOCK_TOKEN";
pub(super) const FENCING_TOKEN: &str = "LOCK_FENCING_TOKEN";
pub(super) const SLOT: &str = "LOCK_SLOT";

/// The variable with a line for each lease of COMMAND: its fencing token and its key.
pub(super) const FENCING_TOKENS: &str = "LOCK_FENCING_TOKENS";

/// The variable with a line for each lease of each `exec` around a process, outermost first.
pub(super) const OUTER: &str = "LOCK_OUTER";

/// A lease of an outer `exec`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OuterLease {
    pub(super) fencing_token: FencingToken,
    pub(super) token: LeaseToken,
    pub(super) share: Share,
    pub(super) key: LockKey,
}

/// A lease of an outer `exec` beside a claim on its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// The outer one has the slots, and as many units at least: the claim needs no lease of its own.
    Within,
    /// They exclude each other.
    InTheWay,
    /// They may have the key side by side.
    Apart,
}

impl OuterLease {
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.splitn(6, ' ');
        Some(Self {
            fencing_token: FencingToken::from_number(words.next()?.parse().ok()?)?,
            token: LeaseToken::parse(words.next()?).ok()?,
            share: Share {
                slots: Slots::from_number(words.next()?.parse().ok()?)?,
                units: words.next()?.parse().ok()?,
                slot: Some(words.next()?.parse().ok()?).filter(|slot| *slot != 0),
            },
            key: LockKey::parse(words.next()?).ok()?,
        })
    }

    /// The line that is parsed; a lease without a slot has slot 0.
    pub(super) fn line(&self) -> String {
        let Self { fencing_token, token, share, key } = self;
        let (slots, slot) = (share.slots.number(), share.slot.unwrap_or_default());
        format!("{fencing_token} {} {slots} {} {slot} {key}", token.expose(), share.units)
    }
}

/// The leases of all `exec` around this process, outermost first.
pub(super) fn leases() -> Vec<OuterLease> {
    of(&std::env::var(OUTER).unwrap_or_default())
}

fn of(lines: &str) -> Vec<OuterLease> {
    lines.lines().filter_map(OuterLease::parse).collect()
}

/// The lease of an outer `exec` on this key, if it lasts, beside a claim with this share. The service
/// is asked: it may be another one, and the `exec` may have ended.
pub(super) async fn look(
    client: &Client,
    (key, share): (&LockKey, Option<Share>),
    contention: &Contention,
) -> Result<Option<(OuterLease, Standing)>, Failure> {
    for lease in leases().into_iter().rev().filter(|lease| lease.key == *key) {
        if lasts(client, &lease, contention).await? {
            let standing = standing(lease.share, share.unwrap_or_default());
            return Ok(Some((lease, standing)));
        }
    }
    Ok(None)
}

/// Returns true if the lease lasts. An absence of the service is waited out as before any claim.
async fn lasts(
    client: &Client,
    lease: &OuterLease,
    contention: &Contention,
) -> Result<bool, ClientError> {
    let mut absence = Absence::default();
    loop {
        let at = Moment::now();
        let OuterLease { key, token, fencing_token, .. } = lease;
        let named = LeaseId { key, token, fencing_token: Some(*fencing_token) };
        match client.has(named).await {
            Err(error) if error.may_pass() => {
                absence.notes(Unanswered { at, sent: false, was_cut: true });
                if absence.is_too_long(!contention.waits()) {
                    return Err(error);
                }
                sleep(PAUSE).await;
            }
            answer => return answer,
        }
    }
}

fn standing(its: Share, wanted: Share) -> Standing {
    let units = u64::from(its.units) + u64::from(wanted.units);
    match its.slots == wanted.slots && its.units >= wanted.units {
        true => Standing::Within,
        false if its.slots.min(wanted.slots).allows(units) => Standing::Apart,
        false => Standing::InTheWay,
    }
}

#[cfg(test)]
mod tests {
    use super::{Standing, of, standing};
    use crate::lock::slots::{Share, Slots};

    #[test]
    fn the_leases_of_all_exec_around_a_process_are_known() {
        let lines = "5 token-of-the-outermost 1 1 0 a key\n6 token-of-the-inner 8 1 3 b\nnonsense\n\
                     7 token-of-the-inner 1001 1 0 d/e\n";
        let found: Vec<_> = of(lines).iter().map(super::OuterLease::line).collect();
        let expected: Vec<_> = lines.lines().filter(|line| *line != "nonsense").collect();
        assert_eq!(found, expected);
        assert_eq!(of(""), []);
    }

    #[test]
    fn a_claim_needs_no_lease_where_the_outer_one_has_its_share() {
        for (its, wanted, expected) in [
            ((1, 1), (1, 1), Standing::Within),
            ((3, 1), (3, 1), Standing::Within),
            ((1_001, 1), (1_001, 1), Standing::Within),
            ((1_001, 1), (1_000, 1), Standing::Apart),
            ((1, 1), (3, 1), Standing::InTheWay),
            ((1, 1), (1_001, 1), Standing::InTheWay),
            ((3, 1), (1, 1), Standing::InTheWay),
            ((3, 1), (5, 1), Standing::Apart),
            ((8, 3), (8, 3), Standing::Within),
            ((8, 3), (8, 1), Standing::Within),
            ((8, 3), (8, 5), Standing::Apart),
            ((8, 3), (8, 6), Standing::InTheWay),
            ((8, 3), (9, 6), Standing::InTheWay),
        ] {
            let share = |(slots, units)| {
                let slots = Slots::from_number(slots).unwrap();
                Share { slots, units, slot: None }
            };
            assert_eq!(standing(share(its), share(wanted)), expected, "{its:?} {wanted:?}");
        }
    }
}
