//! The holds of this instance, to be told at once when their lease ends here.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::mpsc;

use crate::lock::key::LockKey;
use crate::lock::lease::{Holder, Lease, Renewals};
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

#[derive(Default)]
pub(crate) struct Holds {
    open: Mutex<HashMap<LockKey, Vec<OpenHold>>>,
}

struct OpenHold {
    token: LeaseToken,
    /// `None` while it waits for its lease.
    version: Option<Version>,
    tell: mpsc::UnboundedSender<Loss>,
}

/// Of two grants to one token the greater is the newer.
type Version = (FencingToken, Renewals);

/// The registration of a hold, until it is dropped.
pub(crate) struct Registered {
    holds: Arc<Holds>,
    key: LockKey,
    tell: mpsc::UnboundedSender<Loss>,
    losses: mpsc::UnboundedReceiver<Loss>,
}

impl Holds {
    /// Registers a hold with its lease, or with `None` while it waits. Only the newest hold under a
    /// token goes on; the store's answers decide which it is, not the order of registration.
    pub(crate) fn register(
        self: &Arc<Self>,
        key: &LockKey,
        token: &LeaseToken,
        lease: Option<&Lease>,
    ) -> Registered {
        let (tell, losses) = mpsc::unbounded_channel();
        let version = lease.map(version);
        self.with(|open| {
            let of_key = open.entry(key.clone()).or_default();
            let (newer, older): (Vec<_>, Vec<_>) = of_key
                .iter()
                .filter(|hold| hold.token == *token)
                .partition(|hold| hold.is_newer_than(version));
            older.into_iter().for_each(|hold| hold.tell(Loss::TakenOver));
            let own = OpenHold { token: token.clone(), version, tell: tell.clone() };
            if !newer.is_empty() {
                own.tell(Loss::TakenOver);
            }
            of_key.push(own);
        });
        Registered { holds: self.clone(), key: key.clone(), tell, losses }
    }

    /// Tells the holds under a token that a later request has the lease.
    pub(crate) fn taken_over(&self, token: &LeaseToken, lease: &Lease) {
        let taken_over = Some(version(lease));
        self.tell(&lease.key, Loss::TakenOver, |hold| {
            hold.token == *token && !hold.is_newer_than(taken_over)
        });
    }

    /// Tells the holds of the lease that ended, or of an earlier one. Without a fencing token, a
    /// direct Redis client's lock ended or the store lost its record; then the next refresh tells.
    pub(crate) fn ended(&self, key: &LockKey, ended: &Holder, loss: Loss) {
        let concerned = |(fencing_token, _): Version| ended.ends(fencing_token);
        self.tell(key, loss, |hold| hold.version.is_some_and(concerned));
    }

    fn tell(&self, key: &LockKey, loss: Loss, concerns: impl Fn(&OpenHold) -> bool) {
        self.with(|open| {
            let of_key = open.get(key).into_iter().flatten();
            of_key.filter(|hold| concerns(hold)).for_each(|hold| hold.tell(loss));
        });
    }

    fn with<T>(&self, use_them: impl FnOnce(&mut HashMap<LockKey, Vec<OpenHold>>) -> T) -> T {
        use_them(&mut self.open.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl OpenHold {
    fn is_newer_than(&self, version: Option<Version>) -> bool {
        version.is_some() && self.version > version
    }

    fn tell(&self, loss: Loss) {
        // A hold that has ended meanwhile needs no message.
        let _ = self.tell.send(loss);
    }
}

impl Registered {
    /// Notes the lease that was waited for.
    pub(crate) fn has(&self, lease: &Lease) {
        self.holds.with(|open| {
            let of_key = open.get_mut(&self.key).into_iter().flatten();
            for own in of_key.filter(|hold| hold.tell.same_channel(&self.tell)) {
                own.version = Some(version(lease));
            }
        });
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

    /// Returns true if a loss was told and not received.
    pub(crate) fn was_told(&mut self) -> bool {
        self.losses.try_recv().is_ok()
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.losses.close();
        self.holds.with(|open| {
            if let Some(of_key) = open.get_mut(&self.key) {
                of_key.retain(|hold| !hold.tell.same_channel(&self.tell));
                if of_key.is_empty() {
                    open.remove(&self.key);
                }
            }
        });
    }
}

fn version(lease: &Lease) -> Version {
    (lease.fencing_token, lease.renewals)
}
