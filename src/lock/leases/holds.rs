//! The streams of this instance, to be told at once when their lease ends here.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use tokio::sync::mpsc;

use crate::lock::key::LockKey;
use crate::lock::lease::{Holder, Lease, Renewals};
use crate::lock::leases::Leases;
use crate::lock::token::{FencingToken, LeaseToken};

/// The reason why a lease was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// It expired.
    Expired,
    /// It has lasted for the `max_hold` of its key.
    MaxHold,
    /// Its token released it, or it ended early in another way that this instance cannot tell.
    Released,
    /// An administrator ended it by force.
    Forced,
    /// Its token acquired it elsewhere, and another request keeps it there.
    TakenOver,
    /// Its client has lost the right to it; it stays until it expires.
    Revoked,
}

/// The most ends of a key that are remembered while a stream of it is open. Numbers rise, so these
/// are the latest; a stream asks for its own as soon as its lease is known here.
const MOST_ENDED: usize = 64;

/// The open streams.
#[derive(Default)]
pub(super) struct Holds(HashMap<LockKey, OfKey>);

/// The open streams of a key, and the ends that this instance has seen meanwhile: the answer of a
/// grant may come after that of its end.
#[derive(Default)]
struct OfKey {
    holds: Vec<OpenHold>,
    ended: BTreeMap<FencingToken, (Holder, Loss)>,
}

struct OpenHold {
    token: LeaseToken,
    stage: Stage,
    tell: mpsc::UnboundedSender<Loss>,
}

/// Of two leases of one token the greater stage is the newer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    /// It asks for its lease.
    Asks,
    /// It waits in line.
    Waits,
    /// It has a lease with this number and so many renewals.
    Has(FencingToken, Renewals),
}

/// The registration of a stream, until it is dropped.
pub(crate) struct Registered {
    leases: Arc<Leases>,
    key: LockKey,
    token: LeaseToken,
    tell: mpsc::UnboundedSender<Loss>,
    losses: mpsc::UnboundedReceiver<Loss>,
}

impl Holds {
    pub(super) fn taken_over(&self, token: &LeaseToken, lease: &Lease) {
        let taken_over = Stage::of(lease);
        let holds = self.0.get(&lease.key).into_iter().flat_map(|of_key| &of_key.holds);
        let older = |hold: &&OpenHold| hold.token == *token && hold.stage <= taken_over;
        let older = holds.filter(|hold| hold.stage != Stage::Asks).filter(older);
        older.for_each(|hold| hold.tell(Loss::TakenOver));
    }

    /// Tells the streams of the lease that ended, or of an earlier one. Without a fencing token, a
    /// direct Redis client's lock ended or the store lost its record; then the next refresh tells.
    pub(super) fn ended(&mut self, key: &LockKey, ended: &Holder, loss: Loss) {
        let Some(number) = ended.fencing_token else { return };
        let Some(of_key) = self.0.get_mut(key) else { return };
        for hold in &of_key.holds {
            if let Stage::Has(lease, _) = hold.stage
                && ended.ends(lease)
            {
                hold.tell(loss);
            }
        }
        of_key.ended.insert(number, (ended.clone(), loss));
        if of_key.ended.len() > MOST_ENDED {
            of_key.ended.pop_first();
        }
    }
}

impl OfKey {
    /// The reason why a lease has ended, if that was seen.
    fn loss_of(&self, lease: FencingToken) -> Option<Loss> {
        let mut later = self.ended.range(lease..);
        later.find(|(_, (ended, _))| ended.ends(lease)).map(|(_, (_, loss))| *loss)
    }
}

impl Stage {
    fn of(lease: &Lease) -> Self {
        Self::Has(lease.fencing_token, lease.renewals)
    }
}

impl OpenHold {
    fn tell(&self, loss: Loss) {
        // A stream that has ended meanwhile needs no message.
        let _ = self.tell.send(loss);
    }
}

impl Registered {
    pub(super) fn new(leases: Arc<Leases>, key: LockKey, token: LeaseToken) -> Self {
        let (tell, losses) = mpsc::unbounded_channel();
        let own = OpenHold { token: token.clone(), stage: Stage::Asks, tell: tell.clone() };
        leases.with(|_, holds| holds.0.entry(key.clone()).or_default().holds.push(own));
        Self { leases, key, token, tell, losses }
    }

    /// Notes that the lease is waited for. Only the newest waiting stream under a token goes on.
    pub(crate) fn waits(&self) {
        self.with(|of_key| self.advance(of_key, Stage::Waits));
    }

    /// Notes the lease, and tells its end if that was seen already.
    pub(crate) fn has(&self, lease: &Lease) {
        self.with(|of_key| {
            self.advance(of_key, Stage::of(lease));
            if let Some(loss) = of_key.loss_of(lease.fencing_token) {
                let _ = self.tell.send(loss);
            }
        });
    }

    /// Moves on to a stage. The store's answers decide which stream under the token is the newest,
    /// not the order of registration.
    fn advance(&self, of_key: &mut OfKey, stage: Stage) {
        for hold in of_key.holds.iter_mut().filter(|hold| hold.token == self.token) {
            if hold.tell.same_channel(&self.tell) {
                hold.stage = stage;
            } else if hold.stage > stage && stage != Stage::Waits {
                let _ = self.tell.send(Loss::TakenOver);
            } else if hold.stage != Stage::Asks {
                hold.tell(Loss::TakenOver);
            }
        }
    }

    /// Waits until the loss of the lease is told.
    ///
    /// # Cancel safety
    ///
    /// No message is lost.
    pub(crate) async fn told(&mut self) -> Loss {
        match self.losses.recv().await {
            Some(loss) => loss,
            None => std::future::pending().await,
        }
    }

    /// A loss that was told and not received.
    pub(crate) fn was_told(&mut self) -> Option<Loss> {
        self.losses.try_recv().ok()
    }

    fn with(&self, use_it: impl FnOnce(&mut OfKey)) {
        self.leases.with(|_, holds| holds.0.get_mut(&self.key).map(use_it));
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.losses.close();
        self.leases.with(|_, Holds(open)| {
            if let Some(of_key) = open.get_mut(&self.key) {
                of_key.holds.retain(|hold| !hold.tell.same_channel(&self.tell));
                if of_key.holds.is_empty() {
                    open.remove(&self.key);
                }
            }
        });
    }
}
