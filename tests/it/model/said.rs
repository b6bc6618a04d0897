//! What the answers of a store and of the model say, in a form that can be compared.

use lockkeeper::lock::lease::{Holder, Lease, LockStatus};
use lockkeeper::lock::store::{Attempt, Released, Turn, Waiting, Win};
use lockkeeper::lock::token::{FencingToken, LeaseToken};

/// What an answer says once fencing tokens are replaced by their order and times left out: the
/// model counts both in its own way.
#[derive(Debug, PartialEq)]
pub(super) struct Said {
    pub(super) what: String,
    pub(super) fencing: Option<u64>,
}

fn said(what: String, fencing: Option<FencingToken>) -> Said {
    Said { what, fencing: fencing.map(|token| token.number()) }
}

pub(super) fn attempt(attempt: Attempt) -> Said {
    match attempt {
        Attempt::Won(Win { lease, fresh }) => said(
            format!("fresh: {fresh} {:?} {}", lease.owner, minutes(&lease)),
            Some(lease.fencing_token),
        ),
        Attempt::Held(held) => {
            let told = status(&held);
            Said { what: format!("held {}", told.what), ..told }
        }
    }
}

pub(super) fn turn(turn: Turn) -> Said {
    match turn {
        Turn::Won(win) => attempt(Attempt::Won(win)),
        Turn::Gone => said("gone".into(), None),
        Turn::Waiting(Waiting { ahead, new, handed, .. }) => {
            let handed = handed.as_ref().map(LeaseToken::expose);
            said(format!("waiting behind {ahead}, new: {new}, handed: {handed:?}"), None)
        }
    }
}

pub(super) fn lease(lease: Option<Lease>) -> Said {
    match lease {
        Some(lease) => {
            said(format!("{:?} {}", lease.owner, minutes(&lease)), Some(lease.fencing_token))
        }
        None => said("lost".into(), None),
    }
}

/// The TTL of a lease, whatever the disk has taken of it.
fn minutes(lease: &Lease) -> u64 {
    (lease.ttl.as_millis() + 30_000) / 60_000
}

pub(super) fn released(released: Released) -> Said {
    match released {
        Released::Lease(one) => holder(Some(&one)),
        Released::Place => said("place".into(), None),
        Released::Nothing => said("nothing".into(), None),
    }
}

pub(super) fn holder(holder: Option<&Holder>) -> Said {
    match holder {
        Some(holder) => said(format!("{:?}", holder.owner), holder.fencing_token),
        None => said("nobody".into(), None),
    }
}

pub(super) fn status(status: &LockStatus) -> Said {
    let told = holder(status.holder.as_ref());
    let since = status.holder.as_ref().is_some_and(|holder| holder.held.is_some());
    let line: Vec<_> = status.line.iter().map(|waiter| waiter.owner.as_ref()).collect();
    let LockStatus { key, mine, waiters, .. } = status;
    let what = format!("{key} {} since: {since} {mine:?} {waiters} {line:?}", told.what);
    Said { what, ..told }
}

pub(super) fn listed(statuses: &[LockStatus]) -> Said {
    // Redis also lists what was handed and not yet confirmed.
    let held = statuses
        .iter()
        .filter(|one| one.holder.as_ref().is_some_and(|one| one.fencing_token.is_some()));
    let lines = held.map(|one| status(one).what).collect::<Vec<_>>();
    said(lines.join("\n"), None)
}
