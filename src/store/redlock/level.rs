//! The number of a lease on the nodes that drew a greater one, or none.
//!
//! A node votes with a number of its own, so one that missed the lease which a repeat is told of may
//! have a greater one than the majority. It would refuse what names the lease. The attempt that
//! asked for the vote tells the node the number, unless the node knew a greater one before, or a
//! majority may have confirmed the vote's meanwhile: a number that was answered never falls. Until
//! then the record names the attempt, and nobody answers the number unconfirmed.
//!
//! A node that does not vote draws no number. It is told that of the lease as well: it may vote
//! before the next refresh, and other nodes may forget the lease then.

use crate::lock::lease::{Claim, Lease};
use crate::store::redlock::RedlockStore;
use crate::store::redlock::nodes::{LEVEL, Late};
use crate::store::redlock::vote::{Ballot, Poll, Yes};

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
            .filter_map(|(node, ballot)| Some((node, drawn(ballot?, number)?)))
            .collect();
        if uneven.is_empty() && late.is_none() {
            return;
        }
        let (nodes, patience) = (self.nodes.clone(), self.rules.node_timeout);
        let (key, token, attempt) = (claim.key.clone(), claim.token.clone(), attempt.to_owned());
        self.background.spawn(async move {
            let late = match late {
                Some(late) => late.await.unwrap_or_default(),
                None => Vec::new(),
            };
            let late = late.iter().filter_map(|(node, one)| Some((*node, drawn(one, number)?)));
            uneven.extend(late);
            for (node, drawn) in uneven {
                let args = [token.expose(), &attempt, &drawn.to_string(), &number.to_string()];
                let args = args.map(str::to_owned).into();
                let question = nodes.question(&LEVEL, &key, args, patience);
                // Without an answer the node is as it was: it refuses what names the lease.
                let _ = nodes.ask(node, &question).await;
            }
        });
    }
}

/// The number of this vote, if it is not the lease's: 0 if the node does not vote, or a greater one
/// that is the first such number on its node. Another greater one may be that of a later lease, if
/// the token's release was only half heard: a vote with the old number would then bring the old
/// lease back.
fn drawn(ballot: &Ballot, number: u64) -> Option<u64> {
    match ballot {
        Ballot::Yes(yes) if yes.number > number && is_first(yes, number) => Some(yes.number),
        Ballot::Blank => Some(0),
        _ => None,
    }
}

fn is_first(yes: &Yes, number: u64) -> bool {
    #[cfg(test)]
    if crate::store::redlock::simulation::Rule::LeveledUnseen.is_left_out() {
        return true;
    }
    yes.before.is_some_and(|before| before <= number)
}
