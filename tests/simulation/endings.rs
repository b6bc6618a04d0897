//! The ends of leases: by their clients, by their keepers, by force, and by nobody who was told.

use std::time::Duration;

use tokio::time::sleep;

use crate::lock::store::{Condition, Ended, Renewed, Store};
use crate::store::redlock::simulation::history::Wrong;
use crate::store::redlock::simulation::plan::LONGEST_TTL_MS;
use crate::store::redlock::simulation::wish::{Outcome, Wish, name};
use crate::store::redlock::simulation::worker::{REPEATS, Worker};

/// When a forced release that is under way has acted, at the latest.
const UNDER_WAY: u64 = u64::MAX / 2;

/// The time in which a forced release acts after its answer, at the latest.
const FORCED_MS: u64 = 500;

impl Worker {
    /// Frees a key by force.
    pub(super) async fn force(&mut self, key: usize) {
        let instance = self.instance();
        let asked = self.world.now();
        // An instance that is paused acts when it goes on.
        self.world.state().forced[key] = UNDER_WAY;
        self.ask(instance, async |store| {
            let status = store.look(&name(key), None, 0).await.ok()?;
            let lease = status.holder?.fencing_token;
            store.force_release(&name(key), lease).await.ok()
        })
        .await;
        sleep(Duration::from_millis(FORCED_MS)).await;
        // It may have ended any of them.
        let mut state = self.world.state();
        state.history.ends_all(key, asked);
        state.forced[key] = self.world.now();
    }

    /// Returns true if somebody frees a key by force, or did so during a longest lease.
    pub(super) fn is_forced(&self, key: usize) -> bool {
        self.world.state().forced[key] + LONGEST_TTL_MS > self.world.now()
    }

    /// Takes the grant back, as if it had reached nobody.
    pub(super) async fn is_gone(&mut self, wish: &Wish) {
        self.world.state().history.ends(wish.key, wish.token, self.world.now());
        let Some(grant) = wish.unheard() else { return };
        self.world.state().history.was_told_to_nobody(wish.key, wish.token);
        for _ in 0..REPEATS {
            let instance = self.instance();
            let ended = self.ask(instance, async |store| store.end(&grant).await).await;
            if let Some(Ok(_)) = ended
                && !wish.orphaned
            {
                return self.expect_nothing(wish).await;
            }
        }
    }

    pub(super) async fn release(&mut self, wish: &mut Wish, instance: usize) {
        self.world.state().history.ends(wish.key, wish.token, self.world.now());
        let of = self.target(wish);
        let answer = self.ask(instance, async |store| store.end(&of).await).await;
        match answer {
            Some(Ok(Ended::Lease(_))) if self.rng.u32(..4) == 0 && !wish.orphaned => {
                self.expect(wish, Wrong::Revived).await;
            }
            // The token may be used again, even if the outcome of the release is unknown; but not
            // where a release by the token may come late.
            Some(Ok(Ended::Lease(_)) | Err(_))
                if self.rng.u32(..4) == 0
                    && (of.number.is_some() || self.world.plan.steps_every == 0) =>
            {
                self.use_again(wish, instance).await;
            }
            Some(Ok(Ended::Nothing(_))) => self.is_lost(wish, "released"),
            _ => (),
        }
    }

    pub(super) async fn use_again(&mut self, wish: &mut Wish, instance: usize) {
        (wish.until, wish.claim.kept) = (0, false);
        if self.try_once(instance, wish).await != Outcome::Granted {
            return;
        }
        self.sleep(wish.claim.ttl.as_millis() / 2).await;
        self.world.state().history.ends(wish.key, wish.token, self.world.now());
        let all = wish.everything();
        self.ask(instance, async |store| store.end(&all).await).await;
    }

    pub(super) async fn undo(&mut self, instance: usize, wish: &Wish) {
        let all = wish.everything().only(Condition::Ever);
        for _ in 0..REPEATS {
            let undone = self.ask(instance, async |store| store.end(&all).await).await;
            if let Some(Ok(_)) = undone {
                self.world.state().counts.undone += 1;
                return self.expect_nothing(wish).await;
            }
        }
    }

    /// Checks that a request without an effect, or an undone one, left no lease.
    pub(super) async fn expect_nothing(&mut self, wish: &Wish) {
        self.expect(wish, Wrong::HadEffect).await;
    }

    pub(super) async fn expect(&mut self, wish: &Wish, wrong: Wrong) {
        self.sleep(200).await;
        let instance = self.instance();
        let all = wish.everything();
        let answer = self.ask(instance, async |store| store.renew(&all, None).await).await;
        if let Some(Ok(found @ (Renewed::Lease(_) | Renewed::Kept(_)))) = answer {
            let story = format!("at {}: {} has {found:?}", self.world.now(), wish.token);
            self.world.state().history.wrong(wrong, story);
        }
    }

    /// Notes that the service reported the lease lost.
    pub(super) fn is_lost(&self, wish: &mut Wish, when: &str) {
        let now = self.world.now();
        let mut state = self.world.state();
        let is_wrong = now < wish.until && self.world.plan.leases_last();
        if is_wrong && state.forced[wish.key] + LONGEST_TTL_MS <= now {
            let (key, token, until) = (wish.key, wish.token, wish.until);
            let story = format!("key {key} of {token}: {when} at {now}, before {until}");
            state.history.wrong(Wrong::EndedEarly, story);
        }
        state.history.ends(wish.key, wish.token, now);
        wish.until = 0;
    }
}
