//! The number of a lease on the nodes that drew a greater one, or none.
//!
//! A node votes with a number of its own, so one that missed the lease which a repeat is told of may
//! have a greater one than the majority. It would refuse what names the lease. The attempt that
//! asked for the vote tells the node the number, unless a majority may have confirmed the vote's
//! meanwhile: a number that was answered never falls. Until then the record names the attempt, and
//! nobody answers the number unconfirmed. A repeat tells also a node whose answer was lost.
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
use crate::store::redlock::vote::{Ballot, Poll, Since, Yes};
use crate::store::redlock::watch::NodesView;

/// A lease that an attempt has won, with what tells the nodes its number.
struct Leveling {
    nodes: Arc<Nodes>,
    cleanup: Arc<Cleanup>,
    view: Arc<NodesView>,
    claim: Claim,
    attempt: String,
    number: u64,
    /// True if the token had votes before: other nodes may draw greater numbers than its lease has.
    again: bool,
    patience: Duration,
}

/// What one node is told.
struct Told {
    left: Leftover,
    /// Otherwise the vote is given up.
    if_it_lasts: bool,
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
            again: poll.votes().iter().any(|yes| yes.since == Since::Before),
            patience: self.rules.node_timeout,
        };
        let uneven = poll.ballots().filter_map(|(node, ballot)| leveling.of(node, ballot?));
        let mut uneven: Vec<_> = uneven.collect();
        if uneven.is_empty() && late.is_none() {
            return;
        }
        self.background.spawn_brief(async move {
            let late = match late {
                Some(late) => late.await.unwrap_or_default(),
                None => Vec::new(),
            };
            uneven.extend(late.iter().filter_map(|(node, ballot)| leveling.of(*node, ballot)));
            let lasts = !uneven.iter().any(|told| told.if_it_lasts) || leveling.lasts().await;
            for Told { left, if_it_lasts } in uneven {
                let question = leveling.question(lasts || !if_it_lasts);
                let left = leveling.cleanup.once(vec![left], &question).await;
                leveling.cleanup.owe(left, &question, leveling.claim.ttl.as_duration());
            }
        });
    }
}

impl Leveling {
    /// What a node has to be told, after this ballot.
    fn of(&self, node: usize, ballot: &Ballot) -> Option<Told> {
        let now = || self.cleanup.leftover_now(node);
        let (left, if_it_lasts) = match ballot {
            Ballot::Yes(Yes { number, before: Some(before), .. }) if *number > self.number => {
                (now(), *before > self.number)
            }
            Ballot::Blank => (now(), false),
            // Its answer may have been lost.
            Ballot::Silent(Effect::Unknown) if self.again || self.view.waits(node) => {
                (self.cleanup.leftover(node, self.patience), true)
            }
            _ => return None,
        };
        Some(Told { left, if_it_lasts })
    }

    /// What gives the vote of the attempt its number, or gives it up if the lease does not last.
    fn question(&self, lasts: bool) -> Question {
        let Claim { key, token, .. } = &self.claim;
        let (number, lasts) = (self.number.to_string(), if lasts { "1" } else { "" });
        let args = [token.expose(), &self.attempt, &number, lasts].map(str::to_owned).into();
        self.nodes.question(&LEVEL, key, args, self.patience)
    }

    /// Returns true if a majority has the lease with its number, now that the votes are there.
    ///
    /// Only then may a node be told of it that knew a greater number before. That number may be of
    /// a later lease, if the token's release was only half heard: the vote would bring the old
    /// lease back. But a later lease had ended the old one on a node of every majority.
    async fn lasts(&self) -> bool {
        let has_it = |ballot: &Ballot| {
            matches!(ballot, Ballot::No(Some(other)) if other.number == self.number
                && other.holder == self.claim.token.expose().as_bytes())
        };
        let question = self.nodes.inspection(&self.claim.key, self.patience);
        let poll = self.nodes.poll(&question, Poll::complete).await;
        poll.how_many(has_it) >= self.nodes.quorum().needed()
    }
}
