//! A lease of one of several keys, for `--any-of`: a pool where the store has exclusive leases only.

use std::time::Duration;

use crate::cli::claimant::{Absence, Unanswered};
use crate::cli::clock::Moment;
use crate::cli::exec::lease::LeaseKeeper;
use crate::cli::exec::leases::Leases;
use crate::cli::exit;
use crate::cli::exit::Failure;

/// The longest wait in the line of one key before the next is tried.
const TURN: Duration = Duration::from_secs(10);

/// Acquires the lease of one of the keys. Each key is tried once, in a random order; then one after
/// the other is waited for, with a share of the time that is left, and each is tried once more. One
/// key alone is waited for in its line, forever without `wait`.
///
/// Dropping the future leaves the line, but may leave a lease: see `leases::leave`.
pub(super) async fn acquire(
    keepers: &[LeaseKeeper],
    wait: Option<Duration>,
) -> Result<Leases<'_>, Failure> {
    if let [only] = keepers {
        return only.acquire(wait).await.map(|lease| Leases::of(only, lease));
    }
    let until = wait.map(|wait| Moment::now().after(wait));
    let left = || until.map_or(TURN.saturating_mul(2), Moment::left);
    let mut order: Vec<_> = keepers.iter().collect();
    order.sort_unstable_by_key(|keeper| keeper.claimant.token.expose()); // A token is random.
    let mut absence = Absence::default();
    loop {
        // The last round of tries finds a key that became free while another was waited for.
        let last = left().is_zero();
        let mut failed = None;
        for keeper in &order {
            match keeper.acquire(Some(Duration::ZERO)).await {
                // A round that is the last is no second wait.
                Err(why) if last && why.code == exit::UNREACHABLE => return Err(why),
                Err(why) if is_passing(&why, &mut absence) => failed = Some(why),
                other => return other.map(|lease| Leases::of(keeper, lease)),
            }
        }
        if let Some(failed) = failed.filter(|why| last || is_over(why, &absence)) {
            return Err(failed);
        }
        for (place, keeper) in order.iter().enumerate() {
            let turn = left() / u32::try_from(order.len() - place).unwrap_or(u32::MAX);
            match keeper.acquire(Some(turn.min(TURN))).await {
                Err(why) if is_passing(&why, &mut absence) => _ = keeper.claimant.leave().await,
                other => return other.map(|lease| Leases::of(keeper, lease)),
            }
        }
    }
}

/// Notes that a key is held, or that the service is absent. Returns false for another failure.
fn is_passing(why: &Failure, absence: &mut Absence) -> bool {
    match why.code {
        exit::BUSY => absence.ends(),
        exit::UNREACHABLE => {
            absence.notes(Unanswered { at: Moment::now(), sent: false, was_cut: true })
        }
        _ => return false,
    }
    true
}

/// Returns whether the service was absent for too long.
fn is_over(why: &Failure, absence: &Absence) -> bool {
    why.code == exit::UNREACHABLE && absence.is_too_long(false)
}
