//! The claims of one key in one instance, and the requests behind them: who is to join, who stands
//! where, who is to leave. The task of the key tells the store.

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::sync::Arc;

use tokio::sync::Notify;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::lock::lease::Claim;
use crate::lock::owed::Undelivered;
use crate::lock::store::Keep;
use crate::lock::token::LeaseToken;

/// The claims of one key in this instance.
pub(super) struct KeyLine {
    pub(super) claims: HashMap<LeaseToken, Standing>,
    /// The claims whose places are known.
    pub(super) order: BTreeMap<u64, LeaseToken>,
    pub(super) joining: Vec<LeaseToken>,
    pub(super) leaving: Vec<(LeaseToken, Keep)>,
    /// The claims of which a request has the lease by its last question: an answer of this round
    /// that finds nobody any more takes nothing back.
    pub(super) settled: Vec<LeaseToken>,
    pub(super) requests: usize,
    /// How many claims of other instances stand before the first of this one.
    pub(super) before_head: u64,
    /// Rung when there is work for the task of the key.
    pub(super) bell: Arc<Notify>,
}

/// A claim, and the requests behind it.
pub(super) struct Standing {
    pub(super) claim: Claim,
    pub(super) place: Option<u64>,
    /// Whether the store has ever told its place.
    pub(super) joined: bool,
    /// How many stood before it when the store last told.
    pub(super) ahead: u64,
    pub(super) requests: Vec<(u64, oneshot::Sender<Delivery>)>,
}

/// Who is to leave, and who is to join.
pub(super) type Work = (Vec<(LeaseToken, Keep)>, Vec<Claim>);

/// What a request is told: the answer, and when the store was asked for it.
pub(crate) struct Delivery {
    pub(crate) answer: Undelivered,
    pub(crate) asked: Instant,
    /// Whether nobody else was told the same.
    pub(crate) alone: bool,
}

impl KeyLine {
    /// An empty one with this bell.
    pub(super) fn new(bell: Arc<Notify>) -> Self {
        Self {
            claims: HashMap::new(),
            order: BTreeMap::new(),
            joining: Vec::new(),
            leaving: Vec::new(),
            settled: Vec::new(),
            requests: 0,
            before_head: 0,
            bell,
        }
    }

    /// Lets a request wait behind its claim, which joins the line if it is new.
    pub(super) fn enter(&mut self, claim: Claim, request: u64, tell: oneshot::Sender<Delivery>) {
        self.requests += 1;
        let token = claim.token.clone();
        // Back before the store was told that it left: then it never did.
        self.leaving.retain(|(leaving, _)| *leaving != token);
        let standing = self.claims.entry(token.clone()).or_insert_with(|| {
            self.joining.push(token);
            Standing {
                claim: claim.clone(),
                place: None,
                joined: false,
                ahead: 0,
                requests: Vec::new(),
            }
        });
        standing.claim = claim; // The newest request says for how long and for whom.
        standing.requests.push((request, tell));
        self.bell.notify_one();
    }

    /// Who leaves and who joins in the next round, at most so many of each; rings for the rest.
    pub(super) fn take_work(&mut self, at_most: usize) -> Work {
        self.settled.clear();
        let later = self.leaving.len().saturating_sub(at_most);
        let leaving = self.leaving.split_off(later);
        let first = self.joining.len().min(at_most);
        let joining: Vec<_> = self.joining.drain(..first).collect();
        let claims = joining.iter().filter_map(|token| self.claims.get(token));
        let joining = claims.map(|standing| standing.claim.clone()).collect();
        if !self.leaving.is_empty() || !self.joining.is_empty() {
            self.bell.notify_one();
        }
        (leaving, joining)
    }

    /// The claim with the first place.
    pub(super) fn head(&self) -> Option<&Claim> {
        let (_, token) = self.order.first_key_value()?;
        self.claims.get(token).map(|standing| &standing.claim)
    }

    /// Takes a claim out.
    pub(super) fn remove(&mut self, token: &LeaseToken) -> Option<Standing> {
        let standing = self.claims.remove(token)?;
        if let Some(place) = standing.place {
            self.forget_place(place, token);
        }
        self.joining.retain(|joining| joining != token);
        Some(standing)
    }

    /// Forgets that the claim has this place; another that has it by now keeps it.
    pub(super) fn forget_place(&mut self, place: u64, token: &LeaseToken) {
        if self.order.get(&place).is_some_and(|there| there == token) {
            self.order.remove(&place);
        }
    }

    /// Has all but one claim join again, in the order of the places that they had. These mean
    /// nothing any more: another claim may be given the same number.
    pub(super) fn rejoin_but(&mut self, token: &LeaseToken) {
        let others = self.claims.iter_mut().filter(|(other, _)| *other != token);
        let mut again: Vec<_> = others
            .filter_map(|(other, standing)| Some((standing.place.take()?, other.clone())))
            .collect();
        again.sort_unstable_by_key(|(place, _)| *place);
        self.order.retain(|_, there| there == token);
        let again = again.into_iter().map(|(_, other)| other);
        self.joining.splice(..0, again);
        self.bell.notify_one();
    }
}
