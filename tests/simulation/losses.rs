//! Numbers around a loss of data: those of before that come to light, and one that is not told.

use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use tokio::time::sleep;

use crate::lock::lease::Claim;
use crate::lock::store::{Ask, Renewed, Store, Target};
use crate::store::redlock::RedlockStore;
use crate::store::redlock::simulation::counterexamples::{claims, in_a_world_of, won};
use crate::store::redlock::simulation::faults::{deliver, resume};
use crate::store::redlock::simulation::plan::Plan;
use crate::store::redlock::simulation::redis::Forgets;
use crate::store::redlock::simulation::rule::Rule;
use crate::store::redlock::simulation::world::World;

/// The node votes again so long after its loss, in milliseconds.
const VOTES_AFTER: u64 = 4_100;

/// The only node has forgotten a lease, and an instance whose clock is behind asks for another.
struct Forgotten<'a> {
    world: &'a World,
    behind: Arc<RedlockStore>,
    claim: Claim,
    /// The number of the lease that is forgotten.
    number: u64,
    at: u64,
}

impl<'a> Forgotten<'a> {
    async fn begin(world: &'a World) -> Self {
        let [ahead, behind] = [0, 1].map(|instance| world.of(instance).store.expect("a store"));
        let [forgotten, claim] = claims(4_000);
        sleep(Duration::from_millis(100)).await; // The instances look at the nodes.
        let number = won(&ahead, &forgotten).await;
        world.forget(0, Forgets::Empty, &mut Rng::with_seed(1));
        let looked = ahead.look(&forgotten.key, None, 0).await;
        assert!(looked.is_err(), "it waits from now on: {looked:?}");
        Self { world, behind, claim, number, at: world.now() }
    }

    async fn until(&self, ms: u64) {
        sleep(Duration::from_millis((self.at + ms).saturating_sub(self.world.now()))).await;
    }

    /// The instance asks for the lease, and is cut off once the node has heard of it, so long after
    /// the loss: it neither has an answer nor cleans up.
    async fn asks_once(&self, ms: u64) {
        let heard = async {
            self.until(ms - 20).await;
            self.world.state().nodes[0].pauses = true;
            self.until(ms).await;
            self.world.state().nodes[0].cut = vec![1];
            deliver(self.world, resume(self.world, 0));
        };
        let (refused, ()) = tokio::join!(self.behind.ask(&self.claim, Ask::Once(None)), heard);
        assert!(refused.is_err(), "{refused:?}");
    }

    /// The node votes. Returns true if a repeat has a number that fell.
    async fn falls(&self) -> bool {
        self.until(VOTES_AFTER).await;
        won(&self.world.of(2).store.expect("a store"), &self.claim).await < self.number
    }
}

/// Runs a story with instances whose clocks are apart.
fn after_a_loss<T>(without: Option<Rule>, story: impl AsyncFnOnce(&Forgotten<'_>) -> T) -> T {
    let apart = Plan { without, served: true, instance_skew_us: 1_500_000, ..Plan::calm(1, 7) };
    in_a_world_of(apart, async |world| story(&Forgotten::begin(world).await).await)
}

/// The lease outlasts the silence of its node.
async fn told_while_silent(forgotten: &Forgotten<'_>) {
    forgotten.until(200).await;
    forgotten.asks_once(220).await;
}

#[test]
fn where_a_node_votes_that_waits_a_number_falls() {
    let falls = async |forgotten: &Forgotten<'_>| {
        told_while_silent(forgotten).await;
        forgotten.falls().await
    };
    assert!(after_a_loss(Some(Rule::Waits), falls));
    assert!(!after_a_loss(None, falls));
}

#[test]
fn where_a_node_votes_that_waits_a_refresh_makes_a_lease_of_it() {
    let is_refreshed = async |forgotten: &Forgotten<'_>| {
        told_while_silent(forgotten).await;
        forgotten.until(VOTES_AFTER).await;
        let store = forgotten.world.of(2).store.expect("a store");
        let Claim { key, token, .. } = &forgotten.claim;
        let renewed = store.renew(&Target::of(key, token, None), None).await;
        matches!(renewed, Ok(Renewed::Lease(_)))
    };
    assert!(after_a_loss(Some(Rule::Waits), is_refreshed));
    assert!(!after_a_loss(None, is_refreshed));
}

#[test]
fn with_a_deadline_that_is_fixed_last_a_paused_instance_gives_an_old_number() {
    let falls = async |forgotten: &Forgotten<'_>| {
        forgotten.until(200).await;
        let until = forgotten.at + VOTES_AFTER;
        forgotten.world.state().instances[1].stands_until = until;
        forgotten.asks_once(VOTES_AFTER + 20).await;
        forgotten.falls().await
    };
    assert!(after_a_loss(Some(Rule::DeadlineFirst), falls));
    assert!(!after_a_loss(None, falls));
}
