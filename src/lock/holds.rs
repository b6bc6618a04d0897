//! The holds of this instance: who is told at once when their lease ends here.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering;

use tokio::sync::mpsc;

use crate::lock::hold::Loss;
use crate::lock::hold::Losses;
use crate::lock::key::LockKey;
use crate::lock::token::LeaseToken;

/// Who keeps which lease.
#[derive(Default)]
pub(crate) struct Holds {
    keepers: Mutex<HashMap<LockKey, Vec<Keeper>>>,
}

struct Keeper {
    token: LeaseToken,
    /// Whether it has the lease by now, and does not wait for it.
    has: Arc<AtomicBool>,
    tell: mpsc::UnboundedSender<Loss>,
}

/// A hold's place among them, until it is dropped.
pub(crate) struct Registered {
    holds: Arc<Holds>,
    key: LockKey,
    has: Arc<AtomicBool>,
    losses: Losses,
}

impl Holds {
    /// Registers the newest hold of a lease, or of a wait for one; an older one of the same token
    /// is told that it does not care for it any more.
    pub(crate) fn register(self: &Arc<Self>, key: &LockKey, token: &LeaseToken) -> Registered {
        self.tell(key, Some(token), Loss::TakenOver);
        let (tell, losses) = mpsc::unbounded_channel();
        let has = Arc::new(AtomicBool::new(false));
        self.with(|keepers| {
            let keeper = Keeper { token: token.clone(), has: has.clone(), tell };
            keepers.entry(key.clone()).or_default().push(keeper);
        });
        Registered { holds: self.clone(), key: key.clone(), has, losses }
    }

    /// Tells the holds of a key, or of one token on it, that their lease is lost. Those that wait
    /// for it have none to lose; but of two under one token only the newer goes on.
    pub(crate) fn tell(&self, key: &LockKey, token: Option<&LeaseToken>, loss: Loss) {
        self.with(|keepers| {
            for keeper in keepers.get(key).into_iter().flatten() {
                let concerned = loss == Loss::TakenOver || keeper.has.load(Ordering::Relaxed);
                if concerned && token.is_none_or(|token| *token == keeper.token) {
                    // Whoever has ended in the meantime needs to know nothing.
                    let _ = keeper.tell.send(loss);
                }
            }
        });
    }

    fn with<T>(&self, use_them: impl FnOnce(&mut HashMap<LockKey, Vec<Keeper>>) -> T) -> T {
        use_them(&mut self.keepers.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Registered {
    /// The lease is there.
    pub(crate) fn has_it(&self) {
        self.has.store(true, Ordering::Relaxed);
    }

    /// Waits to be told of the loss.
    ///
    /// # Cancel safety
    ///
    /// Nothing that was told is lost.
    pub(crate) async fn told(&mut self) -> Loss {
        match self.losses.recv().await {
            Some(loss) => loss,
            None => std::future::pending().await,
        }
    }

    /// Whether a loss was told that nobody has heard.
    pub(crate) fn was_told(&mut self) -> bool {
        self.losses.try_recv().is_ok()
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.losses.close();
        self.holds.with(|keepers| {
            if let Some(of_key) = keepers.get_mut(&self.key) {
                of_key.retain(|keeper| !keeper.tell.is_closed());
                if of_key.is_empty() {
                    keepers.remove(&self.key);
                }
            }
        });
    }
}
