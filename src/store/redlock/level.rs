//! The number of a lease on the nodes that drew a greater one.
//!
//! A node votes with a number of its own, so one that has seen more, or that missed the lease which
//! a repeat is told of, may have a greater one than the majority. It would refuse what names the
//! lease. The attempt that asked for the vote tells the node the number, unless somebody else has
//! been told of the vote meanwhile: a number that was answered never falls.

use crate::lock::error::Effect;
use crate::lock::lease::{Claim, Lease};
use crate::store::redlock::RedlockStore;
use crate::store::redlock::nodes::{LEVEL, Late};
use crate::store::redlock::vote::{Ballot, Poll};

impl RedlockStore {
    /// Levels the votes of an attempt that has won a lease, in the background: those in its poll,
    /// and those that come late.
    pub(super) fn level(
        &self,
        claim: &Claim,
        attempt: &str,
        lease: &Lease,
        (poll, late): (&Poll, Option<Late>),
    ) {
        let number = lease.fencing_token.number();
        let mut uneven: Vec<_> = poll
            .ballots()
            .filter_map(|(node, ballot)| ballot.filter(|one| may_differ(one, number)).map(|_| node))
            .collect();
        if uneven.is_empty() && late.is_none() {
            return;
        }
        let args = [claim.token.expose(), attempt, &number.to_string()].map(str::to_owned);
        let question =
            self.nodes.question(&LEVEL, &claim.key, args.into(), self.rules.node_timeout);
        let nodes = self.nodes.clone();
        self.background.spawn(async move {
            let late = match late {
                Some(late) => late.await.unwrap_or_default(),
                None => Vec::new(),
            };
            uneven.extend(
                late.iter().filter(|(_, one)| may_differ(one, number)).map(|(node, _)| node),
            );
            for node in uneven {
                // Without an answer the node is as it was: it refuses what names the lease.
                let _ = nodes.ask(node, &question).await;
            }
        });
    }
}

/// Returns true if a node with this answer may have another number than the lease.
fn may_differ(ballot: &Ballot, number: u64) -> bool {
    match ballot {
        Ballot::Yes(yes) => yes.number > number,
        Ballot::Blank | Ballot::Silent(Effect::Unknown) => true,
        Ballot::No(_) | Ballot::TakenOver | Ballot::Foreign | Ballot::Silent(Effect::None) => false,
    }
}
