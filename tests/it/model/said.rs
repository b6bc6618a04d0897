//! What the answers of a store and of the model say, in a form that can be compared.

use lockkeeper::lock::lease::{Holder, Lease, LockStatus, Owner};
use lockkeeper::lock::slots::Share;
use lockkeeper::lock::store::{Answer, Ended, Renewed, Waiting, Win};
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

pub(super) fn answer(answer: Answer) -> Said {
    match answer {
        Answer::Won(Win { lease, fresh, replaces, .. }) => {
            let (changed, share) = (replaces.is_some(), share(lease.share));
            let what = format!("fresh: {fresh}, changed: {changed} {:?} {share}", lease.owner);
            said(format!("{what} {}", minutes(&lease)), Some(lease.fencing_token))
        }
        Answer::Held(held) => {
            let told = status(&LockStatus { mine: None, ..held.clone() });
            Said { what: format!("held, mine: {:?} {}", held.mine, told.what), ..told }
        }
        other @ (Answer::Lost(None) | Answer::Superseded | Answer::Cancelled) => {
            said(format!("{other:?}"), None)
        }
        Answer::Lost(number) => said("lost".into(), number),
        Answer::Waiting(Waiting { ahead, new, handed, .. }) => {
            let handed = handed.as_ref().map(LeaseToken::expose);
            said(format!("waiting behind {ahead}, new: {new}, handed: {handed:?}"), None)
        }
    }
}

pub(super) fn renewed(renewed: Renewed) -> Said {
    match renewed {
        Renewed::Kept(number) => said("kept".into(), Some(number)),
        Renewed::Lost(number) => said("lost".into(), number),
        Renewed::Lease(one) => lease(Some(one)),
    }
}

pub(super) fn lease(lease: Option<Lease>) -> Said {
    match lease {
        Some(lease) => {
            let what = format!("{:?} {} {}", lease.owner, minutes(&lease), share(lease.share));
            said(what, Some(lease.fencing_token))
        }
        None => said("lost".into(), None),
    }
}

fn share(Share { slots, units, slot }: Share) -> String {
    format!("slots: {} {units} {slot:?}", slots.number())
}

/// The TTL of a lease, whatever the disk has taken of it.
fn minutes(lease: &Lease) -> u64 {
    (lease.ttl.as_millis() + 30_000) / 60_000
}

pub(super) fn released(released: Ended) -> Said {
    match released {
        Ended::Lease(one) => holder(Some(&one)),
        Ended::Place => said("place".into(), None),
        Ended::Nothing(number) => said("nothing".into(), number),
    }
}

pub(super) fn holder(holder: Option<&Holder>) -> Said {
    match holder {
        Some(holder) => said(format!("{:?}", holder.owner), holder.fencing_token),
        None => said("nobody".into(), None),
    }
}

pub(super) fn status(status: &LockStatus) -> Said {
    // Whose end makes room depends on times, unless it is the token's own.
    let certain = status.sharers.is_none() || status.mine == Some(true);
    let told = holder(status.holder.as_ref().filter(|_| certain));
    let since = status.holder.as_ref().is_some_and(|holder| holder.held.is_some());
    let line: Vec<_> = status.line.iter().map(|waiter| waiter.owner.as_ref()).collect();
    let LockStatus { key, mine, waiters, .. } = status;
    let sharers = status.sharers.as_ref().map(|all| {
        let mut leases: Vec<_> = all.leases.iter().map(|one| (&one.owner, one.share)).collect();
        leases.sort_unstable_by_key(|(owner, _)| owner.as_ref().map(Owner::as_str));
        let leases: Vec<_> = leases.iter().map(|(owner, one)| (owner, share(*one))).collect();
        format!("{} with {} of {}: {leases:?}", all.holders, all.units, all.slots.number())
    });
    let what =
        format!("{key} {} since: {since} {mine:?} {waiters} {line:?} {sharers:?}", told.what);
    Said { what, ..told }
}

pub(super) fn listed(statuses: &[LockStatus]) -> Said {
    // Redis also lists what was handed and not yet confirmed.
    let confirmed = |one: &&LockStatus| {
        let holder = one.holder.as_ref();
        one.sharers.is_some() || holder.is_some_and(|one| one.fencing_token.is_some())
    };
    let held = statuses.iter().filter(confirmed);
    let lines = held.map(|one| status(one).what).collect::<Vec<_>>();
    said(lines.join("\n"), None)
}
