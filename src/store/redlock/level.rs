//! The number of a lease on the nodes that drew a greater one, or none.
//!
//! A node votes with a number of its own, so one that missed the lease which a repeat is told of may
//! have a greater one than the majority. It would refuse what names the lease. The attempt that
//! asked for the vote tells the node the number, unless the node knew a greater one before, or a
//! majority may have confirmed the vote's meanwhile: a number that was answered never falls. Until
//! then the record names the attempt, and nobody answers the number unconfirmed.
//!
//! A node that waits after a loss of data draws no number. It is told that of the lease as well, also
//! where its answer came too late: it may vote before the next refresh, and another node may forget
//! the lease then.

use std::sync::Arc;
use std::time::Duration;

use crate::lock::error::Effect;
use crate::lock::lease::{Claim, Lease};
use crate::store::redlock::RedlockStore;
use crate::store::redlock::cleanup::{Cleanup, Leftover};
use crate::store::redlock::nodes::{LEVEL, Late, Nodes, Question};
use crate::store::redlock::vote::{Ballot, Poll, Yes};
use crate::store::redlock::watch::NodesView;

/// A lease that an attempt has won, with what tells the nodes its number.
struct Leveling {
    nodes: Arc<Nodes>,
    cleanup: Arc<Cleanup>,
    view: Arc<NodesView>,
    claim: Claim,
    attempt: String,
    number: u64,
    patience: Duration,
}

impl RedlockStore {
    /// Levels the votes of an attempt that has won a lease, in the background and until the nodes
    /// have answered: those in its poll, and those that come late.
    pub(super) fn level(
        &self,
        claim: &Claim,
        attempt: &str,
        lease: &Lease,
        (poll, late): (&Poll, Option<Late>),
    ) {
        let leveling = Leveling {
            nodes: self.nodes.clone(),
            cleanup: self.cleanup.clone(),
            view: self.view.clone(),
            claim: claim.clone(),
            attempt: attempt.to_owned(),
            number: lease.fencing_token.number(),
            patience: self.rules.node_timeout,
        };
        let uneven = poll.ballots().filter_map(|(node, ballot)| leveling.of(node, ballot?));
        let mut uneven: Vec<_> = uneven.collect();
        if uneven.is_empty() && late.is_none() {
            return;
        }
        self.background.spawn(async move {
            let late = match late {
                Some(late) => late.await.unwrap_or_default(),
                None => Vec::new(),
            };
            uneven.extend(late.iter().filter_map(|(node, ballot)| leveling.of(*node, ballot)));
            let lasts = leveling.claim.ttl.as_duration();
            for (left, question) in uneven {
                let left = leveling.cleanup.once(vec![left], &question).await;
                leveling.cleanup.owe(left, &question, lasts);
            }
        });
    }
}

impl Leveling {
    /// What a node has to be told, after this ballot.
    fn of(&self, node: usize, ballot: &Ballot) -> Option<(Leftover, Question)> {
        let now = || self.cleanup.leftover_now(node);
        let (left, drawn) = match ballot {
            Ballot::Yes(yes) if yes.number > self.number && is_first(yes, self.number) => {
                (now(), yes.number)
            }
            _ if is_told_nothing() => return None,
            Ballot::Blank => (now(), 0),
            Ballot::Silent(Effect::Unknown) if self.view.waits(node) => {
                (self.cleanup.leftover(node, self.patience), 0)
            }
            _ => return None,
        };
        let Claim { key, token, .. } = &self.claim;
        let (drawn, number) = (drawn.to_string(), self.number.to_string());
        let args = [token.expose(), &self.attempt, &drawn, &number].map(str::to_owned).into();
        Some((left, self.nodes.question(&LEVEL, key, args, self.patience)))
    }
}

/// Returns true if a node that waits is told nothing.
fn is_told_nothing() -> bool {
    #[cfg(test)]
    if crate::store::redlock::simulation::Rule::WaitingAreTold.is_left_out() {
        return true;
    }
    false
}

/// Returns true if this greater number is the first such number on its node. Another one may be
/// that of a later lease, if the token's release was only half heard: a vote with the old number
/// would then bring the old lease back.
fn is_first(yes: &Yes, number: u64) -> bool {
    #[cfg(test)]
    if crate::store::redlock::simulation::Rule::LeveledUnseen.is_left_out() {
        return true;
    }
    yes.before.is_some_and(|before| before <= number)
}
