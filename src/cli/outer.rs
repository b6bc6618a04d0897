//! The leases of the `exec` around this process, as its environment names them. A claim on such a key
//! would wait for its own parent, which waits for its COMMAND.

use tokio::time::sleep;

use crate::cli::claimant::{Absence, Contention, PAUSE, Unanswered};
use crate::cli::clock::Moment;
use crate::cli::exit::Failure;
use crate::client::{Client, ClientError};
use crate::lock::key::LockKey;
use crate::lock::slots::{Share, Slots};
use crate::wire::StatusBody;

/// The variables with what COMMAND is told of its lease: its key, token, fencing token and slot.
pub(super) const KEY: &str = "LOCK_KEY";
pub(super) const TOKEN: &str = "LOCK_TOKEN";
pub(super) const FENCING_TOKEN: &str = "LOCK_FENCING_TOKEN";
pub(super) const SLOT: &str = "LOCK_SLOT";

/// The variable with a line for each lease of COMMAND: its fencing token and its key.
pub(super) const FENCING_TOKENS: &str = "LOCK_FENCING_TOKENS";

/// The variable with a line for each lease of the `exec` further out, outermost first.
pub(super) const OUTER: &str = "LOCK_OUTER";

/// The slot of a lease without one.
const NONE: &str = "-";

/// A lease of an outer `exec`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct OuterLease {
    pub(super) fencing_token: u64,
    pub(super) token: String,
    pub(super) slot: Option<String>,
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
        let mut words = line.splitn(4, ' ');
        let number = words.next()?;
        let token = words.next()?;
        let slot = words.next()?;
        Some(Self {
            fencing_token: number.parse().ok()?,
            token: token.to_owned(),
            slot: Some(slot.to_owned()).filter(|slot| slot != NONE),
            key: LockKey::parse(words.next()?).ok()?,
        })
    }

    /// The line that is parsed.
    pub(super) fn line(&self) -> String {
        let Self { fencing_token, token, slot, key } = self;
        format!("{fencing_token} {token} {} {key}", slot.as_deref().unwrap_or(NONE))
    }
}

/// The leases of all `exec` around this process, outermost first.
pub(super) fn leases() -> Vec<OuterLease> {
    of(|name| std::env::var(name).unwrap_or_default())
}

fn of(variable: impl Fn(&str) -> String) -> Vec<OuterLease> {
    let mut found: Vec<_> = variable(OUTER).lines().filter_map(OuterLease::parse).collect();
    let key = variable(KEY);
    let token = variable(TOKEN);
    let slot = variable(SLOT);
    for (number, name) in variable(FENCING_TOKENS).lines().filter_map(|line| line.split_once(' ')) {
        let slot = if name == key && !slot.is_empty() { &slot } else { NONE };
        let lease = OuterLease::parse(&format!("{number} {token} {slot} {name}"));
        // One within that of an outer `exec` is there already, with its own token.
        let is_new = |lease: &OuterLease| {
            let same = |one: &OuterLease| {
                (one.fencing_token, &one.key) == (lease.fencing_token, &lease.key)
            };
            !found.iter().any(same)
        };
        found.extend(lease.filter(is_new));
    }
    found
}

/// The lease of an outer `exec` on this key, if it lasts, beside a claim with this share. The service
/// is asked: it may be another one, and the `exec` may have ended. No two leases of a key have one
/// fencing token.
pub(super) async fn look(
    client: &Client,
    (key, share): (&LockKey, Option<Share>),
    contention: &Contention,
) -> Result<Option<(OuterLease, Standing)>, Failure> {
    let mut leases = leases();
    leases.retain(|lease| lease.key == *key);
    if leases.is_empty() {
        return Ok(None);
    }
    let body = answered(client, key, contention).await?;
    let status: StatusBody = serde_json::from_str(&body)?;
    let wanted = share.unwrap_or_default();
    let wanted = (wanted.slots.limit(), wanted.units); // As answers tell it.
    let found = leases.into_iter().rev().find_map(|lease| {
        let its = share_of(&status, lease.fencing_token)?;
        Some((lease, standing(its, wanted)))
    });
    Ok(found)
}

/// The state of the key. An absence of the service is waited out as before any claim.
async fn answered(
    client: &Client,
    key: &LockKey,
    contention: &Contention,
) -> Result<String, ClientError> {
    let mut absence = Absence::default();
    loop {
        let at = Moment::now();
        match client.inspect(key, None).await {
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

/// The slots and the units of the lease with this number, if the key has it.
fn share_of(status: &StatusBody, fencing_token: u64) -> Option<(u16, u16)> {
    if status.fencing_token == Some(fencing_token) {
        return Some((Slots::ALONE.number(), 1));
    }
    let mut leases = status.leases.iter().flatten();
    let its = leases.find(|lease| lease.fencing_token == Some(fencing_token))?;
    Some((its.slots, its.units.unwrap_or(1)))
}

/// Of slots and units.
fn standing(its: (u16, u16), wanted: (u16, u16)) -> Standing {
    match its.0 == wanted.0 && its.1 >= wanted.1 {
        true => Standing::Within,
        false if its.1 + wanted.1 <= its.0.min(wanted.0) => Standing::Apart,
        false => Standing::InTheWay,
    }
}

#[cfg(test)]
mod tests {
    use super::{FENCING_TOKENS, KEY, OUTER, SLOT, Standing, TOKEN, of, share_of, standing};

    #[test]
    fn the_leases_of_all_exec_around_a_process_are_known() {
        let found = of(|name| match name {
            OUTER => "5 outermost - a key\n6 middle 2 b\nnonsense\n".to_owned(),
            KEY => "c".to_owned(),
            TOKEN => "inner".to_owned(),
            SLOT => "3".to_owned(),
            FENCING_TOKENS => "6 b\n7 c\n8 d/e".to_owned(),
            _ => String::new(),
        });
        let lines: Vec<_> = found.iter().map(super::OuterLease::line).collect();
        assert_eq!(lines, ["5 outermost - a key", "6 middle 2 b", "7 inner 3 c", "8 inner - d/e"]);
        assert_eq!(of(|_| String::new()), []);
    }

    #[test]
    fn a_claim_needs_no_lease_where_the_outer_one_has_its_share() {
        for (its, wanted, expected) in [
            ((1, 1), (1, 1), Standing::Within),
            ((3, 1), (3, 1), Standing::Within),
            ((1_000, 1), (1_000, 1), Standing::Within),
            ((1, 1), (3, 1), Standing::InTheWay),
            ((3, 1), (1, 1), Standing::InTheWay),
            ((3, 1), (5, 1), Standing::Apart),
            ((8, 3), (8, 3), Standing::Within),
            ((8, 3), (8, 1), Standing::Within),
            ((8, 3), (8, 5), Standing::Apart),
            ((8, 3), (8, 6), Standing::InTheWay),
            ((8, 3), (9, 6), Standing::InTheWay),
        ] {
            assert_eq!(standing(its, wanted), expected, "{its:?} {wanted:?}");
        }
        let alone = r#"{"key":"k","held":true,"waiters":0,"fencing_token":7}"#;
        let shared = r#"{"key":"k","held":true,"waiters":0,"holders":2,"slots":3,
            "leases":[{"fencing_token":7,"slots":3},{"fencing_token":8,"slots":5,"units":2}]}"#;
        for (json, number, expected) in [
            (alone, 7, Some((1, 1))),
            (alone, 8, None),
            (shared, 7, Some((3, 1))),
            (shared, 8, Some((5, 2))),
            (shared, 9, None),
        ] {
            let status = serde_json::from_str(json).unwrap();
            assert_eq!(share_of(&status, number), expected, "{json}");
        }
    }
}
