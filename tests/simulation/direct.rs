//! Clients that lock on the nodes, without the service: Redlock as libraries have it.

use crate::lock::lease::Origin;
use crate::lock::store::{Renewed, Store};
use crate::store::redlock::simulation::history::Stay;
use crate::store::redlock::simulation::redis;
use crate::store::redlock::simulation::wish::Wish;
use crate::store::redlock::simulation::worker::Worker;

/// The time that a message to a node takes, at most, in milliseconds.
const LATENCY_MS: u64 = 20;

impl Worker {
    /// Locks for as long as the run lasts.
    pub(super) async fn works_directly(mut self) {
        while self.world.now() < self.world.plan.length {
            let mut wish = self.wish(Origin::Client);
            if self.locks(&mut wish).await {
                self.holds(&wish).await;
            }
            self.unlocks(&wish).await;
            self.sleep(300).await;
        }
    }

    /// Returns true if a majority has given the lock in time.
    async fn locks(&mut self, wish: &mut Wish) -> bool {
        let (asked, ttl, mut given) = (self.world.now(), wish.claim.ttl.as_millis(), 0);
        for node in 0..self.world.plan.nodes {
            self.sleep(LATENCY_MS).await;
            given += usize::from(self.sets(node, wish));
            self.sleep(LATENCY_MS).await;
        }
        wish.until = asked + ttl - ttl / 100 - 2;
        let is_given = given > self.world.plan.nodes / 2 && self.world.now() < wish.until;
        if is_given {
            self.relies(wish, asked);
        }
        is_given
    }

    fn sets(&self, node: usize, wish: &Wish) -> bool {
        let (now, ttl) = (self.world.now(), wish.claim.ttl.as_millis());
        let state = self.world.state();
        let (key, token) = (wish.claim.key.as_str(), wish.claim.token.expose());
        let one = &state.nodes[node];
        !one.pauses && redis::lock(node, one.clock(now), key, token, ttl)
    }

    /// It has no number, but others must not hold the key.
    fn relies(&self, wish: &Wish, asked: u64) {
        let Wish { key, token, until, .. } = *wish;
        let from = self.world.now();
        let mut state = self.world.state();
        state.counts.direct += 1;
        state.history.stays(Stay { key, token, asked, from, until, fence: 0 });
    }

    /// Works, and asks the service now and then to renew the lock, which is no lease of its.
    async fn holds(&mut self, wish: &Wish) {
        let left = wish.until.saturating_sub(self.world.now());
        self.sleep(left).await;
        if self.rng.u32(..4) > 0 {
            return;
        }
        let (instance, of) = (self.instance(), wish.everything());
        let answer = self.ask(instance, async |store| store.renew(&of, None).await).await;
        assert!(!matches!(answer, Some(Ok(Renewed::Lease(_)))), "{answer:?}");
    }

    async fn unlocks(&mut self, wish: &Wish) {
        self.world.state().history.ends(wish.key, wish.token, self.world.now());
        for node in 0..self.world.plan.nodes {
            self.sleep(LATENCY_MS).await;
            let now = self.world.now();
            let state = self.world.state();
            let one = &state.nodes[node];
            if !one.pauses {
                let (key, token) = (wish.claim.key.as_str(), wish.claim.token.expose());
                redis::unlock(node, one.clock(now), key, token);
            }
        }
    }
}
