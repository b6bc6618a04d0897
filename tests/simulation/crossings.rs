//! Requests of one token that cross.

use std::time::Duration;

use tokio::time::sleep;

use crate::lock::lease::Claim;
use crate::lock::store::{Answer, Ask, Ended, Renewed, Store, Target};
use crate::store::redlock::RedlockStore;
use crate::store::redlock::simulation::counterexamples::{claims, in_a_world, in_a_world_of, won};
use crate::store::redlock::simulation::faults::{deliver, resume};
use crate::store::redlock::simulation::plan::Plan;
use crate::store::redlock::simulation::repeats::{store, told};

/// Both meet votes that are open, or were told before.
#[test]
fn of_two_take_overs_that_cross_one_is_the_later() {
    in_a_world(None, async |world| {
        sleep(Duration::from_millis(100)).await; // The instances look at the nodes.
        let [one, other] = [0, 1].map(|instance| store(world, instance));
        let again = async |store: &RedlockStore, claim: &Claim| {
            let Ok(Answer::Won(win)) = store.ask(claim, Ask::Once(None)).await else {
                panic!("the token has the key")
            };
            Target::kept(&claim.token, &win.lease)
        };
        for round in 0..60 {
            let [claim, _] = claims(4_000);
            won(&one, &claim).await;
            let lease = Target::of(&claim.key, &claim.token, None);
            if round % 2 == 0 {
                assert!(one.renew(&lease, None).await.is_ok());
            }
            let keepers = tokio::join!(again(&one, &claim), again(&other, &claim));
            let kept = [one.renew(&keepers.0, None).await, other.renew(&keepers.1, None).await];
            let refused = kept.iter().filter(|kept| matches!(kept, Ok(Renewed::TakenOver))).count();
            assert_eq!(refused, 1, "round {round}: {kept:?}");
            assert!(matches!(one.end(&lease).await, Ok(Ended::Lease(_))));
        }
    });
}

/// A release reaches one node after another. The client's refreshes cross it, and a rival's claim
/// takes what is free and gives it up.
#[test]
fn a_refresh_that_crosses_a_release_brings_the_lease_back_to_no_node() {
    let (released, renewed) = in_a_world(None, async |world| {
        let (one, _, lease) = told(world, 4_000).await;
        let other = store(world, 1);
        (1..3).for_each(|node| world.state().nodes[node].pauses = true);
        let crossing = async {
            sleep(Duration::from_millis(30)).await; // The first node has ended it.
            let releases = [1, 2].map(|node| resume(world, node));
            let refused = other.ask(&claims(4_000)[1], Ask::Once(None)).await;
            assert!(matches!(refused, Ok(Answer::Held(_))), "{refused:?}");
            sleep(Duration::from_millis(20)).await; // Its vote is given up.
            for release in releases {
                let crossed = one.renew(&lease, None).await;
                assert!(crossed.is_ok(), "{crossed:?}");
                deliver(world, release);
            }
        };
        let (released, ()) = tokio::join!(other.end(&lease), crossing);
        (released, one.renew(&lease, None).await)
    });
    assert!(matches!(released, Ok(Ended::Lease(_))), "{released:?}");
    assert!(matches!(renewed, Ok(Renewed::Lost)), "{renewed:?}");
}

/// Of two nodes both have to agree, and each instance is far from one of them.
#[test]
fn two_refreshes_that_cross_on_far_nodes_do_not_hinder_each_other() {
    let plan = Plan { served: true, ..Plan::calm(2, 1) };
    let answered = in_a_world_of(plan, async |world| {
        let (one, _, lease) = told(world, 4_000).await;
        let other = store(world, 1);
        (0..2).for_each(|node| world.state().nodes[node].far = vec![1 - node]);
        let mut answered = 0;
        for _ in 0..60 {
            let renewed = tokio::join!(one.renew(&lease, None), other.renew(&lease, None));
            answered += u32::from(renewed.0.is_ok()) + u32::from(renewed.1.is_ok());
        }
        answered
    });
    assert!(answered >= 100, "{answered} of 120");
}
